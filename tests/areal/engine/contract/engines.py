"""The engines the contract is checked on, each as users build it: in this process, or with server processes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from areal.api import NO_VERSION, GenerationConfig, ModelRequest, ModelResponse, ServerInstance, WeightUpdateMeta
from areal.engine.checks import RequestLimits
from areal.engine.config import EmbeddedEngineConfig, ServerEngineConfig, SGLangConfig, VLLMConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.server.client import is_healthy
from areal.engine.server.engine import ServerEngine
from areal.engine.server.errors import ServerRefusedError  # noqa: F401 - for tests that share this module
from areal.engine.server.updates import ProbeReference
from areal.engine.sglang.adapter import SGLangAdapter
from areal.engine.sglang.launch import prepare as prepare_sglang
from areal.engine.vllm.adapter import VLLMAdapter
from areal.engine.vllm.identity import identify, release
from areal.engine.vllm.launch import prepare
from areal.infra.supervisor.addresses import AddressPool
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.process import free_port
from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand
from areal.infra.weights.broadcast import BroadcastCarrier
from areal.infra.weights.files import FileCarrier
from areal.infra.weights.stream import GroupLinks, OwnPart, ShardStream
from areal.models import from_config
from areal.models.registry import get_spec
from areal.trainer.shard_streams import stored_units, stream_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from areal.engine.server.routes import ServedRouters

ROOT = Path(__file__).resolve().parents[4]
VLLM_PYTHON = ROOT / ".venv-vllm/bin/python"
SGLANG_PYTHON = ROOT / ".venv-sglang/bin/python"
CONTEXT = 512
TINY: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 20,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    # Tied: the head that is easily left behind by a weight update.
    "tie_word_embeddings": True,
    # Far from uniform predictions, so that a wrong weight, position or cache shows.
    "initializer_range": 0.25,
}


def vllm_reports_routes() -> bool:
    """Whether the vLLM here can: on CPUs with what `setup_vllm.sh --routes` adds."""
    return VLLM_PYTHON.is_file() and any(VLLM_PYTHON.parents[1].glob("lib/python*/site-packages/triton"))


class Letters:
    """A tokenizer of one letter per token, for stop strings."""

    eos_token_id = None

    @staticmethod
    def decode(ids):
        return "".join(chr(ord("a") + token) for token in ids)


@dataclass
class Subject:
    """An engine, and a model that always has the weights the engine should have."""

    engine: Any
    model: Any
    kind: str
    old_models: dict[int, Any] = field(default_factory=dict)
    """Version to a copy of the model as it was."""
    folder: Path | None = None
    """Of the servers, for `answers_held`."""

    @property
    def seeded(self) -> bool:
        """Whether a seed decides what is sampled."""
        return self.kind != "sglang" or torch.cuda.is_available()

    @staticmethod
    def request(*prompt: int, new: int = 16, seed: int = 0, **options: Any) -> ModelRequest:
        """A generation; options go to GenerationConfig."""
        return ModelRequest(
            input_ids=list(prompt) or [3, 4, 5], gconfig=GenerationConfig(max_new_tokens=new, **options), seed=seed
        )

    def generate(self, *requests: ModelRequest) -> list[ModelResponse]:
        """All at once, on a loop of their own."""

        async def main() -> list[ModelResponse]:
            return await asyncio.wait_for(asyncio.gather(*map(self.engine.agenerate, requests)), 60)

        return asyncio.run(main())

    def change_weights(self, seed: int) -> None:
        """Move the model's weights; the engine keeps its own."""
        self.old_models[self.engine.version] = copy.deepcopy(self.model)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)

    def publish(self) -> int:
        """Give the engine the model's weights; returns their version."""
        version = self.engine.version + 1
        self.engine.update_weights(
            WeightUpdateMeta(kind="memory", version=version, state_dict=dict(self.model.named_parameters()))
        )
        return version

    def logprobs(self, model: Any, response: ModelResponse, temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities [outputs, vocab] of one full forward."""
        return full_forward(model, [*response.input_tokens, *response.output_tokens], temperature)[
            len(response.input_tokens) - 1 : -1
        ]

    def deviation(
        self, response: ModelResponse, *, model: Any = None, temperature: float = 1.0, part: slice = slice(None)
    ) -> float:
        """Largest difference between recorded and recomputed log-probabilities of some of the output tokens."""
        chosen = torch.tensor(response.output_tokens)[:, None]
        expected = self.logprobs(model or self.model, response, temperature).gather(1, chosen)[:, 0]
        return float((expected - torch.tensor(response.output_logprobs))[part].abs().max())


def full_forward(model: Any, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    ids, length = torch.tensor(tokens), len(tokens)
    with torch.no_grad():
        logits = model.forward(ids, torch.arange(length), torch.tensor([0, length], dtype=torch.int32), length).float()
    return torch.log_softmax(logits / temperature, dim=-1)


def build_model(**changes: Any) -> Any:
    return from_config({**TINY, **changes}, seed=1)


def embedded(model: Any, folder: Path) -> Any:
    """An engine that `answers_held(folder)` holds."""
    engine = EmbeddedEngine(
        model, config=EmbeddedEngineConfig(max_seq_len=CONTEXT), eos_token_id=None, tokenizer=Letters()
    )
    step, hold, done, began = engine._gate.step, folder / "model" / "hold", 0, None

    @contextlib.contextmanager
    def held_step() -> Iterator[bool]:
        nonlocal done, began
        held_since = hold.stat().st_mtime_ns if hold.exists() else None
        # Counted anew also where one hold follows another without a step between them.
        done, began = (done + 1 if held_since == began else 1), held_since
        if held_since is not None and done > 24:
            yield False
        else:
            with step() as allowed:
                yield allowed

    engine._gate.step = held_step
    return engine


def double_command(api: str, folder: Path, fault: str = "", *, routes: bool = False):
    """(index, port) -> command of a double whose model folder is `folder`. routes: whether it reports experts."""
    if api == "sglang":
        return sglang_double_command(folder, fault, routes=routes)
    script = Path(__file__).with_name("double.py")

    def command(index: int, port: int) -> ServerCommand:
        return ServerCommand(
            arguments=[sys.executable, str(script), api, str(folder), str(port), fault],
            environment={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "AREAL_TEST_ROUTES": "1" if routes else ""},
        )

    return command


def sglang_double_command(folder: Path, fault: str = "", *, routes: bool = False):
    """(index, port) -> command of the double, which is started with the arguments and variables of the real server."""
    script = Path(__file__).with_name("sglang_double.py")
    content = json.loads((folder / "config.json").read_text())
    command = prepare_sglang(
        SGLangConfig(python=sys.executable, deterministic=True),
        ServerEngineConfig(dtype="float32", stream_interval=4),
        folder=folder / "launch",
        model_config=content,
        context=content["max_position_embeddings"],
        on_cpu=False,
        records_routes=routes,
    )

    def of(index: int, port: int) -> ServerCommand:
        (python, _, _, *arguments), variables = command(index, port)
        return ServerCommand(
            arguments=[python, str(script), "--fault", fault, *arguments],
            environment=variables | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    return of


def write_config(folder: Path, model: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**model.args.to_hf_config(), "dtype": "float32"}))
    return folder


def vllm_command(folder: Path, model: Any, config: ServerEngineConfig, *, routes: bool = False):
    """(index, port) -> command of a real vLLM server."""
    command = prepare(
        VLLMConfig(python=str(VLLM_PYTHON)),
        config,
        folder=folder,
        model_config={**model.args.to_hf_config(), "dtype": "float32"},
        context=CONTEXT,
        on_cpu=True,
        records_routes=routes,
    )

    def of(index: int, port: int) -> ServerCommand:
        arguments, environment = command(index, port)
        return ServerCommand(arguments=arguments, environment=environment)

    return of


def sglang_command(folder: Path, model: Any, config: ServerEngineConfig):
    """(index, port) -> command of a real SGLang server."""
    command = prepare_sglang(
        # Deterministic: seeds decide, as the contract asks. SGLang can do that on GPUs only.
        SGLangConfig(python=str(SGLANG_PYTHON), deterministic=torch.cuda.is_available(), memory_fraction=0.3),
        config,
        folder=folder,
        model_config={**model.args.to_hf_config(), "dtype": "float32"},
        context=CONTEXT,
        on_cpu=not torch.cuda.is_available(),
    )

    def of(index: int, port: int) -> ServerCommand:
        arguments, environment = command(index, port)
        return ServerCommand(arguments=arguments, environment=environment)

    return of


def with_servers(
    api: str,
    command: Any,
    model: Any,
    folder: Path,
    *,
    carrier: Any = None,
    servers: int = 1,
    pool: Any = None,
    adapter: Any = None,
    routers: ServedRouters | None = None,
    **options: Any,
) -> ServerEngine:
    """An engine with server processes, started; `wait_ready` before use. pool, adapter: instead of those for `command`
    and `api`. routers: of a model whose routes are recorded."""
    config = ServerEngineConfig(
        **{
            "dtype": "float32",
            "num_servers": servers,
            "max_seq_len": CONTEXT,
            "stream_interval": 4,
            "probe_tokens": 24,  # The whole vocabulary.
            "wait_seconds": 240.0,
        }
        | options
    )
    names = get_spec(model.args.model_type).state_dict_adapter(model.args)
    adapter = adapter or {"vllm": VLLMAdapter, "sglang": SGLangAdapter}[api]()
    pool = pool or LocalSupervisor(
        [f"{api}-{index}" for index in range(servers)],
        command,
        health=is_healthy,
        config=SupervisorConfig(poll_seconds=0.1, restart_pause_seconds=0.1, startup_seconds=240.0),
        log_folder=folder / "logs",
    )
    return ServerEngine(
        adapter,
        pool=pool,
        carrier=carrier or FileCarrier(folder / "weights", model_config=model.args.to_hf_config()),
        config=config,
        limits=RequestLimits(
            context=CONTEXT,
            vocab_size=model.args.vocab_size,
            eos_token_id=None,
            tokenizer=Letters(),
            has_adapters=config.max_adapters > 0,
        ),
        to_hf=names.to_hf,
        weights=names.to_hf(dict(model.named_parameters())),
        reference=ProbeReference(
            score=lambda tokens, _: (
                full_forward(model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
            )
        ),
        routers=routers,
    )


def given_pool(addresses: Sequence[str], owner: str, *, patience_seconds: float = 1.0, **changes: Any) -> AddressPool:
    """Servers that somebody else has started, for the trainer `owner`; changes go to SupervisorConfig."""
    return AddressPool(
        addresses,
        name="vllm",
        identify=lambda url, timeout: identify(url, timeout, owner=owner),
        health=is_healthy,
        release=lambda url, timeout: release(url, timeout, owner=owner),
        config=SupervisorConfig(
            **{"poll_seconds": 0.1, "restart_pause_seconds": 0.1, "health_timeout_seconds": 5.0, "max_restarts": 1}
            | changes
        ),
        patience_seconds=patience_seconds,
    )


@contextlib.contextmanager
def forked_double(
    server: Any, api: str, folder: Path, model: Any, *, fault: str = "", routes: bool = False
) -> Iterator[str]:
    """Address of a double that the fork server starts; it needs not be ready yet."""
    port = free_port()
    command = double_command(api, write_config(folder / "model", model), fault, routes=routes)(0, port)
    variables = {**command.environment, "AREAL_SERVER_INCARNATION": RunningServer.incarnation + fault}
    process = server.start(command.arguments[1], command.arguments[2:], environment=variables)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


@contextlib.contextmanager
def answers_held(folder: Path) -> Iterator[None]:
    """Let no long answer of the doubles and embedded engines that have `folder` end, so that what is done meanwhile
    meets it, however late: they stop after some 20 tokens. Real servers are not held."""
    hold = folder / "model" / "hold"
    hold.parent.mkdir(exist_ok=True)
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


class RunningServer:
    """`ServerPool` over one server that somebody else ends."""

    size = 1
    may_grow = False
    incarnation = "life-0"

    def __init__(self, url: str) -> None:
        self._instance = ServerInstance(name="server-0", incarnation=self.incarnation, url=url)

    def start(self, listener: Any) -> None:
        """Announce the server when it answers."""
        self._listener = listener
        threading.Thread(target=self._announce, daemon=True).start()

    def _announce(self) -> None:
        while not is_healthy(self._instance.url, 1.0):
            time.sleep(0.02)
        self._listener.server_up(self._instance)

    def evict(self, instance: ServerInstance, reason: str) -> None:
        """Give up at once; no contract test breaks its server."""
        self._listener.server_retired(instance.name, reason)

    def close(self) -> None:
        """Leave the server alone."""


class LoneRank:
    """`StreamingRanks` of one process; `train` changes the weights, as a step does."""

    def __init__(self, model):
        self.model, self.version, self.links, self.session = model, 0, None, 0
        whole = {name: tuple((0, size) for size in tensor.shape) for name, tensor in model.named_parameters()}
        held = {
            name: (tuple(tensor.shape), tensor.dtype, tensor.dtype, whole[name])
            for name, tensor in model.named_parameters()
        }
        self.own = {
            name: OwnPart(tensor=tensor, bounds=whole[name], dtype=tensor.dtype)
            for name, tensor in model.named_parameters()
        }
        self.plan, self.outline = stream_model(
            stored_units(model), [held], served_dtype="float32", bucket_bytes=16384, max_collectors=8
        )

    def layout(self):
        return self.plan.layout

    def is_at(self, version):
        return version == self.version

    def stream(self, order, store):
        if order.session != self.session:
            self.links, self.session = GroupLinks(order, self.plan.layout, 0, store=store), order.session
        if not self.is_at(order.version):
            self.links.announce(json.dumps({"failed": "training has gone on"}))
            return None
        known = None if order.since == NO_VERSION else self.digests
        outcome = ShardStream(self.plan, self.own, self.links, rank=0, device="cpu", known=known).run()
        self.digests = outcome.digests
        return outcome


def gloo_carrier() -> BroadcastCarrier:
    return BroadcastCarrier(backend="gloo", device="cpu", bucket_bytes=4096, timeout_seconds=60.0)
