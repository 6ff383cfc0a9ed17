"""Submits a plan through its backend, at most once at a time for a job's folder, and finds jobs again by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import BusyError, UsageError
from areal.infra.jobs.backend import JobBackend, JobOutcome, get_backend
from areal.infra.jobs.checks import NAME
from areal.infra.jobs.files import ENDED, JobFolder
from areal.infra.jobs.plan import read_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.plan import JobPlan


def submit(
    plan: JobPlan, environment: Mapping[str, str], *, stop: StopRequest, show: Callable[[str], None]
) -> JobOutcome:
    """Check, write the job's folder, and start or submit. environment: of whoever submits, for passed values.

    Raises UsageError for what can never run here, BusyError when the job is there already and has not ended.
    """
    backend, folder = get_backend(plan.backend), JobFolder(Path(plan.folder))
    backend.check(plan)
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    busy = f"job {plan.name} in {folder.path} is being submitted by another process"
    with folder.locked("submit.lock", busy=busy):
        _require_ended(folder)
        folder.prepare(plan, environment)
        folder.set_state("planned", name=plan.name, backend=plan.backend, id=plan.id)
        return backend.launch(plan, folder, stop, show)


def _require_ended(folder: JobFolder) -> None:
    state = folder.state().get("state")
    if state is None or state in ENDED or not folder.plan_path.exists():
        return
    before = read_plan(folder.plan_path)
    said = get_backend(before.backend).state(before, folder)
    if said != "gone":
        raise BusyError(
            f"job {before.name} in {folder.path} has not ended (state {state}, {before.backend} says {said})",
            where=str(folder.path),
            fix=f"wait, or `areal job cancel {before.name} --directory {folder.path.parent}`",
        )


def find_job(name: str, directory: Path) -> tuple[JobFolder, JobPlan, JobBackend]:
    """Return a job by its name. Raises UsageError for one that is not there."""
    folder = JobFolder(directory / name)
    if not NAME.fullmatch(name) or not folder.plan_path.exists():
        raise UsageError(
            f"there is no job {name!r} in {directory}",
            where=str(directory),
            fix=f"see `areal job list --directory {directory}`",
        )
    plan = read_plan(folder.plan_path)
    return folder, plan, get_backend(plan.backend)


def describe_job(folder: JobFolder, plan: JobPlan, backend: JobBackend) -> dict[str, Any]:
    """Return the state of a job as plain data: its own word first, the scheduler's beside it."""
    said = folder.state()
    state = str(said.get("state", "planned"))
    return {
        "name": plan.name,
        "backend": plan.backend,
        "state": state,
        "scheduler": "" if state in ENDED else backend.state(plan, folder),
        "identity": said.get("identity", ""),
        "reason": said.get("reason", ""),
        "start": said.get("start"),
        "life": said.get("life"),
        "exit_code_of_job": said.get("exit_code") if state in ENDED else None,
        "folder": str(folder.path),
    }
