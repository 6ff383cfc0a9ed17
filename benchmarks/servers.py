"""Real vLLM servers for benchmarks: the engine as a trainer builds it around its actor, with any carrier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from common import VLLM_PYTHON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.api import WeightCarrier
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import ServerAdapter
    from areal.engine.server.engine import ServerEngine
    from areal.engine.server.publishing import AdapterBase
    from areal.engine.train.engine import TrainingEngine
    from areal.infra.supervisor.supervisor import ServerCommand

STARTUP_SECONDS = 300.0
GPU_SHARE = 0.3
"""Of a GPU's memory that servers get beside a trainer."""


def vllm_engine(
    actor: TrainingEngine,
    folder: Path,
    *,
    context: int,
    cores: tuple[str, ...] = ("",),
    on_cuda: bool = False,
    carrier: WeightCarrier | None = None,
    adapter: ServerAdapter | None = None,
    **options: Any,
) -> ServerEngine:
    """Start an engine over a server per entry of `cores` (VLLM_CPU_OMP_THREADS_BIND; "" leaves it to vLLM).

    actor: one of our families; with adapters, only they travel. on_cuda: all share the GPU of the trainer, which leaves
    them GPU_SHARE of its memory together. carrier: shared memory when None. adapter: vLLM's own when None. options: of
    ServerEngineConfig, float32 by default. The caller closes it.
    """
    from areal.engine.checks import RequestLimits
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.client import is_healthy
    from areal.engine.server.engine import ServerEngine
    from areal.engine.server.updates import ProbeReference
    from areal.engine.vllm.adapter import VLLMAdapter
    from areal.infra.supervisor.config import SupervisorConfig
    from areal.infra.supervisor.supervisor import LocalSupervisor
    from areal.infra.weights.files import FileCarrier

    model: Any = actor.model
    config = ServerEngineConfig(
        **{"dtype": "float32", "num_servers": len(cores), "max_seq_len": context, "wait_seconds": STARTUP_SECONDS}
        | options
    )
    to_hf, base = _what_travels(actor)
    pool = LocalSupervisor(
        [f"vllm-{index}" for index in range(len(cores))],
        _commands(model, folder, config, cores, context=context, on_cuda=on_cuda),
        health=is_healthy,
        config=SupervisorConfig(poll_seconds=0.2, startup_seconds=STARTUP_SECONDS, max_restarts=0),
        log_folder=folder / "logs",
    )
    engine = ServerEngine(
        adapter or VLLMAdapter(),
        pool=pool,
        carrier=carrier or FileCarrier.in_memory("/dev/shm"),
        config=config,
        limits=RequestLimits(context=context, vocab_size=model.args.vocab_size, eos_token_id=None, tokenizer=None),
        to_hf=to_hf,
        weights=to_hf(actor.weights()),
        base=base,
        reference=ProbeReference(score=lambda tokens, images: log_probabilities(model, list(tokens))),
    )
    try:
        engine.wait_ready()
    except BaseException:
        engine.close()
        raise
    return engine


def _what_travels(
    actor: TrainingEngine,
) -> tuple[Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]], AdapterBase | None]:
    """From trained parameters to tensors for servers, and what adapters go on top of."""
    if actor.config.lora is None:
        from areal.engine.hf.on_disk import checkpoint_tensors

        return lambda state: checkpoint_tensors(actor.model, state), None
    from areal.engine.hf.on_disk import AdaptersOnDisk, base_tensors
    from areal.engine.server.publishing import AdapterBase

    adapters = AdaptersOnDisk.of(actor.model)
    return adapters.factors, AdapterBase(tensors=base_tensors(actor.model), changes=adapters.changes)


def _commands(
    model: Any, folder: Path, config: ServerEngineConfig, cores: tuple[str, ...], *, context: int, on_cuda: bool
) -> Callable[[int, int], ServerCommand]:
    from areal.engine.config import VLLMConfig
    from areal.engine.vllm.launch import prepare
    from areal.infra.supervisor.supervisor import ServerCommand

    vllm = VLLMConfig(python=str(VLLM_PYTHON), gpu_memory_utilization=GPU_SHARE / len(cores), enforce_eager=not on_cuda)
    commands = [
        prepare(
            replace(vllm, cpu_cores=bound),
            config,
            folder=folder / f"server-{index}",
            model_config=model.args.to_hf_config() | {"dtype": config.dtype},
            context=context,
            on_cpu=not on_cuda,
        )
        for index, bound in enumerate(cores)
    ]

    def command(index: int, port: int) -> ServerCommand:
        arguments, environment = commands[index](index, port)
        return ServerCommand(arguments=arguments, environment=environment)

    return command


def log_probabilities(model: nn.Module, tokens: list[int]) -> list[float]:
    """Return what the model gives to all tokens but the first."""
    import torch

    device, length = next(model.parameters()).device, len(tokens)
    ids, positions = torch.tensor(tokens, device=device), torch.arange(length, device=device)
    with torch.no_grad():
        logits = model(ids, positions, torch.tensor([0, length], dtype=torch.int32), length).float()
    found: list[float] = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0].tolist()
    return found
