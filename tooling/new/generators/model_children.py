"""Child processes that never outlive the command: each has a session of its own and is ended with all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process as Ctrl-C does, but would leave sessions of its children behind."""


class Children:
    """The children of several threads; any of them may end all."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def run(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises subprocess.TimeoutExpired, and InterruptedError once all were ended."""
        with self._lock:
            if self._ended:
                raise InterruptedError("interrupted")
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            out, said = process.communicate(timeout=timeout)
        except BaseException:
            _kill(process)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, said)

    def end(self) -> None:
        """End all that run, with their own children, and start no more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)


@contextlib.contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """Inside, the signals that end a process raise KeyboardInterrupt, so that it cleans up. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, Ctrl-C and the like are not heard: for a moment's clean-up. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> Any:
    raise KeyboardInterrupt


def _kill(process: subprocess.Popen[str]) -> None:
    # A child that was waited for may have given its number to somebody else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
