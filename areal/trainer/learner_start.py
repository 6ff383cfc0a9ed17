"""Starts the process of a learner, without loading torch here: both load it at the same time.

with LearnerStart() as started:
    ...                                        # whatever takes a second
    process = LearnerProcess(config, started)  # areal.trainer.learner_process
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import EngineError
from areal.utils.guard import exit_text

if TYPE_CHECKING:
    from typing import Self

_END_SECONDS: Final = 10.0


class LearnerStart:
    """A process that loads torch and waits for questions. It ends with this one, or with `close`."""

    def __init__(self) -> None:
        """Raise EngineError when it cannot be started."""
        self.memory = _anonymous_memory()
        """Descriptor of memory that both can map."""
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("_learner_child.py")
        numbers = [str(theirs.fileno()), str(self.memory), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(program), *numbers],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.memory),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            os.close(self.memory)
            raise EngineError(f"no process to train in could be started: {error}") from error
        finally:
            theirs.close()
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it has ended: the first question says how
            self.connection.send(sys.path)

    @property
    def pid(self) -> int:
        """Process id of its guard, which leads its process group."""
        return self._process.pid

    def ending(self) -> str:
        """Close the connection and return how the process ended, in words."""
        self.connection.close()
        try:
            return exit_text(self._process.wait(_END_SECONDS))
        except subprocess.TimeoutExpired:
            return "its connection is lost"

    def close(self) -> None:
        """End the process, whatever it does. Idempotent."""
        self.connection.close()  # which its guard notices
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _anonymous_memory() -> int:
    """Return a descriptor of memory that can grow and has no name; of an unlinked file where the system has none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("areal-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
