"""An environment in a process of its own: it may block, crash, leak and start others, and is killed at a limit.

One process per slot serves one episode after the other, each with a new environment. It has a folder of its own for
everything (working folder, HOME, temporary files), which is removed with it even if the trainer is killed, and few
environment variables. It ends with the trainer, however that dies (`areal.environment._child`). This keeps accidents
apart; it does not confine hostile code: whoever runs some puts the whole run into a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.environment import wire
from areal.environment._child import HEADER
from areal.environment.registry import ENVIRONMENTS
from areal.utils.guard import exit_text
from areal.utils.scratch import make_scratch, remove_scratch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import AssistantTurn, StepResult, TurnObservation
    from areal.environment.config import HostConfig

_MAX_FRAME_BYTES: Final = 64 << 20
_KILL_SECONDS: Final = 4.0
_LOOK_SECONDS: Final = 0.005
_READ_BYTES: Final = 1 << 18
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ")
_SHOWN_CHARACTERS: Final = 600


class EnvironmentProcessError(RuntimeError):
    """The process of an environment ended, or answered what no environment answers."""


class EnvironmentRaisedError(RuntimeError):
    """The environment raised in its process; the message has type and text."""


class EnvironmentProcess:
    """One process, as an `Environment`. Not for two episodes at once."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, folder: Path) -> None:
        """channel: our end of its standard input and output, not blocking."""
        self._process, self._channel, self._folder = process, channel, folder
        # Also at the end of the interpreter, and for a slot that nobody uses any more.
        self._finalizer = weakref.finalize(self, _end, process, channel, folder)

    @classmethod
    async def start(cls, name: str, options: Mapping[str, Any], config: HostConfig) -> EnvironmentProcess:
        """Start a process and load the environment's factory in it.

        Raises ConfigError when the interpreter is missing or the factory cannot be built, EnvironmentProcessError when
        the process ends.
        """
        folder = await asyncio.to_thread(make_scratch, "areal-environment-")
        ours, theirs = socket.socketpair()
        try:
            with (folder / "stderr").open("wb") as log:
                process = subprocess.Popen(
                    [config.python or sys.executable, "-P", str(Path(__file__).with_name("_child.py")), str(folder)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=log,
                    cwd=folder,
                    env=_variables(folder, config),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            remove_scratch(folder)
            raise ConfigError(
                f"environment {name!r}: no process could be started: {error}",
                where="host.python",
                fix="name an interpreter that exists, e.g. the one that scripts/setup_environments.sh makes",
            ) from error
        finally:
            theirs.close()
        ours.setblocking(False)
        made = cls(process, ours, folder)
        try:
            await made.call(
                {
                    "op": "load",
                    # A name that a project registers is known in this process only.
                    "name": ENVIRONMENTS.get(name, name),
                    "options": dict(options),
                    "sys_path": _code_paths(foreign=bool(config.python)),
                    "foreign": bool(config.python),
                    "memory_limit_mb": config.memory_limit_mb,
                    "reuse": config.reuse,
                }
            )
        except BaseException:
            await made.kill()
            raise
        return made

    @property
    def pid(self) -> int:
        """Of the guard, which leads the group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take another episode."""
        return self._process.poll() is None

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """See `Environment`. Raises EnvironmentRaisedError, EnvironmentProcessError."""
        return wire.observation_from_plain(await self.call({"op": "reset", "row": dict(row), "seed": seed}))

    async def step(self, answer: AssistantTurn) -> StepResult:
        """See `Environment`. Raises EnvironmentRaisedError, EnvironmentProcessError."""
        return wire.result_from_plain(await self.call({"op": "step", "answer": wire.turn_to_plain(answer)}))

    async def close(self) -> None:
        """Close the environment; the process stays for the next one."""
        await self.call({"op": "close"})

    async def kill(self) -> None:
        """End the process and all that it started, and remove its folder. Idempotent."""
        self._channel.close()  # the guard takes this for the order to kill everything below it
        await self._ended()
        self._finalizer()

    async def call(self, message: Mapping[str, Any]) -> Any:
        """Send one frame of `areal.environment._child` and return what it answers."""
        loop = asyncio.get_running_loop()
        try:
            body = json.dumps(message).encode()
        except (TypeError, ValueError) as error:
            raise EnvironmentProcessError(f"what is sent to the environment is not JSON: {error}") from error
        try:
            await loop.sock_sendall(self._channel, HEADER.pack(len(body)) + body)
            (size,) = HEADER.unpack(await self._receive(HEADER.size))
            if size > _MAX_FRAME_BYTES:
                raise EnvironmentProcessError(f"an answer of {size} bytes, more than {_MAX_FRAME_BYTES}")
            answer = json.loads(await self._receive(size))
        except ConnectionError as error:
            await self._ended()
            ended = exit_text(self._process.poll())
            raise EnvironmentProcessError(f"its process ended ({ended}); it said: {self._last_words()}") from error
        if "ok" in answer:
            return answer["ok"]
        if answer["usage"]:
            raise ConfigError(answer["error"], where="environment", fix=answer["fix"])
        raise EnvironmentRaisedError(answer["error"])

    async def _receive(self, size: int) -> bytes:
        """Return the next bytes. Raises ConnectionError when there are no more."""
        loop, found = asyncio.get_running_loop(), bytearray()
        while len(found) < size:
            part = await loop.sock_recv(self._channel, min(size - len(found), _READ_BYTES))
            if not part:
                raise ConnectionResetError("the process closed its end")
            found += part
        return bytes(found)

    async def _ended(self) -> None:
        """Wait for the end of the process, not for ever."""
        deadline = monotonic() + _KILL_SECONDS
        while self.is_alive and monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)

    def _last_words(self) -> str:
        try:
            text = (self._folder / "stderr").read_bytes()[-_SHOWN_CHARACTERS:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return text or "(none)"


def _code_paths(*, foreign: bool) -> list[str]:
    """Return where the process finds modules, areal among them.

    A foreign interpreter has packages of its own, which ours would shadow with other versions.
    """
    areal, found = str(Path(__file__).parents[2]), [path or os.getcwd() for path in sys.path]
    if not foreign:
        return [*found, areal]
    ours = tuple({sys.prefix, sys.base_prefix})
    return [areal, *(path for path in found if not path.startswith(ours))]


def _variables(folder: Path, config: HostConfig) -> dict[str, str]:
    passed = {name: os.environ[name] for name in (*_PASSED_ON, *config.pass_variables) if name in os.environ}
    return {**passed, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def _end(process: subprocess.Popen[bytes], channel: socket.socket, folder: Path) -> None:
    """End what is left; blocks for a moment at most."""
    channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    remove_scratch(folder)
