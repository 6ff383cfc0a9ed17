"""Decides for a whole job, in its first runner: when ranks start, when they end, and what comes after a failure.

`tick` is called a few times per second with what is in the directory; it returns the order in force. Nothing here
starts or ends a process.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from areal.infra.jobs.compile import TRAINER
from areal.infra.jobs.order import LOST, MISMATCH, STOPPED, Order, RunnerReport
from areal.infra.launch.launcher import FINAL_STATUSES
from areal.infra.supervisor.process import new_incarnation
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from areal.infra.jobs.files import JobFolder
    from areal.infra.jobs.plan import JobPlan

_logger = getLogger(__name__)
_STOPPED_STATUSES: Final = frozenset({130, STOPPED})
_LONGEST_PAUSE_SECONDS: Final = 60.0
_RESET_SECONDS: Final = 1800.0
"""A start that lived so long forgets the failures before it."""
_REMIND_SECONDS: Final = 30.0


class Conductor:
    """State of a job as its first runner sees it. meeting: returns host and a free port for a start."""

    def __init__(
        self, plan: JobPlan, folder: JobFolder, *, first_number: int, meeting: Callable[[], tuple[str, int]]
    ) -> None:
        self._plan, self._folder, self._meeting = plan, folder, meeting
        self._trainer = plan.role(TRAINER)
        self._next_number = first_number
        self._failures = 0
        self._since = time.monotonic()
        self._ready_since: float | None = None
        self._reminded = self._since
        self._not_before = 0.0
        self.order = Order()

    def tick(self, runners: Mapping[str, Mapping[str, Any]], services: Mapping[str, Mapping[str, Any]]) -> Order:
        """Return the order after looking at all reports and at the services that are ready."""
        reports = {name: RunnerReport(**value) for name, value in runners.items()}
        trainers = [reports.get(f"{TRAINER}-{node}") for node in range(self._trainer.num_nodes)]
        step = {"gather": self._gather, "run": self._run, "end": self._end}.get(self.order.phase)
        if step is not None:
            step(reports, trainers, services)
        return self.order

    def give_up(self, exit_code: int, reason: str) -> None:
        """End the job."""
        self.order = replace(self.order, phase="over", exit_code=exit_code, reason=reason)
        self._folder.set_state("ending", reason, exit_code=exit_code)
        self._folder.note("over", reason, exit_code=exit_code)

    def _gather(
        self,
        reports: Mapping[str, RunnerReport],
        trainers: list[RunnerReport | None],
        services: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Wait for all that a start needs, then order it."""
        if any(report.stopping for report in reports.values()):
            self.give_up(STOPPED, "asked to stop before ranks started")
            return
        odd = [name for name, one in reports.items() if (one.version, one.digest) != self._own]
        if odd:
            self.give_up(
                MISMATCH, f"{', '.join(odd)} run another version of areal or read another plan than the first runner"
            )
            return
        wanted = [
            f"{role.name}-{node}" for role in self._plan.roles if role.eager for node in range(role.num_nodes)
        ]  # fmt: skip
        missing = [name for name in wanted if name not in reports]
        unready = self._unready(services)
        waited = time.monotonic() - self._since
        if missing and waited > self._plan.network["meet_seconds"]:
            self.give_up(LOST, f"{', '.join(missing)} did not come within {waited:.0f} s")
        elif missing or unready:
            failed = [one for one in reports.values() if one.role != TRAINER and one.state == "failed"]
            if unready and failed:
                self.give_up(failed[0].status or 1, f"{failed[0].role}-{failed[0].node}: {failed[0].text}")
            elif time.monotonic() - self._reminded > _REMIND_SECONDS:
                self._reminded = time.monotonic()
                _logger.warning("waiting for %s", ", ".join([*missing, *unready]))
        elif time.monotonic() >= self._not_before and all(one and one.state != "running" for one in trainers):
            self._begin()

    @property
    def _own(self) -> tuple[str, str]:
        return self._plan.version, self._plan.digest

    def _begin(self) -> None:
        host, port = self._meeting()
        self.order = Order(
            phase="run",
            number=self._next_number,
            incarnation=new_incarnation(),
            host=host,
            port=port,
        )
        self._next_number += 1
        self._since, self._ready_since = time.monotonic(), None
        self._folder.set_state("running", start=self.order.number, incarnation=self.order.incarnation)
        self._folder.note("start", f"start {self.order.number}", incarnation=self.order.incarnation)

    def _run(
        self,
        reports: Mapping[str, RunnerReport],
        trainers: list[RunnerReport | None],
        services: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """See whether the start goes on."""
        lost = [f"{TRAINER}-{node}" for node, report in enumerate(trainers) if report is None]
        mine = [report for report in trainers if report is not None and report.number == self.order.number]
        failed = sorted(
            (report for report in mine if report.state == "failed"), key=lambda one: (one.status <= 128, one.rank)
        )
        if lost:
            self._finish(LOST, f"{', '.join(lost)} was lost")
        elif any(report.stopping for report in reports.values()):
            self._finish(STOPPED, "asked to stop", gentle=True)
        elif failed:
            first = failed[0]
            self._finish(first.status, f"rank {first.rank} on {first.host}: {first.text}")
        elif len(mine) == len(trainers) and all(report.state == "done" for report in mine):
            self.give_up(0, "all ranks ended well")
        elif unready := self._unready(services):
            self._ready_since = self._ready_since or time.monotonic()
            if time.monotonic() - self._ready_since > self._plan.network["meet_seconds"]:
                self._finish(LOST, f"{', '.join(unready)} too few, and none came back", gentle=True)
        else:
            self._ready_since = None

    def _finish(self, status: int, reason: str, *, gentle: bool = False) -> None:
        """Order the end of the start that runs."""
        self.order = replace(self.order, phase="end", gentle=gentle, exit_code=status, reason=reason)
        self._folder.set_state("saving" if gentle else "losing", reason)
        self._folder.note("end", reason, start=self.order.number, status=status)
        (_logger.warning if gentle else _logger.error)("start %d: %s", self.order.number, reason)

    def _end(
        self,
        reports: Mapping[str, RunnerReport],
        trainers: list[RunnerReport | None],
        services: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Once all ranks of the start have ended: another start, or none."""
        if any(report is not None and report.state != "idle" for report in trainers):
            return
        status, reason, lived = self.order.exit_code, self.order.reason, time.monotonic() - self._since
        stopping = any(report.stopping for report in reports.values())
        if stopping and status not in FINAL_STATUSES:
            self.give_up(LOST if status == LOST else STOPPED, reason)
            return
        if status in FINAL_STATUSES | _STOPPED_STATUSES | {LOST}:
            self.give_up(status, reason)
            return
        self._failures = 1 if lived > _RESET_SECONDS else self._failures + 1
        if self._failures > self._trainer.max_restarts:
            self.give_up(status, f"{reason}; {self._failures} starts failed in a row")
            return
        pause = min(2.0 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS)
        _logger.warning("restart %d of %d in %.0f s", self._failures, self._trainer.max_restarts, pause)
        self._since, self._not_before = time.monotonic(), time.monotonic() + pause
        self.order = replace(self.order, phase="gather", exit_code=0, reason="")
        self._folder.set_state("meeting", reason)

    def _unready(self, services: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return what is missing of services, in words."""
        found = []
        for role in self._plan.roles:
            if not role.min_ready or not role.eager:
                continue
            ready = sum(name.startswith(f"{role.name}-") for name in services)
            if ready < role.min_ready:
                found.append(f"{role.min_ready - ready} of {role.min_ready} {role.name} processes")
        return found
