"""What starts node runners: the protocol of backends, their table, and the command that they all start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from areal.api import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.files import JobFolder
    from areal.infra.jobs.plan import JobPlan

BACKENDS: Final[dict[str, str]] = {
    "local": "areal.infra.jobs.local:LocalBackend",
    "ray": "areal.infra.jobs.ray:RayBackend",
    "slurm": "areal.infra.jobs.slurm:SlurmBackend",
}
"""Value of job.backend to its class. Strings, so that a job loads only its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of a launch."""

    exit_code: int
    text: str
    identity: str = ""
    """Of the job for its scheduler."""


class JobBackend(Protocol):
    """Starts the runners of a plan, and knows what its scheduler thinks of them."""

    def preview(self, plan: JobPlan) -> str:
        """Return what would be started or submitted, with nothing installed and nothing written."""
        ...

    def check(self, plan: JobPlan) -> None:
        """Raise UsageError when a program is missing, or the request can never be met here."""
        ...

    def launch(self, plan: JobPlan, folder: JobFolder, stop: StopRequest, show: Callable[[str], None]) -> JobOutcome:
        """Start or submit it. show: gets what the first rank prints, where this waits for the job's end."""
        ...

    def state(self, plan: JobPlan, folder: JobFolder) -> str:
        """Return what the scheduler says; "unknown" when it does not answer, "gone" when it knows nothing."""
        ...

    def cancel(self, plan: JobPlan, folder: JobFolder) -> None:
        """End it with grace, then without; return when nothing of it runs. `folder.ask_to_end` was called before."""
        ...


def get_backend(name: str) -> JobBackend:
    """Return a backend. Raises RegistryError for a name that is not in the table."""
    backend: JobBackend = load("backend", name, BACKENDS)()
    return backend


def runner_command(plan: JobPlan, role: str, *, node: int | None = None, life: int | None = None) -> list[str]:
    """Return the command of one runner, in its container if there is one.

    node, life: where the scheduler does not say it in variables; the runner then also has its lifeline as standard
    input.
    """
    command = [plan.python, "-m", "areal", "node", "--plan", str(Path(plan.folder, "plan.json")), "--role", role]
    if node is not None and life is not None:
        command += ["--node", str(node), "--life", str(life), "--lifeline"]
    gpus = plan.role(role).gpus
    if plan.runtime == "apptainer":
        # Not --cleanenv: the runner drops what it does not need, and needs what the scheduler says.
        binds = [word for mount in _mounts(plan) for word in ("--bind", mount)]
        return ["apptainer", "exec", *(["--nv"] if gpus else []), *binds, plan.image, *command]
    if plan.runtime == "docker":
        volumes = [word for mount in _mounts(plan) for word in ("--volume", mount)]
        devices = ["--gpus", "all"] if gpus else []
        return ["docker", "run", "--rm", "--interactive", "--init", "--network", "host", "--ipc", "host", *devices,
                *volumes, plan.image, *command]  # fmt: skip
    return command


def container_options(plan: JobPlan) -> list[str]:
    """Return the options of srun for pyxis; empty for other runtimes."""
    if plan.runtime != "pyxis":
        return []
    return [f"--container-image={plan.image}", f"--container-mounts={','.join(_mounts(plan))}"]


def _mounts(plan: JobPlan) -> list[str]:
    own = dict.fromkeys((str(Path(plan.folder).parent), plan.working_folder))
    return [*(f"{path}:{path}" for path in own), *plan.mounts]
