"""`EmbeddedEngine`: the in-process `areal.api.InferenceEngine`.

Requests are awaited on one event loop. A driver task on that loop runs the decode steps while there is work and yields
to the loop between two steps; everything else (`pause`, `update_weights`, ...) may be called from any thread.

    engine = EmbeddedEngine(model, config=EmbeddedEngineConfig(), eos_token_id=tokenizer.eos_token_id)
    response = await engine.agenerate(ModelRequest(input_ids=[5, 9, 2], gconfig=GenerationConfig(max_new_tokens=8)))"""

from __future__ import annotations

import asyncio
import copy
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from areal.api import (
    ConfigError,
    EngineError,
    FaultError,
    ModelError,
    ModelRequest,
    ModelResponse,
    StopReason,
    WeightUpdateMeta,
)
from areal.engine.checks import RequestLimits, SeedStream, check_parameters
from areal.engine.embedded.device.choice import make_batch
from areal.engine.embedded.sequence import Sequence
from areal.models.wrapping import refused_tokens
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Sequence as SequenceOf
    from pathlib import Path

    from torch import Tensor, nn

    from areal.engine.config import EmbeddedEngineConfig
    from areal.models.vision import VisionFormat


class StepGate:
    """A lock whose step side never blocks and never overtakes a waiting control call.

    A plain lock would not do: the driver releases and takes it again within microseconds, so a trainer thread that
    waits for it could starve; and a driver that blocked on it would stop every other coroutine of the loop.
    """

    def __init__(self) -> None:
        self._step = threading.Lock()
        self._count = threading.Lock()
        self._claims = 0

    @contextmanager
    def control(self) -> Iterator[None]:
        """Enter once no step is running; none starts until exit. Not reentrant."""
        with self._count:
            self._claims += 1
        try:
            with self._step:
                yield
        finally:
            with self._count:
                self._claims -= 1

    @contextmanager
    def step(self) -> Iterator[bool]:
        """Yield whether the caller may compute: False while a control call waits or runs."""
        if self._claims or not self._step.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._step.release()


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def private_copy(model: nn.Module, *, dtype: str, device: str) -> nn.Module:
    """Independent copy in evaluation mode without gradients. dtype, device: "auto" keeps the model's.

    Buffers keep their dtype: those of float type (e.g. routing corrections) are float32 on purpose.
    """
    own = copy.deepcopy(model).eval()
    if device != "auto":
        own.to(device=device)
    for parameter in own.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
        if dtype != "auto":
            parameter.data = parameter.data.to(_DTYPES[dtype])
    return own


def replace_weights(
    model: nn.Module, state_dict: Mapping[str, Tensor], *, version: int, frozen: frozenset[str] = frozenset()
) -> None:
    """Copy `state_dict` (native names) into `model`; dtype and device are converted.

    frozen: parameters that training never changes, which may be left out. Required are all other parameters, a tied one
    under any of its names; persistent buffers are copied when present. Raises EngineError naming missing, unknown and
    misshapen entries, before anything is changed.
    """
    targets: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **{name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if tensor is not None},
    }
    given = {id(targets[name]) for name in state_dict if name in targets}
    missing = [name for name, tensor in model.named_parameters() if id(tensor) not in given and name not in frozen]
    unknown = [name for name in state_dict if name not in targets]
    misshapen = [
        f"{name} {tuple(tensor.shape)} (expected {tuple(targets[name].shape)})"
        for name, tensor in state_dict.items()
        if name in targets and tensor.shape != targets[name].shape
    ]
    check_parameters(missing, unknown, misshapen, version=version)
    # Those of one kind together: on an accelerator one kernel copies many tensors.
    alike: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
    for name, tensor in state_dict.items():
        if tensor.data_ptr() == targets[name].data_ptr():
            continue  # weights that are shared are there already
        kind = tensor.device, tensor.dtype, targets[name].device, targets[name].dtype
        own, new = alike.setdefault(kind, ([], []))
        own.append(targets[name])
        new.append(tensor)
    with torch.no_grad():
        for own, new in alike.values():
            torch._foreach_copy_(own, new)


def load_weights(path: Path, model: nn.Module) -> Mapping[str, Tensor]:
    """Native state dict of a Hugging Face checkpoint folder, in the dtype of `model`, on the CPU.

    Raises EngineError when the folder cannot be loaded.
    """
    from areal.models import from_pretrained

    dtype = next(iter(model.parameters())).dtype
    try:
        # Models that are not of our families know how they are read.
        loaded: Any = getattr(model, "read_pretrained", from_pretrained)(path, dtype=dtype, device="cpu")
    except ModelError as error:
        raise EngineError(f"weight update refused, the engine keeps its weights: {error}") from error
    state: Mapping[str, Tensor] = loaded.state_dict()
    return state


_logger = getLogger(__name__)

# How long the driver sleeps when a control call (weights being copied) holds the gate, or the kernel is being built.
_POLL_SECONDS = 0.0005


class EmbeddedEngine:
    """Batched, key/value-cached, continuous generation in plain PyTorch.

    model: an nn.Module that implements `areal.api.CausalModel`. eos_token_id: ends every generation; None for none.
    tokenizer: needed for stop strings only; anything with `decode(list[int]) -> str`. version: of the given weights.
    share_weights: generate with the caller's own module instead of a copy. Its owner must `pause` the engine while
    changing
        weights, and call `update_weights` before `resume`; config.dtype and config.device must be "auto".
    record_routes: responses have `routes`; for models with routers of ours (ConfigError otherwise).

    Every recorded log-probability is that of one full forward of the version it is labelled with: after a weight
    update the caches of running requests are recomputed before their next token.
    """

    def __init__(
        self,
        model: Any,
        *,
        config: EmbeddedEngineConfig,
        eos_token_id: int | None,
        tokenizer: Any = None,
        version: int = 0,
        share_weights: bool = False,
        record_routes: bool = False,
    ) -> None:
        if share_weights and (config.dtype != "auto" or config.device != "auto"):
            raise EngineError(
                f"share_weights=True uses the module as it is, but the config asks for dtype {config.dtype!r} on "
                f"device {config.device!r}; leave both at 'auto'"
            )
        # Under adapters the base never changes, so that updates need not carry it.
        self._frozen = frozenset(name for name, value in model.named_parameters() if not value.requires_grad)
        if len(self._frozen) == len(list(model.parameters())):
            self._frozen = frozenset()
        self._model = model if share_weights else private_copy(model, dtype=config.dtype, device=config.device)
        self._vision: VisionFormat | None = getattr(model, "vision", None)
        self._config = config
        context = min(config.max_seq_len, model.args.max_position_embeddings)
        own_batch = getattr(self._model, "make_decode_batch", None)
        if own_batch and config.cuda_graphs == "on":
            raise ConfigError(
                f"engine.cuda_graphs is 'on', but {type(model).__name__} decodes with a cache of its own, which is not "
                f"captured; set it to 'auto'"
            )
        if record_routes and not any(getattr(self._model, "router_numbers", ())):
            raise ConfigError(
                f"record_routes asks for the experts that routers choose, and {type(model).__name__} has no router of "
                f"ours; leave actor.router_replay false"
            )
        limit = None if own_batch else getattr(model, "length_limit", None)
        if limit is not None and context > limit:
            raise ModelError(
                f"this model computes sequences of more than {limit} tokens anew from their first token on, which a "
                f"cache cannot follow; max_seq_len is {config.max_seq_len}, set it to at most {limit}"
            )
        self._seeds = SeedStream()
        self._limits = RequestLimits(
            context=context,
            vocab_size=model.args.vocab_size,
            eos_token_id=eos_token_id,
            tokenizer=tokenizer,
            refused=refused_tokens(model.args) | dict(self._vision.refused if self._vision else {}),
        )
        self._batch: Any = (
            own_batch
            or partial(
                make_batch,
                self._model,
                record_routes=record_routes,
                kernel=config.kernel,
                cuda_graphs=config.cuda_graphs,
            )
        )(
            max_rows=config.max_batch_size,
            max_length=self._limits.context,
            device=next(self._model.parameters()).device,
            # Inference mode is faster, but what a model caches under it can never enter a training graph.
            guard=torch.no_grad if share_weights else torch.inference_mode,
        )
        self._version = version
        self._gate = StepGate()
        self._paused = False
        self._closed = False
        self._cancelled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._driver: asyncio.Task[None] | None = None
        self._tally = dict.fromkeys(("requests", "finished", "aborted", "failed", "cancelled", "weight_updates"), 0)

    @property
    def version(self) -> int:
        """Version of the weights that produce the next token."""
        return self._version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._limits.context

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Generate until a stop token or string, the budget, or an abort. Cancelling the caller frees the slot.

        Raises FaultError(DATA_INVALID) for a request that can never run, FaultError(GENERATION_FAILED) when the model
        raises or its logits are not finite, ConfigError for stop strings without tokenizer, EngineError after `close`.
        """
        self._require_open()
        if request.images and self._vision is None:
            raise ConfigError(
                f"request {request.request_id} has images, and the model reads text only; use an image-text model with "
                f"model.implementation=transformers"
            )
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._adopt(loop)
        request = self._seeds.seeded(request)
        sequence = Sequence(request=request, future=loop.create_future(), limits=self._limits)
        self._tally["requests"] += 1
        self._batch.waiting.append(sequence)
        self._ensure_driver()
        try:
            return await sequence.future
        except asyncio.CancelledError:
            self._tally["cancelled"] += sequence.future.cancelled()
            self._cancelled = True
            self._ensure_driver()
            raise

    def pause(self) -> None:
        """Return once no token is being computed; until `resume` none will be. Idempotent."""
        self._paused = True
        with self._gate.control():
            self._drain()

    def resume(self) -> None:
        """Continue after `pause`. Idempotent."""
        self._paused = False
        self._on_loop(self._ensure_driver)

    def abort(self, request_ids: SequenceOf[str] | None = None) -> int:
        """End the given requests (all when None) with what they have so far; return how many were ended."""
        wanted = None if request_ids is None else frozenset(request_ids)
        with self._gate.control():
            return self._abort(wanted)

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        """Switch to new weights between two tokens, all or nothing; running requests go on under the new version.

        Raises EngineError for a version that is not newer, or names and shapes that do not fit; the old weights stay.
        """
        self._require_newer(meta)
        # Reading files takes long and needs no gate: tokens flow on meanwhile.
        state = load_weights(meta.path, self._model) if meta.path is not None else meta.state_dict
        assert state is not None, "WeightUpdateMeta checks that kind 'memory' has a state dict"
        with self._gate.control():
            self._require_newer(meta)
            if self._vision is not None:
                holder: Any = self._model
                state = holder.changed_only(state)
            self._drain()
            replace_weights(self._model, state, version=meta.version, frozen=self._frozen)
            self._batch.preempt(self._version)
            self._version = meta.version
            self._tally["weight_updates"] += 1

    def stats(self) -> Mapping[str, float]:
        """Counters since start, and the present number of active and waiting requests.

        generated_tokens: sampled. prefill_tokens: prompt tokens computed; shared_tokens: prompt tokens taken from an
        equal prompt instead; recomputed_tokens: computed again after a weight update. decode_steps: forwards;
        replayed_steps: those of them, on a GPU, that had been captured.
        """
        now = {"active": len(self._batch.active), "waiting": len(self._batch.waiting), "version": self._version}
        return {name: float(value) for name, value in {**self._batch.counters, **self._tally, **now}.items()}

    def close(self) -> None:
        """End all requests (they return their partial output) and free weights and caches. Idempotent."""
        with self._gate.control():
            if self._closed:
                return
            self._closed = True
            self._abort(None)
            self._batch.free()
            self._model = None

    # ---- the driver, on the event loop

    def _ensure_driver(self) -> None:
        """Start the driver when there is something to do. Runs on the loop."""
        if self._closed or self._paused or not self._batch.has_work:
            return
        if self._driver is None or self._driver.done():
            assert self._loop is not None, "requests are only accepted on a loop"
            self._driver = self._loop.create_task(self._drive(), name="embedded-engine")

    async def _drive(self) -> None:
        """One step after another. Between two steps all ready coroutines run, so what they ask for joins the next."""
        delay = 0.0
        while True:
            await asyncio.sleep(delay)
            with self._gate.step() as allowed:
                # No await between this check and the end of the task: `resume` cannot slip in between.
                if self._paused or self._closed or not self._batch.has_work:
                    self._driver = None
                    return
                steps = allowed and self._batch.is_ready
                if steps:
                    self._step()
            delay = 0.0 if steps else _POLL_SECONDS

    def _step(self) -> None:
        if self._cancelled:
            self._cancelled = False
            self._drain()
            self._batch.remove(lambda sequence: sequence.future.done(), self._version)
        with self._threads():
            outcomes = self._batch.step(self._version)
        for sequence, outcome in outcomes:
            self._settle(sequence, outcome)

    def _drain(self) -> None:
        """Wait for steps that a device still computes, and hand out what has ended. Needs the gate."""
        for sequence, outcome in self._batch.drain(self._version):
            self._settle(sequence, outcome)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        wanted, before = self._config.num_threads, torch.get_num_threads()
        if wanted in (0, before):
            yield
            return
        torch.set_num_threads(wanted)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    # ---- results and threads

    def _abort(self, request_ids: frozenset[str] | None) -> int:
        """Needs the gate."""
        self._drain()
        removed = self._batch.remove(
            lambda sequence: request_ids is None or sequence.request.request_id in request_ids, self._version
        )
        alive = [sequence for sequence in removed if not sequence.future.done()]
        for sequence in alive:
            self._settle(sequence, StopReason.ABORT)
        return len(alive)

    def _settle(self, sequence: Sequence, outcome: StopReason | FaultError) -> None:
        """Hand the result to the awaiting coroutine. The sequence has left the batch."""
        if isinstance(outcome, FaultError):
            self._on_loop(self._deliver, sequence.future, None, outcome)
        else:
            self._on_loop(self._deliver, sequence.future, sequence.response(outcome), None)

    def _deliver(
        self, future: asyncio.Future[ModelResponse], response: ModelResponse | None, fault: FaultError | None
    ) -> None:
        if future.done():  # cancelled meanwhile
            return
        if response is None:
            assert fault is not None, "an outcome is a response or a fault"
            self._tally["failed"] += 1
            future.set_exception(fault)
            return
        self._tally["aborted" if response.stop_reason is StopReason.ABORT else "finished"] += 1
        future.set_result(response)

    def _on_loop(self, function: Any, *arguments: Any) -> None:
        """Call on the loop's thread: now when this is it, else soon. Without a live loop nobody waits: do nothing."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self._loop_thread:
            function(*arguments)
            return
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop closed since the check above
            _logger.debug("the event loop closed before a result could be delivered")

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve `loop` from now on. Requests of a loop that ended are dropped; a live one keeps its own."""
        with self._gate.control():
            previous = self._loop
            dead = previous is None or previous.is_closed()
            self._drain()
            self._batch.remove(lambda sequence: dead or sequence.future.done(), self._version)
            if self._batch.has_work:
                raise EngineError(
                    "agenerate was called on a second event loop while requests of the first are in progress; "
                    "await all requests of one engine on one loop"
                )
            self._loop, self._loop_thread, self._driver = loop, threading.get_ident(), None

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the embedded engine is closed; build a new one")

    def _require_newer(self, meta: WeightUpdateMeta) -> None:
        self._require_open()
        if meta.version <= self._version:
            raise EngineError(
                f"weight update to version {meta.version} refused: the engine is at version {self._version}, "
                f"and versions must increase"
            )
