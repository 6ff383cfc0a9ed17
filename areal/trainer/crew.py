"""One leader and its followers: what rank 0 asks for, every rank does on its own objects, and rank 0 has the result.

    # rank 0                                            # every other rank
    crew = Crew(links)                                  exit_code = follow(link)
    crew.create("learner", PolicyLearner, config)
    metrics = crew.call("learner", "update", batch)
    crew.end(0)

A run is led by the trainer of rank 0 as if it were alone; of the others it needs only that they do the same at the same
time, since a model that is split over processes computes together. A `Crew` without followers does everything here,
without copying anything, so trainers know one way.

What is sent is pickled, from rank 0 to the others, over connections that both sides have proved to belong to this run
(`areal.trainer.processes`). Waiting has no limit, since rank 0 may sample for hours; an end of the other side is seen
at once, because the connection ends with it. This is not for tensors: what ranks compute together they send each other
by torch.distributed.
"""

from __future__ import annotations

import contextlib
import operator
import pickle
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Protocol

from areal.api import EngineError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

_logger = getLogger(__name__)
ALIKE_SECONDS: Final = 20.0
"""How much later than the first the last rank may fail for it to be one failure of all. A rank that failed alone ends
after this time, which frees the ranks that wait for it inside torch.distributed."""
_NOTED: Final = b"noted"
"""Rank 0 knows of the failure and goes on."""
_LEAVING: Final = b"leaving"
"""A rank has failed alone and ends."""


class Command(Protocol):
    """Something every rank does."""

    def __call__(self, targets: dict[str, Any]) -> Any:
        """Do it; targets: this rank's objects by name."""
        ...


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object."""

    name: str
    factory: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self, targets: dict[str, Any]) -> Any:
        """The object, which takes the place of an older one of that name."""
        targets.pop(self.name, None)
        targets[self.name] = self.factory(*self.args)
        return targets[self.name]

    def __str__(self) -> str:
        """For messages."""
        return f"building the {self.name}"


@dataclass(frozen=True, slots=True)
class Call:
    """Ask an object."""

    name: str
    method: str
    """May have dots: a method of an attribute."""
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, targets: dict[str, Any]) -> Any:
        """What the method returns."""
        return operator.attrgetter(self.method)(targets[self.name])(*self.args, **self.options)

    def __str__(self) -> str:
        """For messages."""
        return f"{self.name}.{self.method}"


@dataclass(frozen=True, slots=True)
class Drop:
    """Let an object go."""

    name: str

    def __call__(self, targets: dict[str, Any]) -> None:
        """Nothing happens when there is none."""
        targets.pop(self.name, None)

    def __str__(self) -> str:
        """For messages."""
        return f"dropping the {self.name}"


@dataclass(frozen=True, slots=True)
class End:
    """The last word of rank 0."""

    exit_code: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a command on one follower."""

    error: str | None = None
    left: bool = False
    """Whether that rank has ended, or is about to."""


class Crew:
    """Rank 0's hold on all ranks. Thread-safe: one command at a time, in one order on all ranks."""

    def __init__(self, followers: Sequence[Connection[Any, Any]] = ()) -> None:
        """followers: connections to ranks 1, 2, ..., each of which runs `follow`."""
        self._followers = dict(enumerate(followers, start=1))
        self._targets: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._broken = ""

    @property
    def num_ranks(self) -> int:
        """Processes, this one included."""
        return len(self._followers) + 1

    def create(self, name: str, factory: Callable[..., Any], *args: Any) -> Any:
        """Call `factory(*args)` on every rank and keep what it returns under `name`; returns rank 0's."""
        return self._everywhere(Create(name, factory, args))

    def call(self, name: str, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the object `name` on every rank; returns what it returned on rank 0.

        An error of all ranks is raised here as rank 0 had it, and all go on. Raises EngineError, which names the rank,
        when another rank fails alone or has ended: then the crew is of no use any more.
        """
        return self._everywhere(Call(name, method, args, options))

    def drop(self, name: str) -> None:
        """Let the object `name` go, on every rank."""
        self._everywhere(Drop(name))

    def end(self, exit_code: int, why: str = "") -> None:
        """Let every follower end with `exit_code`; why: for their logs, when it is an error. Idempotent."""
        followers, self._followers = self._followers, {}
        self._broken = self._broken or "the run has ended"
        word = pickle.dumps(End(exit_code, why))
        for link in followers.values():
            # One that has ended already needs no word.
            with contextlib.suppress(OSError):
                link.send_bytes(word)
                link.close()

    def _everywhere(self, command: Command) -> Any:
        with self._turn():
            if not self._followers:
                return command(self._targets)
            self._send(command)
            try:
                result = command(self._targets)
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
            raise EngineError("a command of a crew may not give commands itself: the other ranks are still at it")
        with self._lock:
            if self._broken:
                raise EngineError(f"the ranks of this run no longer work together: {self._broken}")
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None

    def _send(self, command: Command) -> None:
        # Before anything is sent: what cannot be pickled harms nobody.
        message = pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)
        for rank, link in self._followers.items():
            try:
                link.send_bytes(message)
            except OSError as error:
                raise self._break(f"rank {rank} has ended before {command}; its log says why") from error

    def _settle(self, command: Command, own: Exception | None) -> None:
        """Hear what became of a command elsewhere; own: rank 0's error. Raises EngineError when ranks disagree."""
        outcomes = self._hear(patient=own is None)
        alone = [
            f"rank {rank} failed in {command}: {outcome.error}" if outcome.error else f"rank {rank} has ended during "
            f"{command}; its log says why"
            for rank, outcome in outcomes.items()
            if outcome.left or (own is None and outcome.error)
        ]  # fmt: skip
        if alone:
            raise self._break(alone[0]) from own
        if own is None:
            return
        if silent := sorted(self._followers.keys() - outcomes.keys()):
            # They wait for something from this rank that does not come.
            self._broken = f"rank 0 failed alone in {command} ({own}); rank {silent[0]} waits for it"
            return
        for rank, outcome in outcomes.items():
            if outcome.error:
                with contextlib.suppress(OSError):
                    self._followers[rank].send_bytes(_NOTED)

    def _hear(self, *, patient: bool) -> dict[int, _Outcome]:
        """Outcomes by rank; of those that did not answer in time nothing, unless patient and nobody has failed."""
        ranks = {link: rank for rank, link in self._followers.items()}
        waiting = list(ranks)
        outcomes: dict[int, _Outcome] = {}
        deadline = None if patient else time.monotonic() + ALIKE_SECONDS
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready: list[Any] = wait(waiting, left)
            if not ready:
                break
            for link in ready:
                waiting.remove(link)
                outcome = outcomes[ranks[link]] = _read_outcome(link)
                if outcome != _Outcome() and deadline is None:
                    deadline = time.monotonic() + ALIKE_SECONDS
        if not patient:
            # The failed rank's end is what failed the others, so its farewell is here already.
            for rank, outcome in outcomes.items():
                if not outcome.left and _has_left(self._followers[rank]):
                    outcomes[rank] = _Outcome(error=outcome.error, left=True)
        return outcomes

    def _break(self, why: str) -> EngineError:
        self._broken = why
        return EngineError(why)


def follow(leader: Connection[Any, Any]) -> int:
    """Do what rank 0 asks for until it ends the crew; returns the exit code it gave.

    Raises EngineError when rank 0 is gone, or when something failed here and not on rank 0.
    """
    targets: dict[str, Any] = {}
    while True:
        message = _receive(leader)
        if message == _NOTED:
            continue
        exit_code = _obey(message, targets, leader)
        if exit_code is not None:
            return exit_code
        # Nothing of a batch is kept while rank 0 samples the next one.
        del message


def _obey(message: bytes, targets: dict[str, Any], leader: Connection[Any, Any]) -> int | None:
    """Carry out one command and say what became of it; an exit code when it was the last one."""
    try:
        command = pickle.loads(message)  # from rank 0, which has proved to be of this run
        if isinstance(command, End):
            if command.why:
                _logger.error("rank 0 ends the run with exit code %d: %s", command.exit_code, command.why)
            return command.exit_code
        command(targets)
    except Exception as error:
        _tell(leader, f"{type(error).__name__}: {error}".encode())
        if not leader.poll(ALIKE_SECONDS):
            _tell(leader, _LEAVING)
            raise EngineError(f"this rank failed and rank 0 did not: {type(error).__name__}: {error}") from error
        _logger.warning("failed as on rank 0: %s: %s", type(error).__name__, error)
    else:
        _tell(leader, b"")
    return None


def _receive(leader: Connection[Any, Any]) -> bytes:
    try:
        return leader.recv_bytes()
    except (EOFError, OSError) as error:
        raise EngineError("rank 0 has ended without a word; its log says why") from error


def _tell(leader: Connection[Any, Any], outcome: bytes) -> None:
    # A leader that is gone is noticed by the next `_receive`, which says so.
    with contextlib.suppress(OSError):
        leader.send_bytes(outcome)


def _read_outcome(link: Connection[Any, Any]) -> _Outcome:
    try:
        message = link.recv_bytes()
    except (EOFError, OSError):
        return _Outcome(left=True)
    return _Outcome(error=message.decode("utf-8", errors="replace") or None)


def _has_left(link: Connection[Any, Any]) -> bool:
    try:
        return link.poll(0) and link.recv_bytes() == _LEAVING
    except (EOFError, OSError):
        return True
