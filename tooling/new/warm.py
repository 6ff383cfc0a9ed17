"""Runs the modules of a command in forks of one process of the repository's interpreter, so that they import once.

    with WarmPython(python, root, imports=("torch",)) as warm:
        done = warm.run("areal.porting", ["llama", "--json"], seconds=900.0)   # a subprocess.CompletedProcess

What runs is a fork (`tooling/new/worker.py`): runs are as independent of each other as processes are.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORKER: Final = Path(__file__).with_name("worker.py")


class WarmPython:
    """A worker that is started when it is first needed, and ended with everything it runs."""

    def __init__(self, python: Path, root: Path, *, imports: Sequence[str]) -> None:
        """Start nothing yet. imports: what the worker imports before a run that needs it."""
        self.python, self.root, self.imports = python, root, tuple(imports)
        self._process: subprocess.Popen[bytes] | None = None
        self._home: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def started(self) -> bool:
        """Whether a worker runs, so that a further run costs little."""
        return self._process is not None and self._process.poll() is None

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        seconds: float,
        text: str = "",
        environment: Mapping[str, str] | None = None,
        light: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a module as `python -m MODULE ARGUMENTS` would be in the repository.

        light: without the imports. Raises OSError where the interpreter does not start, TimeoutExpired after `seconds`.
        """
        if not self.started:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "module": module,
            "arguments": list(arguments),
            "input": text,
            "imports": () if light else self.imports,
            "environment": dict(os.environ if environment is None else environment),
        }
        command = [os.fspath(self.python), "-m", module, *arguments]
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = _line(process.stdout.fileno(), seconds)
        except BrokenPipeError:
            line = b""
        except BaseException:  # an interrupt too: what it runs has a session of its own
            self.close()
            raise
        if line is None:
            self.close()
            raise subprocess.TimeoutExpired(command, seconds)
        if not line:
            self.close()
            return subprocess.CompletedProcess(command, 1, "", "the worker ended")
        answer = json.loads(line)
        return subprocess.CompletedProcess(command, answer["status"], answer["stdout"], answer["stderr"])

    def close(self) -> None:
        """End the worker and what it runs."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if self._home is not None:
            self._home.cleanup()
            self._home = None

    def _start(self) -> None:
        # What libraries read of the environment when they are imported has to suit tests, which have an empty home.
        self._home = tempfile.TemporaryDirectory(prefix="areal-new-warm-")
        environment = os.environ | {
            "HF_HOME": self._home.name,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = subprocess.Popen(
            [os.fspath(self.python), os.fspath(WORKER), os.fspath(self.root)],
            cwd=self.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _line(stream: int, seconds: float) -> bytes | None:
    """Read one line of a pipe; b"" when it ends first, None when time runs out."""
    read = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        end = time.monotonic() + seconds
        while not read.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                return None
            more = os.read(stream, 1 << 20)
            if not more:
                return b""
            read += more
    return bytes(read)
