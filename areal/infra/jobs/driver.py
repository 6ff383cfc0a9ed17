"""Drives a job whose runners this process holds (local, Ray): places them, watches them, places them again, ends them.

A runner that is lost ends the allocation: the others would compute something that is no longer the run. The next one
continues from the run's own checkpoint.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from areal.api import ArealError
from areal.infra.jobs.backend import JobOutcome
from areal.infra.jobs.order import LOST, STOPPED, pause_since
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.files import JobFolder
    from areal.infra.jobs.plan import JobPlan

_logger = getLogger(__name__)
_POLL_SECONDS: Final = 0.1
_CLEAN_UP_SECONDS: Final = 15.0
_PAUSE_SECONDS: Final = 1.0
_FIRST: Final = "trainer-0"


class RunnerHandle(Protocol):
    """A node runner that this process has started."""

    name: str

    def poll(self) -> int | None:
        """Return its exit code, negative when it was killed, None while it runs; LOST when its node is gone."""
        ...

    def send(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        ...


def drive(
    plan: JobPlan,
    folder: JobFolder,
    stop: StopRequest,
    place: Callable[[int], AbstractContextManager[Sequence[RunnerHandle]]],
    follow: Callable[[], None],
) -> JobOutcome:
    """Run the job to its end. place: starts all runners of an allocation with this number, and leaves none behind.
    follow: is called often, to show what the first runner prints.
    """
    failures = 0
    while True:
        life = folder.new_life()
        folder.clear_status()
        folder.set_state("placing", life=life)
        try:
            with place(life) as runners:
                code, text = _watch(plan, folder, stop, runners, follow)
        except ArealError as error:
            folder.set_state("ended", str(error), exit_code=error.exit_code)
            raise
        follow()
        asked = stop.requested or folder.cancelled
        if code != LOST or asked or failures >= plan.max_restarts:
            break
        failures += 1
        _logger.warning("%s; allocation %d of %d further ones", text, failures, plan.max_restarts)
        folder.note("lost", text, life=life)
        stop.requested_within(_PAUSE_SECONDS * failures)
    if asked and code in {LOST, STOPPED}:
        code = stop.exit_code or STOPPED
    folder.set_state("cancelled" if asked else "ended", text, exit_code=code)
    return JobOutcome(exit_code=code, text=text)


def _watch(
    plan: JobPlan, folder: JobFolder, stop: StopRequest, runners: Sequence[RunnerHandle], follow: Callable[[], None]
) -> tuple[int, str]:
    """Watch one allocation until all runners have ended; returns its exit code, and why."""
    import signal

    ends: dict[str, int] = {}
    deadline, asked, first_bad = float("inf"), False, ""
    changed = time.monotonic()
    while len(ends) < len(runners):
        for runner in runners:
            if runner.name not in ends and (code := runner.poll()) is not None:
                ends[runner.name] = code
                changed = time.monotonic()
                if code and not first_bad and folder.state().get("state") != "ending":
                    first_bad = runner.name
                    deadline = min(deadline, time.monotonic() + plan.grace_seconds + _CLEAN_UP_SECONDS)
                    _send(runners, ends, signal.SIGUSR1)
        if not asked and (stop.requested or folder.cancelled):
            asked = True
            deadline = min(deadline, time.monotonic() + plan.grace_seconds + _CLEAN_UP_SECONDS)
            _send(runners, ends, signal.SIGTERM)
        if time.monotonic() > deadline:
            _send(runners, ends, signal.SIGKILL)
            deadline = float("inf")
        follow()
        time.sleep(pause_since(changed))
    if first_bad:
        said = folder.status(first_bad)
        code = ends[first_bad] if ends[first_bad] > 0 else LOST
        return code, f"runner {first_bad}: {said.get('text', f'ended with {ends[first_bad]}')}"
    said = folder.status(_FIRST)
    return int(said.get("exit_code", LOST)), str(said.get("text", "the first runner left no status"))


def _send(runners: Sequence[RunnerHandle], ends: dict[str, int], number: int) -> None:
    for runner in runners:
        if runner.name not in ends:
            runner.send(number)
