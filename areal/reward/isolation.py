"""Run reward functions in worker processes that can really be killed. Nothing here knows what a reward means.

    reward = AsyncRewardWrapper("gsm8k", timeout_seconds=15.0, max_workers=2)
    score = await reward("8*9=", "72", [5, 9], [11], answer="72")

A worker that exceeds the limit is killed with every process the reward started (outside Linux, those that moved to a
session of their own excepted), and replaced. See `_worker` for what runs on the other side.

One thread feeds the workers, reads their answers and enforces the time limits, so limits hold even while the event
loops of the callers are busy computing. Calls that waited behind one that was killed run on another worker.

A worker that answers within microseconds gets a few calls ahead of time (never more than about 2 ms of work), which is
what makes thousands of calls per second possible. The time limit is per call all the same: it starts when the call
before it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import ArealError, ConfigError, FaultError, FaultKind, RegistryError, load
from areal.reward._worker import HEADER
from areal.reward.answering import recorded_in, result_of
from areal.utils import stats, tracing
from areal.utils.given import is_given
from areal.utils.guard import exit_text
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class AsyncRewardWrapper:
    """An awaitable reward. Safe to use from several threads and event loops at once.

    reward: a registry name, a path "package.module:function", or a callable (also an instance or `functools.partial`).
        One that no other process can import, such as a lambda or a function of `__main__`, is sent with its code
        (`areal.reward.transport`). A class is called once in each worker, and what it returns is the reward.
    options: keyword arguments of that class, or of every call of a function; a column of the row of the same name wins.
    name: for messages; empty takes the reward's own.
    timeout_seconds: wall time of one call, from its start in the worker.
    max_workers: processes. memory_limit_mb: address space of each (RLIMIT_AS); None sets no limit.

    Raises ConfigError for a callable that cannot be sent, RegistryError for an unknown name.
    """

    def __init__(
        self,
        reward: str | Callable[..., Any],
        *,
        options: Mapping[str, Any] | None = None,
        name: str = "",
        timeout_seconds: float = 15.0,
        max_workers: int = 1,
        memory_limit_mb: int | None = None,
    ) -> None:
        if timeout_seconds <= 0 or max_workers < 1 or (memory_limit_mb is not None and memory_limit_mb < 1):
            raise ConfigError(
                f"reward worker: timeout_seconds {timeout_seconds}, max_workers {max_workers}, memory_limit_mb "
                f"{memory_limit_mb}; expected > 0, at least 1, and None or at least 1"
            )
        setup: dict[str, Any]
        if isinstance(reward, str) and not is_given(reward):
            own_name, setup = reward, {"target": _target_of(reward)}
        else:
            from areal.reward.transport import transport

            own_name, setup = transport(reward)
        self.name = name or own_name
        setup |= {"sys_path": [entry or os.getcwd() for entry in sys.path], "memory_limit_mb": memory_limit_mb}
        setup |= {"options": dict(options or {})}
        self._pool = WorkerPool(self.name, frame(setup), timeout_seconds, max_workers)
        # The pool's thread must not keep a forgotten wrapper alive.
        weakref.finalize(self, self._pool.close)

    async def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], /, **data: Any
    ) -> float:
        """Score one completion; arguments as in `areal.api.RewardFunction`.

        Raises FaultError: REWARD_INVALID (not a finite number), REWARD_RAISED, REWARD_DIED (its process ended),
        REWARD_TIMEOUT, DATA_INVALID (a column cannot be pickled), or the kind of a FaultError that the reward raised.
        Raises ConfigError or RegistryError when the reward cannot be loaded.
        """
        call = self.submit(prompt, completions, prompt_ids, completion_ids, data)
        value = await self.answer(call)
        stats.merge(call.recorded)
        return value

    def submit(
        self,
        prompt: str,
        completions: str,
        prompt_ids: list[int],
        completion_ids: list[int],
        data: Mapping[str, Any],
    ) -> RewardCall:
        """Queue a call and return it at once; its future gives what `__call__` returns or raises.

        Raises FaultError(DATA_INVALID) when a column cannot be pickled.
        """
        try:
            payload = frame(((prompt, completions, prompt_ids, completion_ids), dict(data)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = f"the row cannot be sent to the process of reward {self.name!r}: {error}"
            raise FaultError(FaultKind.DATA_INVALID, message) from error
        loop = asyncio.get_running_loop()
        call = RewardCall(payload=payload, loop=loop, future=loop.create_future())
        self._pool.submit(call)
        return call

    async def answer(self, call: RewardCall) -> float:
        """Wait for a call of `submit`."""
        with tracing.async_span("reward", reward=self.name):
            return await call.future

    def start(self) -> None:
        """Start the workers now and return when the reward is imported.

        Raises ConfigError or RegistryError when it cannot be.
        """
        self._pool.start()

    def close(self) -> None:
        """Kill the workers; calls still waiting fail. Idempotent."""
        self._pool.close()


logger = getLogger(__name__)

_STARTUP_SECONDS = 120.0
"""Limit for starting Python and importing the reward's module; apart from the limit of a call."""
_MAX_FAILED_STARTS = 3
"""Replacements that may fail in a row once the reward has been imported; the very first failure is final."""
_GUARD_SECONDS = 3.0
"""For the guard of a worker that is killed; more than it hunts for."""
_LOOK_AHEAD_SECONDS = 0.002
_MAX_LOOK_AHEAD = 16
_RECEIVE_BYTES = 1 << 18


def _target_of(reward: str) -> str:
    """Return the path of a registered or importable reward. Raises RegistryError for an unknown name."""
    from areal.reward.registry import REWARDS

    target = REWARDS.get(reward, reward)
    module, _, _ = target.partition(":") if ":" in target else target.rpartition(".")
    # The worker imports the module, not this process. Only a module that does not exist is reported from here.
    try:
        exists = bool(module) and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        exists = False
    if not exists:
        load("reward", reward, REWARDS)
    return target


def frame(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=5)
    return HEADER.pack(len(body)) + body


@dataclass(slots=True, kw_only=True, eq=False)
class RewardCall:
    """One call, from the queue to its answer."""

    payload: bytes
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[float]
    seconds: float = 0.0
    """How long it ran, once it has ended in whatever way; waiting in the queue does not count."""
    recorded: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the reward recorded (`areal.utils.stats`), once it has answered."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    outbox: bytearray
    deadline: float
    """Monotonic time at which the current call (or the start-up) is over; infinite while idle."""
    inbox: bytearray = field(default_factory=bytearray)
    calls: deque[RewardCall] = field(default_factory=deque)
    """The first is running, the others are in the pipe."""
    ready: bool = False
    start_failed: bool = False
    traced_until: int = 0
    """End of the last call in a trace, perf_counter_ns: answers that are read together were not given together."""


class WorkerPool:
    """The thread and its processes. Only `submit`, `start` and `close` may be called from other threads."""

    def __init__(self, name: str, setup: bytes, timeout_seconds: float, max_workers: int) -> None:
        self._name, self._setup = name, setup
        self._timeout_seconds, self._max_workers = timeout_seconds, max_workers
        self._lock = threading.RLock()  # reentrant: garbage collection may call `close` at any point of the thread
        self._thread: threading.Thread | None = None
        self._closing = False
        self._ready = threading.Event()
        self._broken: ArealError | None = None
        self._queue: deque[RewardCall] = deque()
        self._settled: list[tuple[RewardCall, float | BaseException]] = []
        self._workers: list[_Worker] = []
        self._signalled = False
        self._failed_starts = 0
        self._mean_seconds = _LOOK_AHEAD_SECONDS

    def submit(self, call: RewardCall) -> None:
        with self._lock:
            self._ensure_thread()
            self._queue.append(call)
        self._wake()

    def start(self) -> None:
        with self._lock:
            self._ensure_thread()
        self._ready.wait()
        if self._broken is not None:
            raise _again(self._broken)

    def close(self) -> None:
        with self._lock:
            self._closing = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            self._signalled = False
            self._wake()
            thread.join()

    def _ensure_thread(self) -> None:
        if self._closing:
            raise ConfigError(f"reward {self._name!r} was closed; create another AsyncRewardWrapper")
        if self._thread is None:
            self._wake_read, self._wake_write = socket.socketpair()
            self._wake_read.setblocking(False)
            self._wake_write.setblocking(False)
            self._thread = threading.Thread(target=self._run, name=f"areal-reward-{self._name}", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        # One byte per burst: the thread resets the flag before it looks at the queue, so nothing is overlooked.
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(OSError):  # closed meanwhile; the call is failed by the thread's shutdown
                self._wake_write.send(b"\0")

    def _run(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            while not self._closing:
                self._keep_staffed()
                self._dispatch()
                self._deliver()
                deadline = min((worker.deadline for worker in self._workers), default=float("inf"))
                patience = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
                for key, events in self._selector.select(patience):
                    worker = key.data
                    if worker is None:
                        self._wake_read.recv(4096)
                        self._signalled = False
                        continue
                    if events & selectors.EVENT_WRITE:
                        self._flush(worker)
                    if events & selectors.EVENT_READ and not self._receive(worker):
                        self._bury(worker, None)
                self._expire()
        finally:
            self._shut_down()

    def _keep_staffed(self) -> None:
        while len(self._workers) < self._max_workers and self._broken is None:
            ours, theirs = socket.socketpair()
            try:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        str(Path(__file__).with_name("_worker.py")),
                        str(theirs.fileno()),
                        str(os.getpid()),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                self._start_failed(ConfigError(f"reward {self._name!r}: no worker process could be started: {error}"))
                continue
            finally:
                theirs.close()
            ours.setblocking(False)
            deadline = time.monotonic() + _STARTUP_SECONDS
            worker = _Worker(process=process, channel=ours, outbox=bytearray(self._setup), deadline=deadline)
            self._workers.append(worker)
            self._selector.register(ours, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)

    def _dispatch(self) -> None:
        if self._broken is not None:
            while self._queue:
                self._settled.append((self._queue.popleft(), _again(self._broken)))
            return
        while self._queue:
            worker = min((w for w in self._workers if self._has_room(w)), key=lambda w: len(w.calls), default=None)
            if worker is None:
                break
            call = self._queue.popleft()
            if call.future.cancelled():
                continue
            if not worker.calls:
                worker.deadline = time.monotonic() + self._timeout_seconds
            worker.calls.append(call)
            worker.outbox += call.payload
        for worker in self._workers:
            if worker.outbox:
                self._flush(worker)

    def _has_room(self, worker: _Worker) -> bool:
        if not worker.ready or not worker.calls:
            return worker.ready
        if len(worker.calls) >= min(_MAX_LOOK_AHEAD, _LOOK_AHEAD_SECONDS / max(self._mean_seconds, 1e-9)):
            return False
        # A call that already takes long may be the one that hangs: nothing is queued behind it.
        return self._timeout_seconds - (worker.deadline - time.monotonic()) < 5 * _LOOK_AHEAD_SECONDS

    def _flush(self, worker: _Worker) -> None:
        # A broken pipe shows up as end of stream on the read side, where the dead worker is handled.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            del worker.outbox[: worker.channel.send(worker.outbox)]
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        if self._selector.get_key(worker.channel).events != interest:
            self._selector.modify(worker.channel, interest, worker)

    def _receive(self, worker: _Worker) -> bool:
        """Take in what the worker has sent; False when it has closed its end."""
        try:
            data = worker.channel.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        worker.inbox += data
        start, inbox = 0, worker.inbox
        while len(inbox) - start >= HEADER.size:
            end = start + HEADER.size + HEADER.unpack_from(inbox, start)[0]
            if end > len(inbox):
                break
            self._answer(worker, pickle.loads(bytes(inbox[start + HEADER.size : end])))
            start = end
        del inbox[:start]
        return bool(data)

    def _answer(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        """Act on a message; `_worker` lists what they are."""
        match message:
            case ("ready",):
                worker.ready, worker.deadline = True, float("inf")
                self._failed_starts = 0
                self._ready.set()
                return
            case ("failed", kind, text):
                error_class = RegistryError if kind == "RegistryError" else ConfigError
                text = text if error_class is RegistryError else f"{kind}: {text}"
                fix = "" if error_class is RegistryError else "mend the reward, or install what it imports"
                self._start_failed(error_class(f"reward {self._name!r} cannot be loaded: {text}", fix=fix))
                worker.start_failed = True
                return
        seconds, call = message[1], worker.calls.popleft()
        if tracing.active():
            now = time.perf_counter_ns()
            begin, worker.traced_until = max(now - int(seconds * 1e9), worker.traced_until), now
            tracing.complete(message[0], begin, now, process=(worker.process.pid, f"reward {self._name}"))
        call.seconds, call.recorded = seconds, recorded_in(message)
        worker.deadline = time.monotonic() + self._timeout_seconds if worker.calls else float("inf")
        self._mean_seconds += 0.2 * (seconds - self._mean_seconds)
        self._settled.append((call, result_of(message, self._name)))

    def _expire(self) -> None:
        for worker in list(self._workers):
            # An answer that is already in the socket counts: the deadline moves when it is read.
            if worker.deadline > time.monotonic() or not self._receive(worker) or worker.deadline > time.monotonic():
                continue
            if not worker.ready:
                self._bury(
                    worker, ConfigError(f"reward {self._name!r} took more than {_STARTUP_SECONDS:g} s to import")
                )
                continue
            message = (
                f"reward {self._name!r} did not finish within {self._timeout_seconds:g} s; its process was killed. "
                f"Raise rollout.reward_timeout_seconds if it may take longer"
            )
            self._bury(worker, FaultError(FaultKind.REWARD_TIMEOUT, message))

    def _bury(self, worker: _Worker, cause: ArealError | None) -> None:
        """Kill what is left of a worker, blame the call that was running, and put those behind it back in the queue."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        ended = time.monotonic()
        status = _kill(worker)
        if not worker.ready and not worker.start_failed:
            died = ConfigError(
                f"reward {self._name!r}: the worker process died while importing it ({exit_text(status)})"
            )
            self._start_failed(cause or died)
        if worker.calls:
            call = worker.calls.popleft()
            call.seconds = max(0.0, self._timeout_seconds - (worker.deadline - ended))
            text = f"reward {self._name!r}: its process died after {call.seconds:.1f} s ({exit_text(status)})"
            self._settled.append((call, cause or FaultError(FaultKind.REWARD_DIED, text)))
            self._queue.extendleft(reversed(worker.calls))

    def _start_failed(self, error: ArealError) -> None:
        self._failed_starts += 1
        if not self._ready.is_set() or self._failed_starts >= _MAX_FAILED_STARTS:
            self._break(error)

    def _break(self, error: ArealError) -> None:
        self._broken = error
        self._ready.set()

    def _deliver(self) -> None:
        def settle(settled: list[tuple[RewardCall, float | BaseException]]) -> None:
            for call, result in settled:
                if call.future.done():  # the caller was cancelled meanwhile
                    continue
                if isinstance(result, BaseException):
                    call.future.set_exception(result)
                else:
                    call.future.set_result(result)

        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[RewardCall, float | BaseException]]] = {}
        for item in self._settled:
            by_loop.setdefault(item[0].loop, []).append(item)
        self._settled.clear()
        for loop, settled in by_loop.items():
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, settled)

    def _shut_down(self) -> None:
        # Runs also when the thread ends by an error of its own: nobody may be left waiting.
        with self._lock:
            self._closing = True
        closed = FaultError(FaultKind.REWARD_RAISED, f"reward {self._name!r} was closed while the call was waiting")
        waiting = [call for worker in self._workers for call in worker.calls]
        for worker in self._workers:
            _kill(worker)
        self._workers.clear()
        while self._queue:
            waiting.append(self._queue.popleft())
        self._settled.extend((call, closed) for call in waiting)
        self._deliver()
        if not self._ready.is_set():
            self._break(ConfigError(f"reward {self._name!r} was closed before its workers were ready"))
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()


def _kill(worker: _Worker) -> int | None:
    """End the worker and everything it started; return its exit status, None when it does not end."""
    # The guard can reach what left the group, so it is asked first.
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _GUARD_SECONDS
    # WNOWAIT looks whether it has ended without taking its exit status.
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, worker.process.pid, ended) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    # The group before the leader is reaped: until then, nobody else can get its number. A leader that died by itself
    # keeps its own exit status.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    worker.channel.close()
    try:
        return worker.process.wait(5.0)
    except subprocess.TimeoutExpired:
        logger.warning("reward worker process %d does not end after SIGKILL", worker.process.pid)
        return None


def _again(error: ArealError) -> ArealError:
    # One exception object raised at several places would collect all their tracebacks.
    return type(error)(*error.args)
