"""Train in a process of its own, beside the one that samples, so that neither waits for the other's interpreter lock.

    with LearnerStart() as started:                            # that process loads torch meanwhile
        models = LearnerProcess(config, started).create(build_models, config, tokenizer, total_steps)
        models.run(PolicyModels.train, divided, counts)    # in that process
        models.local.actor.version                         # what is known of them here

To the trainer `models` is what `RankGroup.create` gives: it leads the other process as it leads ranks. It waits for
each response, so a step has the same order and the same numbers as in one process; only rollouts go on meanwhile,
without sharing an interpreter with the training.

Requests and responses are pickled over a socket that only the two have, tensors beside it (`areal.trainer.wire`).
Weights go through memory that both map: it has no name, so nothing stays behind, however the two end. One buffer is
enough: it is written while a version is published and read before the next request.

Failures. An error in that process is raised here as the same error, and both go on. When that process ends, the call
under way, or the next one, raises an EngineError that says how. When this one ends, the other is killed at once.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar, cast

import torch

from areal.api import EngineError
from areal.engine.train.divided import DividedBatch
from areal.engine.train.ranks import Ranks
from areal.models.blocks.linear import current_products, use_products
from areal.trainer.assembly import resolve_device
from areal.trainer.configuration.threads import configure_threads, current_threads
from areal.trainer.policy_models import PolicyModels
from areal.trainer.rank_group import Distributed, RankGroup
from areal.trainer.wire import WireMessage, receive
from areal.utils import tracing
from areal.utils.freed_memory import keep_freed_memory
from areal.utils.logging import PACKAGE_LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from torch import Tensor

    from areal.algorithm.objective import Objective
    from areal.api import PaddedBatch
    from areal.trainer.config import PPOConfig
    from areal.trainer.learner_start import LearnerStart

_T = TypeVar("_T")
_P = ParamSpec("_P")
_R = TypeVar("_R")

_ALIGNMENT: Final = 64
"""Bytes at whose multiples tensors begin."""


class TensorPlace(NamedTuple):
    """Where a tensor is in the shared memory."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _ComputeSettings:
    """What the other process computes with: as this one would, since both threads and library change last digits."""

    threads: int
    products: Any
    keeps_memory: bool
    log_level: int


@dataclass(frozen=True, slots=True)
class _Request:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Shared:
    """In place of a result that is in the shared memory."""

    places: tuple[TensorPlace, ...] | None
    """None when they are those of the time before."""


@dataclass(slots=True, kw_only=True)
class _Response:
    value: Any = None
    error: BaseException | None = None
    version: int = 0
    """Of the actor."""
    began: int = 0
    ended: int = 0
    """Of `time.perf_counter_ns`, which the processes of a machine share."""
    logged: list[logging.LogRecord] = field(default_factory=list)


class SharedTensors:
    """Named tensors in memory that two processes have mapped, behind one file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._places: tuple[TensorPlace, ...] = ()
        self._tensors: dict[str, Tensor] = {}

    def write(self, tensors: Mapping[str, Tensor]) -> _Shared:
        """Copy them there; returns where they are, for `read` in the other process."""
        places: list[TensorPlace] = []
        end = 0
        for name, tensor in tensors.items():
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + tensor.numel() * tensor.element_size()
            places.append(TensorPlace(name, tensor.dtype, tuple(tensor.shape), start, end))
        is_new = tuple(places) != self._places
        if is_new:
            # Never shorter, which would pull away the memory of tensors that somebody still has.
            os.ftruncate(self._descriptor, max(1, end, os.fstat(self._descriptor).st_size))
            self._map(tuple(places))
        with torch.no_grad():
            for name, target in self._tensors.items():
                target.copy_(tensors[name])
        return _Shared(self._places if is_new else None)

    def read(self, shared: _Shared) -> dict[str, Tensor]:
        """Return the tensors that were written last; the next `write` changes them."""
        if shared.places is not None:
            self._map(shared.places)
        return dict(self._tensors)

    def _map(self, places: tuple[TensorPlace, ...]) -> None:
        whole = torch.frombuffer(mmap.mmap(self._descriptor, 0), dtype=torch.uint8)
        self._places = places
        self._tensors = {each.name: whole[each.start : each.end].view(each.dtype).view(each.shape) for each in places}


class LearnerProcess:
    """Asks the process that `areal.trainer.learner_start` started."""

    def __init__(self, config: PPOConfig, started: LearnerStart) -> None:
        self._config, self._started = config, started
        self._memory = SharedTensors(started.memory)
        self._lock = threading.Lock()
        self._broken = ""
        self.version = 0
        """Of the actor's weights."""

    def create(self, factory: Callable[_P, PolicyModels], *args: _P.args, **options: _P.kwargs) -> RemoteModels:
        """Call `factory(*args, **options)` in that process, which keeps what it returns; once."""
        computing = _ComputeSettings(
            threads=current_threads(),
            products=current_products(),
            keeps_memory=resolve_device(self._config.actor.device) == "cpu",
            log_level=logging.getLogger(PACKAGE_LOGGER).getEffectiveLevel(),
        )
        self.call(_create, computing, factory, args, options)
        # Built anew: what it is made of need not be something that can be sent.
        return RemoteModels(self, self._config, self._config.objective.build())

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call `function(models, *args, **options)` in that process and return the result.

        Raises what it raises. Raises EngineError when the process has ended.
        """
        message = WireMessage(_Request(function, args, options))
        with self._lock:
            if self._broken:
                raise EngineError(self._broken)
            try:
                message.send(self._started.connection)
                response = receive(self._started.connection).load()
            except (EOFError, OSError) as error:
                raise self._ended(function) from error
            except BaseException:
                # Interrupted while it waited: the response to come would be taken for that to the next request.
                self._broken = f"{_name(function)} in the process that trains was interrupted"
                raise
        return self._settle(function, response)

    def _settle(self, function: Callable[..., Any], response: _Response) -> Any:
        for record in response.logged:
            logging.getLogger(record.name).handle(record)
        tracing.complete(_name(function), response.began, response.ended, process=(self._started.pid, "learner"))
        self.version = response.version
        if response.error is not None:
            raise response.error
        return self._memory.read(response.value) if isinstance(response.value, _Shared) else response.value

    def _ended(self, function: Callable[..., Any]) -> EngineError:
        self._broken = f"the process that trains has ended during {_name(function)}: {self._started.ending()}"
        return EngineError(
            self._broken,
            fix="start the same command again, which continues from the newest checkpoint; SIGKILL is mostly the "
            "system's, for want of memory",
        )


class RemoteModels(Distributed[PolicyModels]):
    """The models of a `LearnerProcess`, to the trainer."""

    def __init__(self, process: LearnerProcess, config: PPOConfig, objective: Objective) -> None:
        self._process = process
        outline = PolicyOutline(config, objective, RemoteActor(process, config))
        super().__init__(RankGroup(), 0, cast("PolicyModels", outline))

    def run(self, function: Callable[Concatenate[PolicyModels, _P], _R], *args: _P.args, **options: _P.kwargs) -> _R:
        """Call `function(models, *args, **options)` in that process and return it; see `LearnerProcess.call`."""
        found: _R = self._process.call(function, *args, **options)
        return found

    def drop(self) -> None:
        """Refuse: they live as long as their process."""
        raise EngineError("the models of a process end with it; end that")


class RemoteActor:
    """What the trainer asks of an actor without its model."""

    model = None
    """It is not here: `TrainedPolicy.whole_model` makes one with the same weights."""

    def __init__(self, process: LearnerProcess, config: PPOConfig) -> None:
        self._process = process
        self.ranks = Ranks(torch.device(resolve_device(config.actor.device)))
        """Those of a process that is alone."""

    @property
    def version(self) -> int:
        """See `TrainingEngine.version`."""
        return self._process.version

    def divide(self, batch: PaddedBatch) -> DividedBatch:
        """See `TrainingEngine.divide`."""
        return DividedBatch.of(batch, self.ranks, keep_groups=True)

    def weights(self) -> Mapping[str, Tensor]:
        """See `TrainingEngine.weights`: what the next version changes."""
        found: Mapping[str, Tensor] = self._process.call(PolicyModels.weights)
        return found


class PolicyOutline:
    """What the trainer asks of `PolicyModels` without running them."""

    teachers = None
    """Runs with teachers train in one process."""

    def __init__(self, config: PPOConfig, objective: Objective, actor: RemoteActor) -> None:
        self.config = config
        self.objective = objective
        self.actor = actor
        self.states = RemoteStates(actor.ranks)


@dataclass(frozen=True, slots=True)
class RemoteStates:
    """`EngineStates` of engines that are elsewhere."""

    ranks: Ranks
    is_sharded: bool = True
    """They are written where they are."""


def serve(leader: Connection[Any, Any], memory: int) -> None:
    """Answer the questions of the trainer until it closes the connection. memory: descriptor of the shared memory."""
    shared, logs = SharedTensors(memory), _Records()
    logging.getLogger(PACKAGE_LOGGER).addHandler(logs)
    models: PolicyModels | None = None
    while True:
        try:
            received = receive(leader)
        except (EOFError, OSError):
            return
        response = _Response(began=time.perf_counter_ns())
        try:
            request = received.load()
            del received  # nothing of a batch is kept while the trainer samples the next one
            if request.function is _create:
                models = _create(*request.args)
            else:
                found = request.function(models, *request.args, **request.options)
                is_weights = request.function in (PolicyModels.weights, PolicyModels.publish)
                response.value = shared.write(found) if is_weights else found
            del request
        except Exception as error:  # noqa: BLE001 - it is the trainer's, who decides what it means
            response.error = _portable(error)
        response.version = 0 if models is None else models.actor.version
        response.ended, response.logged = time.perf_counter_ns(), logs.take()
        try:
            message = WireMessage(response)
        except Exception as error:  # noqa: BLE001 - a result that cannot be sent is the trainer's error as well
            message = WireMessage(_Response(error=_portable(error), version=response.version))
        try:
            message.send(leader)
        except OSError:
            return


def _create(
    computing: _ComputeSettings, factory: Callable[..., PolicyModels], args: tuple[Any, ...], options: dict[str, Any]
) -> PolicyModels:
    logging.getLogger(PACKAGE_LOGGER).setLevel(computing.log_level)
    configure_threads(computing.threads)
    use_products(computing.products)
    if computing.keeps_memory:
        keep_freed_memory()
    return factory(*args, **options)


class _Records(logging.Handler):
    """Keeps log lines until they travel with a response: files and formats are the trainer's."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, as text."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info))
        record.msg, record.args, record.exc_info = message, (), None
        self._kept.append(record)

    def take(self) -> list[logging.LogRecord]:
        """Return them once."""
        kept, self._kept = self._kept, []
        return kept


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent, with where it was raised."""
    lines = "".join(traceback.format_exception(error))
    try:
        sent = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - errors of any library may refuse in any way
        sent = EngineError(f"{type(error).__name__}: {error}")
    sent.__cause__ = None
    sent.add_note(f"raised in the process that trains:\n{lines}")
    return cast("Exception", sent)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function)).rpartition(".")[2]
