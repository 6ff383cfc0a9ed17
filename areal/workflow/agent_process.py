"""Run the command of one episode's agent: in a folder and a home of its own, ended as a whole, removed afterwards.

The guard (`areal.utils.guard`) kills what the command leaves behind, and everything when this process dies, however it
dies. It does not isolate: a command may read what its user may read. Agents that run what a model wrote belong into a
container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from areal.api import Config, FaultError, FaultKind, number
from areal.utils.guard import guarded
from areal.utils.scratch import make_scratch, remove_scratch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

PASSED_ON: Final = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "SYSTEMROOT", "TZ")
"""Variables that commands get; nothing else of this process's environment."""

_GRACE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_TAIL_BYTES: Final = 4000


@dataclass(frozen=True, kw_only=True)
class AgentProcessConfig(Config):
    """How an agent runs."""

    folder: str = ""
    """What the working folder of each attempt is copied from; empty begins with an empty one."""
    prepare: str = ""
    """"module:function", called with the row and the working folder before the agent starts."""
    seconds: float = number(600.0, above=0)
    """Wall time of one attempt; then the agent is ended."""
    accept_exit_codes: tuple[int, ...] = (0,)
    """Of a command; others are a fault. Add those of crashes that the model's doing can cause: they are then scored."""
    grade_timeouts: bool = False
    """Score what a slow agent did until it was ended, instead of a fault."""
    allow_agent_reward: bool = False
    """Let the agent set rewards over HTTP (/rl/reward). Whatever it runs can then reward itself."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of a command, besides the session's."""
    pass_environment: tuple[str, ...] = ()
    """Names of variables of this process that a command gets."""
    answer_file: str = ""
    """File in the working folder that holds the final answer; empty takes what the model said last."""
    max_folder_bytes: int = number(2_000_000_000, at_least=1)
    """Of everything that an attempt writes; beyond, it is ended as a fault."""


@dataclass(frozen=True, slots=True)
class AgentFolders:
    """Where an attempt may write."""

    base: Path

    @property
    def work(self) -> Path:
        """Working folder of the command."""
        return self.base / "work"

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.base / "output.log"

    def environment(self) -> dict[str, str]:
        """Return the variables that name its own places."""
        return {"HOME": str(self.base / "home"), "TMPDIR": str(self.base / "tmp")}

    def fill(self, template: str) -> None:
        """Make all places, the working folder as a copy of `template`."""
        for name in self.environment().values():
            Path(name).mkdir()
        if template:
            shutil.copytree(template, self.work, symlinks=True)
        else:
            self.work.mkdir()

    def num_bytes(self, enough: int) -> int:
        """Return the size of all files, or something above `enough`."""
        total = 0
        for place, _, names in os.walk(self.base):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(place, name)).st_blocks * 512
            if total > enough:
                break
        return total

    def log_end(self) -> str:
        """Return the last lines of what was printed; "" where nothing can be read."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def remove(self) -> None:
        """Remove all of it, folders too that their owner locked."""
        remove_scratch(self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """How a command ended."""

    status: int
    """Exit code, 128 + number after a signal."""
    timed_out: bool = False
    too_large: bool = False
    tail: str = ""
    """End of what it printed."""


@contextlib.asynccontextmanager
async def agent_folders(template: str) -> AsyncIterator[AgentFolders]:
    """Make the folders of an attempt, the working folder as a copy of `template`, and remove them afterwards."""
    folders = AgentFolders(await asyncio.to_thread(make_scratch, "areal-agent-"))
    try:
        await asyncio.to_thread(folders.fill, template)
        yield folders
    finally:
        await asyncio.shield(asyncio.to_thread(folders.remove))


async def run_command(
    command: Sequence[str],
    folders: AgentFolders,
    *,
    environment: Mapping[str, str],
    config: AgentProcessConfig,
) -> CommandOutcome:
    """Run a command to its end, or end it: after its time, when its folders exceed their size, or when cancelled.

    environment: besides what every command gets. Raises FaultError(AGENT_FAILED) when it cannot be started.
    """
    own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    lifeline, ours = os.pipe()
    try:
        with folders.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, lifeline=lifeline, grace_seconds=_GRACE_SECONDS, folder=str(folders.base)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folders.work,
                env={**own, **folders.environment(), **environment},
                pass_fds=(lifeline,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(ours)
        raise FaultError(FaultKind.AGENT_FAILED, f"cannot start {sys.executable}: {error}") from error
    finally:
        os.close(lifeline)
    timed_out = too_large = False
    try:
        ended = asyncio.ensure_future(process.wait())
        deadline, most = monotonic() + config.seconds, config.max_folder_bytes
        while not (await asyncio.wait({ended}, timeout=_LOOK_SECONDS))[0]:
            timed_out = monotonic() >= deadline
            too_large = await asyncio.to_thread(folders.num_bytes, most) > most
            if timed_out or too_large:
                break
    finally:
        # Also after its end: a guard that was killed has left its group behind. Closing the lifeline ends it too.
        await asyncio.shield(_end(process, ours))
    status = process.returncode if process.returncode is not None else -signal.SIGKILL
    return CommandOutcome(
        status=128 - status if status < 0 else status,
        timed_out=timed_out,
        too_large=too_large,
        tail=await asyncio.to_thread(folders.log_end),
    )


async def _end(process: asyncio.subprocess.Process, lifeline: int) -> None:
    """End a command and everything it started."""
    with contextlib.suppress(OSError):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(2 * _GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    # A guard that ended by itself has killed everything, and its group may be somebody else's by now.
    if process.returncode is None or process.returncode < 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    os.close(lifeline)
