"""Record what happens when, in the trace-event format that ui.perfetto.dev and chrome://tracing open.

    tracing.start(Path("trace.json"))
    with tracing.span("update"):                       # a slice on this thread
        ...
    with tracing.async_span("episode", track="12/0"):  # a slice on a track of its own, across awaits
        ...
    tracing.stop()

One recorder per process. While none is started a span costs a comparison, so that the calls may stay in every loop.
Processes of one machine share the clock: what another one did is recorded by whoever waited for it (`complete`).

The file is a valid JSON document after every write, so that a killed process leaves one: events are appended together
with the bracket that ends the list, over the one before, in a single system call.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from contextvars import Token
    from pathlib import Path
    from types import TracebackType
    from typing import Self

logger = getLogger(__name__)

BUFFERED: Final = 64
"""Events that are written together; a kill loses at most these, `flush` none."""
_END: Final = b"\n]"
_CATEGORY: Final = "areal"

_recorder: TraceRecorder | None = None
_parent: ContextVar[_Open | None] = ContextVar("areal_trace_parent", default=None)


class TraceRecorder:
    """Writes the events of a process to one file. Any thread may add."""

    def __init__(self, path: Path, *, name: str = "trainer") -> None:
        """Create the file; raises FileExistsError rather than replacing one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._lock = path, threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._origin, self._pid = time.perf_counter_ns(), os.getpid()
        self._events: list[dict[str, Any]] = []
        self._named: set[tuple[int, int]] = {(self._pid, 0)}
        self._tracks: dict[str, list[_Open]] = {}
        self._numbers = itertools.count(1)
        first = json.dumps(self._metadata("process_name", self._pid, 0, name)).encode()
        os.pwrite(self._file, b"[\n" + first + _END, 0)
        self._length = len(b"[\n" + first)
        """Position of the bracket that ends the list."""

    def add(self, event: dict[str, Any], at: int, *, process: tuple[int, str] | None = None) -> None:
        """Record an event at a time of `time.perf_counter_ns`.

        process: id and name of another process; None for the calling thread of this one.
        """
        pid, tid = (self._pid, threading.get_native_id()) if process is None else (process[0], process[0])
        event |= {"ts": max(0, at - self._origin) / 1000, "pid": pid, "tid": tid, "cat": _CATEGORY}
        with self._lock:
            if (pid, tid) not in self._named:
                self._named.add((pid, tid))
                if process is None:
                    self._events.append(self._metadata("thread_name", pid, tid, threading.current_thread().name))
                else:
                    self._events.append(self._metadata("process_name", pid, tid, process[1]))
            self._events.append(event)
            if len(self._events) >= BUFFERED:
                self._write()

    def open(self, name: str, track: str, arguments: dict[str, Any]) -> _Open:
        """Begin a slice on a track: that of the slice around it, unless something else is open there."""
        parent = _parent.get()
        with self._lock:
            if parent is not None and parent.recorder is self and not track:
                track = parent.track
            opened = self._tracks.get(track, [])
            if not track or (opened and opened[-1] is not parent):
                track = f"{track or name}#{next(self._numbers)}"  # slices that overlap cannot share a track
            begun = _Open(self, name, track)
            self._tracks.setdefault(track, []).append(begun)
        self.add({"ph": "b", "name": name, "id": track, "args": arguments}, time.perf_counter_ns())
        return begun

    def end(self, begun: _Open, arguments: dict[str, Any]) -> None:
        """End a slice, and those inside it that nobody ended."""
        with self._lock:
            opened = self._tracks.get(begun.track, [])
            if begun not in opened:
                return
            inside = opened[opened.index(begun) :]
            del opened[opened.index(begun) :]
            if not opened:
                del self._tracks[begun.track]
        for item in reversed(inside):
            event = {"ph": "e", "name": item.name, "id": item.track, "args": arguments if item is begun else {}}
            self.add(event, time.perf_counter_ns())

    def flush(self) -> None:
        """Write what is waiting."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """End the slices that are open, write everything, close the file."""
        for opened in [stack[0] for stack in list(self._tracks.values()) if stack]:
            self.end(opened, {"cut": "the recording ended first"})
        self.flush()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _write(self) -> None:
        if self._file < 0 or not self._events:
            self._events.clear()
            return
        text = b"".join(b",\n" + json.dumps(event, default=str).encode() for event in self._events)
        self._events.clear()
        try:
            written = os.pwrite(self._file, text + _END, self._length)
            if written != len(text) + len(_END):
                os.pwrite(self._file, _END, self._length)
                os.ftruncate(self._file, self._length + len(_END))
                raise OSError(f"wrote {written} of {len(text) + len(_END)} bytes; is the disk full?")
        except OSError as error:
            logger.warning("%s cannot be written and ends here (%s)", self.path, error)
            os.close(self._file)
            self._file = -1
        else:
            self._length += len(text)

    @staticmethod
    def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


class _Open:
    """Slice on a track that has begun."""

    __slots__ = ("name", "recorder", "track")

    def __init__(self, recorder: TraceRecorder, name: str, track: str) -> None:
        self.recorder, self.name, self.track = recorder, name, track


def start(path: Path) -> None:
    """Begin to record. Raises RuntimeError while something else is recorded, OSError when the file cannot be made."""
    global _recorder  # noqa: PLW0603 - one per process, and a lookup is all that a span may cost while there is none
    if _recorder is not None:
        raise RuntimeError(f"{_recorder.path} is being recorded; call stop() first")
    _recorder = TraceRecorder(path)


def stop() -> None:
    """End the recording. Idempotent."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.close()


def active() -> bool:
    """Return whether something is recorded."""
    return _recorder is not None


def flush() -> None:
    """Write what is waiting to be written."""
    if _recorder is not None:
        _recorder.flush()


def complete(name: str, begin: int, end: int, *, process: tuple[int, str] | None = None, **arguments: Any) -> None:
    """Record a slice that is over; times of `time.perf_counter_ns`. process: see `TraceRecorder.add`."""
    if _recorder is not None:
        event = {"ph": "X", "name": name, "dur": max(0, end - begin) / 1000, "args": arguments}
        _recorder.add(event, begin, process=process)


def flow_start(name: str, identity: str) -> None:
    """Let an arrow begin here, in a short slice of this thread."""
    if _recorder is not None:
        now = time.perf_counter_ns()
        _recorder.add({"ph": "s", "name": name, "id": identity}, now)
        complete(name, now, time.perf_counter_ns(), id=identity)


def flow_end(name: str, identity: str) -> None:
    """Let the arrow end here, in the slice of this thread that will be recorded around this moment."""
    if _recorder is not None:
        _recorder.add({"ph": "f", "bp": "e", "name": name, "id": identity}, time.perf_counter_ns())


class span:
    """Slice on this thread, around a block without awaits."""

    __slots__ = ("_arguments", "_begin", "_name")

    def __init__(self, name: str, **arguments: Any) -> None:
        self._name, self._arguments, self._begin = name, arguments, 0

    def __enter__(self) -> Self:
        """Note the time."""
        if _recorder is not None:
            self._begin = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        """Record the slice, unless the recording began inside it."""
        if _recorder is not None and self._begin:
            complete(self._name, self._begin, time.perf_counter_ns(), **self._arguments)


class async_span:
    """Slice on a track of its own, or inside that of the task's outer slice. May contain awaits.

    leaf: nothing inside becomes part of it, which generators need: their blocks end in another context.
    """

    __slots__ = ("_arguments", "_leaf", "_name", "_open", "_token", "_track")

    def __init__(self, name: str, *, track: str = "", leaf: bool = False, **arguments: Any) -> None:
        self._name, self._track, self._leaf, self._arguments = name, track, leaf, arguments
        self._open: _Open | None = None
        self._token: Token[_Open | None] | None = None

    def __enter__(self) -> Self:
        """Begin."""
        if _recorder is not None:
            self._open = _recorder.open(self._name, self._track, self._arguments)
            if not self._leaf:
                self._token = _parent.set(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; an exception is named."""
        if self._open is not None:
            if self._token is not None:
                _parent.reset(self._token)
            self._open.recorder.end(self._open, {} if kind is None else {"error": kind.__name__})
