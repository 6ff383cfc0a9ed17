"""The backend Slurm: one batch job, whose script starts one `areal node` per role and node, and sends them the notice.

The script is fixed text with numbers, names and paths of known form; all other values are in the plan. Learnt by trying
(22.05): SIGTERM to `srun` kills its tasks at once, so the notice goes to the steps through `scancel`; a value given to
`--export` ends at the first comma; with `--kill-on-bad-exit` the others are killed before they can save.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import EngineError, UsageError
from areal.infra.jobs.backend import JobOutcome, container_options, runner_command
from areal.infra.jobs.files import JobFolder
from areal.infra.jobs.order import LOST, STOPPED
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.plan import JobPlan, PlannedRole, Site

_logger = getLogger(__name__)
_PROGRAMS: Final = ("sbatch", "scancel", "scontrol", "squeue", "srun")
_ASK_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
_CLEAN_UP_SECONDS: Final = 30.0
_JOB_ID: Final = re.compile(r"\d+")
_FIRST: Final = "trainer-0"
_SUBMITTED_WITH: Final = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "SLURM_CONF", "TZ", "USER")
"""What `sbatch` sees: it sends its whole environment, secrets included, to the controller, which keeps it on disk."""

_SCRIPT: Final = """\
#!/bin/bash
# Made by `areal launch --on slurm`. What users may choose freely is in the plan, not here.
{options}
set -u

readonly PYTHON={python}
readonly PLAN={plan}
notice=

# Slurm sends USR1 to this shell before a preemption or the time limit. The steps are asked to save and end; a signal to
# srun itself would kill them.
on_notice() {{
    notice=--notice
    scancel --signal=TERM "$SLURM_JOB_ID"
}}
trap on_notice USR1

mkdir -p {runners}
{steps}

# wait returns early when the notice comes; the steps are still saving then.
while [ -n "$(jobs -pr)" ]; do
    wait
done

"$PYTHON" -m areal node --plan "$PLAN" --conclude ${{notice:+"$notice"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component:
    """Nodes of one shape."""

    sites: Sequence[Site]

    @property
    def num_nodes(self) -> int:
        return sum(site.num_nodes for site in self.sites)


class SlurmBackend:
    """`JobBackend` of a Slurm cluster. `launch` submits and returns."""

    def preview(self, plan: JobPlan) -> str:
        """See `JobBackend.preview`: the batch script."""
        return script(plan)

    def check(self, plan: JobPlan) -> None:
        """See `JobBackend.check`."""
        missing = [name for name in _PROGRAMS if shutil.which(name) is None]
        if missing:
            raise UsageError(
                f"there is no {', '.join(missing)} here: this machine does not belong to a Slurm cluster",
                where="job.backend",
                fix="submit from a login node; --dry-run needs no Slurm",
            )

    def launch(self, plan: JobPlan, folder: JobFolder, stop: StopRequest, show: Callable[[str], None]) -> JobOutcome:
        """See `JobBackend.launch`. Raises UsageError with what sbatch says when it refuses."""
        path = folder.path / "script.sbatch"
        path.write_text(script(plan), encoding="utf-8")
        done = _ask("sbatch", "--parsable", str(path))
        if done.returncode:
            reason = (done.stderr or done.stdout).strip()
            folder.set_state("refused", reason)
            raise UsageError(
                f"sbatch refused the job: {reason}",
                where=str(folder.path),
                fix="see `sinfo` and the script in the job's folder",
            )
        identity = done.stdout.strip().partition(";")[0]
        folder.set_state("submitted", identity=identity)
        return JobOutcome(exit_code=0, text=f"submitted {plan.name} as job {identity}", identity=identity)

    def state(self, plan: JobPlan, folder: JobFolder) -> str:
        """See `JobBackend.state`."""
        identity = str(folder.state().get("identity", ""))
        if not _JOB_ID.fullmatch(identity):
            return "gone"
        if shutil.which("squeue") is None:
            return "unknown"
        done = _ask("squeue", "--noheader", "--jobs", identity, "--format", "%T|%r")
        if done.returncode:
            return "gone" if "Invalid job id" in done.stderr else "unknown"
        states = [line.partition("|")[::2] for line in done.stdout.split("\n") if line.strip()]
        if not states:
            return "gone"
        state, reason = states[0]
        return f"{state.lower()} ({reason})" if reason.strip() not in {"", "None"} else state.lower()

    def cancel(self, plan: JobPlan, folder: JobFolder) -> None:
        """See `JobBackend.cancel`. Raises UsageError when the number belongs to somebody else's job by now."""
        identity = str(folder.state().get("identity", ""))
        if not _JOB_ID.fullmatch(identity):
            return
        found = _ask("squeue", "--noheader", "--jobs", identity, "--format", "%u|%j|%T").stdout.split()
        if not found:
            _end_state(folder)
            return
        user, name, state = found[0].split("|")
        if (user, name) != (getpass.getuser(), plan.name):
            raise UsageError(
                f"job {identity} is {name} of {user}, and not {plan.name} of {getpass.getuser()}",
                where=str(folder.path),
                fix="see `squeue --me`; nothing was cancelled",
            )
        if state == "RUNNING":
            _ask("scancel", "--signal=TERM", identity)
            if self._gone_within(plan.grace_seconds + _CLEAN_UP_SECONDS, identity):
                _end_state(folder)
                return
        _ask("scancel", identity)
        if not self._gone_within(_CLEAN_UP_SECONDS * 2, identity):
            raise EngineError(
                f"job {identity} does not end", where=str(folder.path), fix=f"see `squeue --jobs {identity}`"
            )
        _end_state(folder)

    def _gone_within(self, seconds: float, identity: str) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            done = _ask("squeue", "--noheader", "--jobs", identity, "--format", "%T")
            if "Invalid job id" in done.stderr or (done.returncode == 0 and not done.stdout.strip()):
                return True
            time.sleep(_POLL_SECONDS)
        return False


def script(plan: JobPlan) -> str:
    """Return the batch script of a plan; its size depends on the number of roles, not of nodes."""
    # One component when all nodes have one shape, else one per site.
    alike = len({site.shape for site in plan.sites}) == 1
    components = [_Component(sites=sites) for sites in ([plan.sites] if alike else [(site,) for site in plan.sites])]
    slurm, folder = plan.slurm, Path(plan.folder)
    common = [
        f"--job-name={plan.name}",
        f"--output={folder / 'logs' / 'batch.log'}",
        "--open-mode=append",
        "--requeue" if plan.requeue else "--no-requeue",
        f"--signal=B:USR1@{slurm['signal_seconds']}",
    ]
    blocks = [
        "\n".join(f"#SBATCH {option}" for option in (common if number == 0 else []) + _needs(plan, component))
        for number, component in enumerate(components)
    ]
    steps = [
        _step(plan, role, group=number if len(components) > 1 else None, first_node=sum(
            other.num_nodes for other in component.sites[:place]) if len(component.sites) > 1 else None)
        for number, component in enumerate(components)
        for place, site in enumerate(component.sites)
        for role in site.roles
    ]  # fmt: skip
    return _SCRIPT.format(
        options="\n#SBATCH hetjob\n".join(blocks),
        python=plan.python,
        plan=folder / "plan.json",
        runners=folder / "logs" / "runners",
        steps="\n".join(steps),
    )


def _needs(plan: JobPlan, component: _Component) -> list[str]:
    gpus, cpus, memory_gb, nodes = component.sites[0].shape
    slurm = plan.slurm
    return [
        *(f"--{name}={slurm[name]}" for name in ("partition", "account", "qos", "time") if slurm[name]),
        f"--nodes={component.num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        *([f"--mem={memory_gb}G"] if memory_gb else []),
        *([f"--gres={slurm['gres']}:{gpus}"] if gpus else []),
        *([f"--nodelist={nodes}"] if nodes else []),
        *(["--exclusive"] if slurm["exclusive"] else []),
        *slurm["extra"],
    ]


def _step(plan: JobPlan, role: PlannedRole, *, group: int | None, first_node: int | None) -> str:
    """Return the line of one role. first_node: where it begins, when it shares a component with others."""
    words = [
        "srun",
        *([f"--het-group={group}"] if group is not None else []),
        *([f"--relative={first_node}"] if first_node is not None else []),
        f"--nodes={role.num_nodes}",
        f"--ntasks={role.num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={role.cpus * role.per_node}",
        # Else the second step on a node waits until the first gives its devices back.
        *(["--overlap"] if role.name in plan.colocate else []),
        "--kill-on-bad-exit=0",
        "--input=none",
        f"--output={Path(plan.folder, 'logs', 'runners', f'{role.name}-%t.log')}",
        "--open-mode=append",
        *container_options(plan),
    ]
    *_, plan_file, role_flag, role_name = runner = runner_command(plan, role.name)
    # The two paths once, at the top: everything else of the command is ours.
    shown = [{plan.python: '"$PYTHON"', plan_file: '"$PLAN"'}.get(word, word) for word in runner]
    assert (role_flag, role_name) == ("--role", role.name)
    return " ".join([*words, *shown, "&"])


def conclude(plan: JobPlan, *, life: int, notice: bool) -> JobOutcome:
    """Say what became of an allocation, at the end of its script, and queue the job again if it is to go on.

    notice: Slurm had asked for the end; such an end does not count as a failure. Returns the job's exit code.
    """
    folder = JobFolder(Path(plan.folder))
    said, state = folder.status(_FIRST), folder.state()
    known = said.get("life") == life
    code = int(said["exit_code"]) if known else LOST
    text = str(said["text"]) if known else "the first runner left no status"
    failures = int(state.get("failures", 0)) + (code == LOST)
    again = plan.requeue and not folder.cancelled and (
        (notice and code in {STOPPED, LOST}) or (code == LOST and failures <= plan.max_restarts)
    )  # fmt: skip
    if again:
        reason = "preempted, or out of time" if notice else text
        folder.set_state("queued", reason, failures=0 if notice else failures)
        folder.note("requeue", reason, life=life)
        done = _ask("scontrol", "requeue", os.environ.get("SLURM_JOB_ID", ""))
        if done.returncode == 0:
            return JobOutcome(exit_code=code, text=f"queued again: {reason}")
        text = f"{text}; Slurm does not queue it again: {done.stderr.strip()}"
    folder.set_state("cancelled" if folder.cancelled else "ended", text, exit_code=code, failures=failures)
    return JobOutcome(exit_code=code, text=text)


def _end_state(folder: JobFolder) -> None:
    """Note that nothing runs any more, unless the job has said how it ended."""
    state = folder.state()
    if state.get("state") not in {"cancelled", "ended"}:
        folder.set_state("cancelled", "cancelled", exit_code=STOPPED)


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Slurm with what it needs of this environment, and no more."""
    environment = {name: os.environ[name] for name in _SUBMITTED_WITH if name in os.environ}
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} did not answer within {_ASK_SECONDS:g} s")
