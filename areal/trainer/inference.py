"""Builds the inference engine a run asks for (`rollout.engine`): in this process, or server processes with all they
need.

Engines know nothing of processes and carriers, those know nothing of engines: this is where they meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import InferenceEngine, PaddedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from areal.engine.server.adapter import ServerAdapter
    from areal.engine.server.engine import ServerEngine
    from areal.engine.train.engine import TrainingEngine
    from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand
    from areal.trainer.config import PPOConfig

HEALTH_PATH: Final = "/health"


def build_inference_engine(
    config: PPOConfig, *, actor: TrainingEngine, tokenizer: Any, directory: Path, version: int
) -> InferenceEngine:
    """The engine, at `version` of the actor's present weights. directory: of the run, for logs and files of servers."""
    name = config.rollout.engine
    if name == "embedded":
        return _embedded(config, actor, tokenizer, version)
    build = {"vllm": _vllm, "sglang": _sglang}[name]
    adapter, command = build(config, actor, tokenizer, directory / "servers")
    return _with_servers(
        config, adapter, command, actor=actor, tokenizer=tokenizer, directory=directory, version=version
    )


def _embedded(config: PPOConfig, actor: TrainingEngine, tokenizer: Any, version: int) -> InferenceEngine:
    from areal.engine.embedded.engine import EmbeddedEngine

    return EmbeddedEngine(
        actor.model,
        config=config.engine,
        eos_token_id=tokenizer.eos_token_id,
        tokenizer=tokenizer,
        version=version,
    )


def _vllm(
    config: PPOConfig, actor: TrainingEngine, tokenizer: Any, folder: Path
) -> tuple[ServerAdapter, Callable[[int, int], ServerCommand]]:
    from areal.engine.vllm.adapter import VLLMAdapter
    from areal.engine.vllm.launch import prepare

    command = prepare(
        config.vllm,
        config.servers,
        folder=folder,
        model_config=_model_config(actor, config.servers.dtype),
        tokenizer=tokenizer,
        context=_context(config, actor),
        on_cpu=not _has_cuda(),
    )
    return VLLMAdapter(api=config.vllm.api), _as_server_command(command)


def _sglang(
    config: PPOConfig, actor: TrainingEngine, tokenizer: Any, folder: Path
) -> tuple[ServerAdapter, Callable[[int, int], ServerCommand]]:
    from areal.engine.sglang.adapter import SGLangAdapter
    from areal.engine.sglang.launch import prepare

    command = prepare(
        config.sglang,
        config.servers,
        folder=folder,
        model_config=_model_config(actor, config.servers.dtype),
        context=_context(config, actor),
        on_cpu=not _has_cuda(),
    )
    return SGLangAdapter(), _as_server_command(command)


def _with_servers(
    config: PPOConfig,
    adapter: ServerAdapter,
    command: Callable[[int, int], ServerCommand],
    *,
    actor: TrainingEngine,
    tokenizer: Any,
    directory: Path,
    version: int,
) -> ServerEngine:
    from areal.engine.server.checks import RequestLimits
    from areal.engine.server.engine import ServerEngine
    from areal.infra.weights.building import build_carrier

    args: Any = actor.model.args
    to_hf = _on_disk(actor, has_adapters=config.actor.lora is not None)
    carrier = build_carrier(
        config.weights,
        run_directory=directory,
        device=str(next(actor.model.parameters()).device),
        model_config=_model_config(actor, config.servers.dtype),
    )
    return ServerEngine(
        adapter,
        pool=_supervisor(config, adapter.name, command, directory / "servers"),
        carrier=carrier,
        config=config.servers,
        limits=RequestLimits(
            context=_context(config, actor),
            vocab_size=args.vocab_size,
            eos_token_id=tokenizer.eos_token_id,
            tokenizer=tokenizer,
        ),
        to_hf=to_hf,
        weights=to_hf(actor.weights()),
        reference=_reference(actor),
        version=version,
    )


def _supervisor(
    config: PPOConfig, name: str, command: Callable[[int, int], ServerCommand], folder: Path
) -> LocalSupervisor:
    from areal.engine.server.client import is_healthy
    from areal.infra.supervisor.supervisor import LocalSupervisor

    return LocalSupervisor(
        [f"{name}-{index}" for index in range(config.servers.num_servers)],
        command,
        health=lambda url, timeout: is_healthy(url, timeout, HEALTH_PATH),
        config=config.supervisor,
        log_folder=folder,
    )


def _as_server_command(
    command: Callable[[int, int], tuple[list[str], dict[str, str]]],
) -> Callable[[int, int], ServerCommand]:
    from areal.infra.supervisor.supervisor import ServerCommand

    def of(index: int, port: int) -> ServerCommand:
        arguments, environment = command(index, port)
        return ServerCommand(arguments=arguments, environment=environment)

    return of


def _context(config: PPOConfig, actor: TrainingEngine) -> int:
    args: Any = actor.model.args
    return int(min(config.servers.max_seq_len, args.max_position_embeddings))


def _model_config(actor: TrainingEngine, dtype: str) -> dict[str, Any]:
    """Content of config.json. A model of transformers ("inner") has its own; ours make it of their arguments."""
    model: Any = actor.model
    if not hasattr(model, "inner"):
        return {**model.args.to_hf_config(), "dtype": dtype}
    content: dict[str, Any] = model.inner.config.to_diff_dict()
    return {"architectures": [type(model.inner).__name__], **content, "dtype": dtype}


def _on_disk(actor: TrainingEngine, *, has_adapters: bool) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]:
    """Trained parameters to the names and layouts of a checkpoint, which is what servers read."""
    if not has_adapters:
        return lambda state: _checkpoint_tensors(actor.model, state)
    from areal.engine.hf.lora import merged_copy

    def merged(_: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        # What is trained are the adapters; servers take the whole model with the adapters in it.
        whole = merged_copy(actor.model)
        return _checkpoint_tensors(whole, whole.state_dict())

    return merged


def _checkpoint_tensors(model: Any, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if not hasattr(model, "inner"):
        from areal.models.registry import get_spec

        return get_spec(model.args.model_type).state_dict_adapter(model.args).to_hf(state)
    # A tied head is the embedding under a second name: one of them is enough, and files refuse both.
    found: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() == 0 or place not in seen:
            found[name.removeprefix("inner.")] = tensor
        seen.add(place)
    return found


def _reference(actor: TrainingEngine) -> Callable[[Sequence[int]], list[float]]:
    """Log-probabilities of the trained model, for the probe after weight updates."""

    def score(tokens: Sequence[int]) -> list[float]:
        import torch

        shape = (1, len(tokens))
        none = torch.full(shape, -1)
        batch = PaddedBatch(
            tokens=torch.tensor([list(tokens)]),
            lengths=torch.tensor([len(tokens)]),
            loss_mask=torch.ones(shape),
            logp_behave=torch.zeros(shape),
            versions=none,
            turn_ids=none,
            rewards=torch.zeros(1),
            groups=torch.zeros(1, dtype=torch.int64),
            truncated=torch.zeros(1, dtype=torch.bool),
        )
        scores: list[float] = actor.forward_logp(batch)[0, 1:].tolist()
        return scores

    return score


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
