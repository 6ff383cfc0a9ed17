"""Run the same functions on the objects of every rank, led by rank 0, which gets the results.

    # rank 0                                                    # every other rank
    group = RankGroup(connections)                              exit_code = serve(connection)
    learner = group.create(SFTLearner, config, tokenizer, total_steps)
    stats = learner.run(SFTLearner.learn, engine.divide(batch), denominators)
    group.end(0)

`learner` is a `Distributed[SFTLearner]`: one object per rank, and `learner.run(SFTLearner.learn, batch, numbers)` calls
`SFTLearner.learn(object, batch, numbers)` on each of them, also on rank 0's own (`learner.local`), whose result it
returns.
The trainer of rank 0 leads a run as if it were alone; a model that is split over ranks needs of the others only that
they do the same at the same time. A group of one rank calls the function directly and copies nothing.

Functions are pickled by reference, their arguments by value, over authenticated connections
(`areal.trainer.run`), tensors beside them as they are (`areal.trainer.wire`). An argument that differs by rank is a
`PerRank`: each rank is given its own, so that a batch that is divided over ranks is sent once and not to each of them.
Waiting has no limit, since rank 0 may sample for hours; a rank that ends is noticed at
once, because its connection ends with it. Tensors that ranks compute together go through torch.distributed instead.

Failures. All ranks raise: the error of rank 0 is raised there, and all go on. Only rank 2 raises: its peers may wait
for it inside a collective, so rank 2 ends after ALIKE_SECONDS, which fails them, and rank 0 raises an EngineError that
names rank 2; the group is unusable from then on.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, runtime_checkable

from areal.api import EngineError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from areal.trainer.wire import Received, WireMessage

_logger = getLogger(__name__)
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_R = TypeVar("_R")
_P = ParamSpec("_P")

ALIKE_SECONDS: Final = 20.0
"""How much later than the first the last rank may fail for it to be one failure of all. A rank that failed alone ends
after this time, which frees the ranks that wait for it inside torch.distributed."""
_NOTED: Final = "noted"
"""Rank 0 knows of the failure and goes on."""
_LEAVING: Final = b"leaving"
"""A rank has failed alone and ends."""


@runtime_checkable
class PerRank(Protocol):
    """An argument of which every rank is given its own part."""

    def for_rank(self, rank: int) -> Any:
        """Return what `rank` is given instead."""
        ...


class Distributed(Generic[_T_co]):
    """Rank 0's handle on one object per rank, made by `RankGroup.create`."""

    def __init__(self, group: RankGroup, key: int, local: _T_co) -> None:
        self._group = group
        self._key = key
        self._local = local

    @property
    def local(self) -> _T_co:
        """Rank 0's own object."""
        return self._local

    def run(self, function: Callable[Concatenate[_T_co, _P], _R], *args: _P.args, **options: _P.kwargs) -> _R:
        """Call `function(object, *args, **options)` on every rank; returns what it returned on rank 0.

        An error of all ranks is raised here as rank 0 had it, and all go on. Raises EngineError, which names the rank,
        when another rank fails alone or has ended: the group is unusable from then on.
        """
        found: _R = self._group.run(_Call(self._key, function, args, options))
        return found

    def drop(self) -> None:
        """Free the object on every rank; the handle is unusable from then on."""
        self._group.run(_Drop(self._key))
        del self._local


@dataclass(frozen=True, slots=True)
class _Create:
    key: int
    factory: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, objects: dict[int, Any]) -> Any:
        objects[self.key] = self.factory(*self.args, **self.options)
        return objects[self.key]

    def __str__(self) -> str:
        return _name(self.factory)


@dataclass(frozen=True, slots=True)
class _Call:
    key: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, objects: dict[int, Any]) -> Any:
        return self.function(objects[self.key], *self.args, **self.options)

    def for_rank(self, rank: int) -> _Call:
        """Return the call with the arguments of `rank`."""
        args = tuple(each.for_rank(rank) if isinstance(each, PerRank) else each for each in self.args)
        options = {
            name: each.for_rank(rank) if isinstance(each, PerRank) else each for name, each in self.options.items()
        }
        return replace(self, args=args, options=options)

    @property
    def differs_by_rank(self) -> bool:
        """Whether any argument is another one on each rank."""
        return any(isinstance(each, PerRank) for each in (*self.args, *self.options.values()))

    def __str__(self) -> str:
        return _name(self.function)


@dataclass(frozen=True, slots=True)
class _Drop:
    key: int

    def __call__(self, objects: dict[int, Any]) -> None:
        objects.pop(self.key)

    def __str__(self) -> str:
        return "dropping an object"


@dataclass(frozen=True, slots=True)
class _End:
    exit_code: int
    reason: str


_Command = _Create | _Call | _Drop


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of a command on another rank."""

    error: str | None = None
    left: bool = False
    """Whether that rank has ended, or is about to."""


class RankGroup:
    """Rank 0's connections to all other ranks. Thread-safe: one command at a time, in one order on all ranks."""

    def __init__(self, connections: Sequence[Connection[Any, Any]] = ()) -> None:
        """Lead the ranks at the other ends of `connections`: ranks 1, 2, ..., each of which runs `serve`."""
        self._connections = dict(enumerate(connections, start=1))
        self._objects: dict[int, Any] = {}
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._broken = ""

    @property
    def num_ranks(self) -> int:
        """Processes, this one included."""
        return len(self._connections) + 1

    def create(self, factory: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> Distributed[_T]:
        """Call `factory(*args, **options)` on every rank and keep what it returns there."""
        key = next(self._keys)
        return Distributed(self, key, self.run(_Create(key, factory, args, options)))

    def end(self, exit_code: int, reason: str = "") -> None:
        """Make every other rank end with `exit_code`; reason: for their logs, when it is an error. Idempotent."""
        connections, self._connections = self._connections, {}
        self._broken = self._broken or "the run has ended"
        if not connections:
            return
        message = _message(_End(exit_code, reason))
        for connection in connections.values():
            # A rank that has ended already needs no message.
            with contextlib.suppress(OSError):
                message.send(connection)
                connection.close()

    def run(self, command: _Command) -> Any:
        """Execute a command on every rank; see `Distributed`."""
        with self._turn():
            if not self._connections:
                return command(self._objects)
            own = self._send(command)
            try:
                result = own(self._objects)
            except Exception as error:
                self._settle(command, error)
                raise
            except BaseException:
                self._broken = f"{command} was interrupted"
                raise
            self._settle(command, None)
            return result

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            raise EngineError("a command cannot run another command on all ranks: they are still busy with the first")
        with self._lock:
            if self._broken:
                raise EngineError(f"the ranks of this run no longer work together: {self._broken}")
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None

    def _send(self, command: _Command) -> _Command:
        """Send every other rank its command; return that of rank 0."""
        by_rank = isinstance(command, _Call) and command.differs_by_rank
        own, everybody = _of_rank(command, 0), None
        # Before anything is sent: what cannot be pickled harms nobody. Parts that differ are made one after the other,
        # since all of them together may be as large as a batch.
        if not by_rank:
            everybody = _message(command)
        for rank, connection in self._connections.items():
            message = everybody or _message(_of_rank(command, rank))
            try:
                message.send(connection)
            except OSError as error:
                raise self._break(f"connection to rank {rank} lost before {command}; see its log") from error
        return own

    def _settle(self, command: _Command, own: Exception | None) -> None:
        """Collect the results of the other ranks; own: rank 0's error. Raises EngineError when ranks disagree."""
        results = self._collect(patient=own is None)
        for rank, result in results.items():
            if result.error and (result.left or own is None):
                raise self._break(f"rank {rank} failed in {command}: {result.error}") from own
            if result.left:
                raise self._break(f"connection to rank {rank} lost during {command}; see its log") from own
        if own is None:
            return
        if silent := sorted(self._connections.keys() - results.keys()):
            # They wait for something from this rank that does not come.
            self._broken = f"rank 0 failed alone in {command} ({own}); rank {silent[0]} waits for it"
            return
        for rank, result in results.items():
            if result.error:
                with contextlib.suppress(OSError):
                    _message(_NOTED).send(self._connections[rank])

    def _collect(self, *, patient: bool) -> dict[int, _Result]:
        """Results by rank. patient: wait without limit as long as no rank has failed; else only ALIKE_SECONDS, and
        ranks that did not answer by then are missing."""
        ranks = {connection: rank for rank, connection in self._connections.items()}
        waiting = list(ranks)
        results: dict[int, _Result] = {}
        deadline = None if patient else time.monotonic() + ALIKE_SECONDS
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready: list[Any] = wait(waiting, left)
            if not ready:
                break
            for connection in ready:
                waiting.remove(connection)
                try:
                    error = connection.recv_bytes().decode("utf-8", errors="replace") or None
                    result = _Result(error)
                except (EOFError, OSError):
                    result = _Result(left=True)
                results[ranks[connection]] = result
                if result != _Result() and deadline is None:
                    deadline = time.monotonic() + ALIKE_SECONDS
        if not patient:
            # The end of the rank that failed is what failed the others, so its farewell is here already.
            for rank, result in results.items():
                if not result.left and _has_left(self._connections[rank]):
                    results[rank] = _Result(error=result.error, left=True)
        return results

    def _break(self, reason: str) -> EngineError:
        self._broken = reason
        return EngineError(reason)


def serve(leader: Connection[Any, Any]) -> int:
    """Execute the commands of rank 0 until it ends the group; returns the exit code it gave.

    Raises EngineError when rank 0 is gone, or when something failed here and not on rank 0.
    """
    from areal.trainer.wire import receive

    objects: dict[int, Any] = {}
    while True:
        try:
            received = receive(leader)
        except (EOFError, OSError) as error:
            raise EngineError("connection to rank 0 lost; see its log") from error
        exit_code = _execute(received, objects, leader)
        if exit_code is not None:
            return exit_code
        # Nothing of a batch is kept while rank 0 samples the next one.
        del received


def _execute(received: Received, objects: dict[int, Any], leader: Connection[Any, Any]) -> int | None:
    """Execute one command and send its result; returns an exit code when it was the last one."""
    try:
        command = received.load()  # from rank 0, over an authenticated connection
        if command == _NOTED:
            return None
        if isinstance(command, _End):
            if command.reason:
                _logger.error("rank 0 ends the run with exit code %d: %s", command.exit_code, command.reason)
            return command.exit_code
        command(objects)
    except Exception as error:
        _send_result(leader, f"{type(error).__name__}: {error}".encode())
        if not leader.poll(ALIKE_SECONDS):
            _send_result(leader, _LEAVING)
            raise EngineError(f"this rank failed and rank 0 did not: {type(error).__name__}: {error}") from error
        _logger.warning("failed as on rank 0: %s: %s", type(error).__name__, error)
    else:
        _send_result(leader, b"")
    return None


def _message(value: Any) -> WireMessage:
    # A process that is alone sends nothing.
    from areal.trainer.wire import WireMessage

    return WireMessage(value)


def _of_rank(command: _Command, rank: int) -> _Command:
    return command.for_rank(rank) if isinstance(command, _Call) else command


def _send_result(leader: Connection[Any, Any], result: bytes) -> None:
    # A leader that is gone is noticed by the next receive, which says so.
    with contextlib.suppress(OSError):
        leader.send_bytes(result)


def _has_left(connection: Connection[Any, Any]) -> bool:
    try:
        return connection.poll(0) and connection.recv_bytes() == _LEAVING
    except (EOFError, OSError):
        return True


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
