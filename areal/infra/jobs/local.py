"""The backend of one machine: runners are child processes; several "nodes" may be here, for trials of larger jobs."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, UsageError
from areal.infra.jobs.backend import JobOutcome, runner_command
from areal.infra.jobs.driver import drive
from areal.infra.jobs.files import ENDED
from areal.infra.jobs.surroundings import DEVICES_VARIABLE, visible_devices
from areal.infra.launch.ranks import LogFollower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.driver import RunnerHandle
    from areal.infra.jobs.files import JobFolder
    from areal.infra.jobs.plan import JobPlan

_POLL_SECONDS: Final = 0.1
_CLEAN_UP_SECONDS: Final = 20.0
_END_SECONDS: Final = 20.0


class LocalBackend:
    """`JobBackend` of this machine. `launch` waits for the end of the job."""

    def preview(self, plan: JobPlan) -> str:
        """See `JobBackend.preview`: one command per runner."""
        lines = []
        for role, node in plan.runners:
            lines.append(f"# {role}-{node}")
            lines.append(shlex.join(runner_command(plan, role, node=node, life=0)))
        return "\n".join(lines)

    def check(self, plan: JobPlan) -> None:
        """See `JobBackend.check`."""
        if plan.runtime != "none" and shutil.which(plan.runtime) is None:
            raise UsageError(
                f"job.runtime is {plan.runtime}, and there is no program {plan.runtime} here",
                where="job.runtime",
                fix=f"install {plan.runtime}, or choose another runtime",
            )
        deal(plan, visible_devices(os.environ))

    def launch(self, plan: JobPlan, folder: JobFolder, stop: StopRequest, show: Callable[[str], None]) -> JobOutcome:
        """See `JobBackend.launch`."""
        devices = deal(plan, visible_devices(os.environ))
        followers: list[LogFollower] = []

        def follow() -> None:
            for follower in followers:
                follower.pass_on()

        @contextmanager
        def place(life: int) -> Iterator[Sequence[RunnerHandle]]:
            logs = folder.life(life) / "runners"
            logs.mkdir(parents=True, exist_ok=True)
            followers[:] = [LogFollower(logs / "trainer-0.log", show)]
            runners: list[_LocalRunner] = []
            try:
                for role, node in plan.runners:
                    command = runner_command(plan, role, node=node, life=life)
                    own = devices[role, node]
                    runners.append(_LocalRunner(f"{role}-{node}", command, logs, own))
                yield runners
            finally:
                for runner in runners:
                    runner.end()

        folder.set_state("submitted", identity=own_identity(), backend="local")
        return drive(plan, folder, stop, place, follow)

    def state(self, plan: JobPlan, folder: JobFolder) -> str:
        """See `JobBackend.state`: whoever launched it holds everything. On another host, job.json has to do."""
        host, pid, begun = where_launched(folder)
        if host == socket.gethostname():
            return "running" if begun and begun == _begun(pid) else "gone"
        return "gone" if not host or folder.state().get("state") in ENDED else f"unknown (launched on {host})"

    def cancel(self, plan: JobPlan, folder: JobFolder) -> None:
        """See `JobBackend.cancel`: whoever launched it sees the request, too; the signal is for one that is busy."""
        host, pid, _ = where_launched(folder)
        if self.state(plan, folder) == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + plan.grace_seconds + _CLEAN_UP_SECONDS
        while self.state(plan, folder) != "gone":
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the launch of {plan.name} (pid {pid} on {host}) did not end",
                    where=str(folder.path),
                    fix=f"end it there: kill -9 {pid}",
                )
            time.sleep(_POLL_SECONDS)


def deal(plan: JobPlan, devices: list[str]) -> dict[tuple[str, int], str]:
    """Return the devices of each runner, in the order of the plan: all runners share this machine.

    Raises ConfigError when the machine has too few.
    """
    needed = sum(site.shape[0] * site.num_nodes for site in plan.sites)
    if needed > len(devices):
        raise ConfigError(
            f"the job needs {needed} devices, and this machine has {len(devices)}: {','.join(devices) or 'none'}",
            where="job.roles",
            fix="lower gpus or count, or use a cluster (job.backend)",
        )
    left = iter(devices)
    dealt: dict[tuple[str, int], str] = {}
    for site in plan.sites:
        for node in range(site.num_nodes):
            own = ",".join(next(left) for _ in range(site.shape[0]))
            dealt |= {(role.name, node): own for role in site.roles}
    return dealt


class _LocalRunner:
    """`RunnerHandle` of a child process that holds its lifeline by its standard input."""

    def __init__(self, name: str, command: list[str], logs: Path, devices: str) -> None:
        self.name = name
        with (logs / f"{name}.log").open("ab") as log:
            self._process: subprocess.Popen[Any] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, DEVICES_VARIABLE: devices},
                start_new_session=True,  # Ctrl-C reaches whoever launched, who decides
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self) -> None:
        """Close the lifeline; kill what does not end by that."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def own_identity() -> str:
    """Name this process so that no other one, later or elsewhere, is taken for it."""
    return f"{socket.gethostname()}:{os.getpid()}:{_begun(os.getpid())}"


def where_launched(folder: JobFolder) -> tuple[str, int, str]:
    """Return host, pid and begin of the process that launched a job; an empty host when none did."""
    said = str(folder.state().get("identity", "")).rsplit(":", 2)
    host, pid, begun = said if len(said) == 3 else ("", "", "")
    return (host, int(pid), begun) if pid.isdecimal() else ("", 0, "")


def _begun(pid: int) -> str:
    """Return when a process began, in ticks since the start of the machine; empty when it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else others[18]
