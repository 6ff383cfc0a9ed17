"""What a runner starts on its node: the ranks of a start, or services that are restarted one by one.

Both do what the order says, and keep a report up to date. All processes are below guards: they end with the runner.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError
from areal.infra.jobs.files import KEY_FILE
from areal.infra.jobs.surroundings import DEVICES_VARIABLE, deal_devices, visible_devices
from areal.infra.launch.launcher import LOG_FOLDER_VARIABLE, TAIL_LINES
from areal.infra.launch.ranks import LogFollower, RankProcesses
from areal.infra.supervisor.process import ServerProcess, free_port, keep_newest, log_tail, new_incarnation
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from areal.infra.directory import Announcement, Directory
    from areal.infra.jobs.files import JobFolder, Redactor
    from areal.infra.jobs.order import Order, RunnerReport
    from areal.infra.jobs.plan import JobPlan, PlannedProcess, PlannedRole

_logger = getLogger(__name__)
FAILURE_GRACE_SECONDS: Final = 5.0
"""For ranks that wait in vain for one that failed: they have nothing to save."""
_LONGEST_PAUSE_SECONDS: Final = 60.0
_RESET_SECONDS: Final = 600.0
_NO_PROGRAM: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Where a runner is, and what its processes get."""

    plan: JobPlan
    role: PlannedRole
    node: int
    life: int
    folder: JobFolder
    redact: Redactor
    address: str
    directory_url: str
    environment: Mapping[str, str]
    """Of all processes here."""

    def complete(self, **values: str) -> list[str]:
        """Return the command of the role with what only the node knows."""
        known = {"directory": self.directory_url, "key_file": str(self.folder.path / KEY_FILE), **values}
        return [*self.role.command, *(one.prefix + known[one.value] for one in self.role.given)]

    def environment_of(self, process: PlannedProcess) -> dict[str, str]:
        """Return what one process gets beside what the runner itself has."""
        devices = deal_devices(self.role, visible_devices(self.environment))
        return {
            "AREAL_JOB_ROLE": self.role.name,
            "AREAL_JOB_INDEX": str(process.index),
            "AREAL_JOB_ADDRESS": self.address,
            DEVICES_VARIABLE: devices[process.slot],
        }


class RankWork:
    """Ranks of the trainer on one node."""

    def __init__(self, context: NodeContext, report: RunnerReport) -> None:
        self.report = report
        self._context = context
        self._ranks: RankProcesses | None = None
        self._follower: LogFollower | None = None
        self._unfinished = ""
        deal_devices(context.role, visible_devices(context.environment))  # raises before anything runs

    def follow(self, order: Order) -> None:
        """Start or end what the order says, and see how it goes."""
        if order.phase == "run" and order.number > self.report.number:
            self._start(order)
        if self._ranks is None:
            return
        if self._follower is not None:
            self._follower.pass_on()
        if order.phase in {"end", "over"}:
            self.stop(self._context.plan.grace_seconds if order.gentle else FAILURE_GRACE_SECONDS)
        elif self.report.state == "running":
            self._look()

    def stop(self, grace_seconds: float) -> None:
        """End all ranks here and wait for them."""
        if self._ranks is not None:
            self._ranks.stop(grace_seconds)
            if self._follower is not None:
                self._follower.pass_on()
            self._ranks = self._follower = None
        self.report = replace(self.report, state="idle")

    def _start(self, order: Order) -> None:
        context, folder = self._context, self._context.folder.logs / f"start-{order.number:04d}-{order.incarnation}"
        if context.node == 0:
            keep_newest(context.folder.logs, "start-*-*", context.plan.keep_logs - 1)
            self._follower = LogFollower(folder / "rank-0.log", self._show)
        mine = context.role.on_node(context.node)
        first = mine[0]
        # Ranks see all devices of the node's ranks and take that of LOCAL_RANK.
        shared = {key: value for key, value in context.environment_of(first).items() if key != "AREAL_JOB_INDEX"}
        try:
            self._ranks = RankProcesses(
                context.complete(),
                ranks=[process.index for process in mine],
                world_size=len(context.role.processes),
                meeting=(order.host, order.port),
                start=order.number,
                incarnation=order.incarnation,
                log_folder=folder,
                grace=context.plan.grace_seconds,
                environment={**shared, LOG_FOLDER_VARIABLE: str(context.folder.logs)},
            )
        except ArealError as error:
            self.report = replace(
                self.report, number=order.number, state="failed", status=_NO_PROGRAM, rank=first.index, text=str(error)
            )
            return
        _logger.info("start %d: ranks %s, logs in %s", order.number, [one.index for one in mine], folder)
        self.report = replace(self.report, state="running", number=order.number, status=0, rank=-1, text="")

    def _look(self) -> None:
        assert self._ranks is not None
        if failures := self._ranks.failures():
            first = failures[0]
            tail = self._context.redact(log_tail(first.log_path, TAIL_LINES))
            _logger.error("rank %d: %s; the end of %s:\n%s", first.rank, first.text, first.log_path, tail)
            self._context.folder.note("failed", f"rank {first.rank}: {first.text}", rank=first.rank, tail=tail)
            self.report = replace(
                self.report, state="failed", status=first.status, rank=first.rank, text=first.text
            )  # fmt: skip
        elif not self._ranks.running:
            self.report = replace(self.report, state="done")

    def _show(self, text: str) -> None:
        """Copy whole lines of rank 0, so that no secret is cut in two."""
        whole, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
        if newline:
            sys.stderr.write(self._context.redact(whole) + newline)
            sys.stderr.flush()


@dataclass(slots=True)
class _Service:
    """One process of another role than the trainer, over all its starts."""

    process: PlannedProcess
    port: int
    """The same for all starts: others know it by its address."""
    running: ServerProcess | None = None
    announcement: Announcement | None = None
    ready_file: Path | None = None
    failures: int = 0
    starts: int = 0
    begun: float = field(default_factory=time.monotonic)
    not_before: float = 0.0


class ServiceWork:
    """Servers or reward processes on one node: started at once, announced when ready, restarted when they end."""

    def __init__(self, context: NodeContext, report: RunnerReport, directory: Directory) -> None:
        self.report = replace(report, state="running")
        self._context, self._directory = context, directory
        self._services = [
            _Service(process=process, port=free_port(context.address)) for process in context.role.on_node(context.node)
        ]
        deal_devices(context.role, visible_devices(context.environment))

    def follow(self, order: Order) -> None:
        """Keep everything running until all is over."""
        if order.phase == "over":
            return
        for service in self._services:
            if service.running is None:
                if service.failures <= self._context.role.max_restarts and time.monotonic() >= service.not_before:
                    self._start(service)
            elif (text := service.running.exit_text) is not None:
                self._ended(service, service.running, text)
            elif service.announcement is None and service.ready_file is not None:
                self._announce(service)

    def stop(self, grace_seconds: float) -> None:
        """End all processes here and wait for them."""
        for service in self._services:
            if service.announcement is not None:
                service.announcement.withdraw()
        for service in self._services:
            if service.running is not None:
                service.running.stop(grace_seconds=grace_seconds)
                service.running = None

    def _start(self, service: _Service) -> None:
        context = self._context
        name = f"{context.role.name}-{service.process.index}"
        files = context.folder.life(context.life) / context.role.name
        service.ready_file = files / f"{service.process.index}.{service.starts}.ready.json"
        values = {
            "address": context.address,
            "port": str(service.port),
            "name": name,
            "ready_file": str(service.ready_file),
            "folder": str(files / f"{service.process.index}.files"),
        }
        more = {"AREAL_JOB_PORT": values["port"], "AREAL_JOB_READY_FILE": values["ready_file"]}
        service.begun = time.monotonic()
        try:
            service.running = ServerProcess(
                context.complete(**values),
                environment={**context.environment_of(service.process), **more},
                log_path=files / f"{service.process.index}.{service.starts}.log",
                incarnation=new_incarnation(),
                grace_seconds=context.plan.grace_seconds,
            )
        except ArealError as error:
            self._failed(service, f"{name} cannot be started: {error}", _NO_PROGRAM)
            return
        service.starts += 1
        _logger.info("%s: start %d, log in %s", name, service.starts - 1, service.running.log_path)

    def _announce(self, service: _Service) -> None:
        assert service.ready_file is not None
        assert service.running is not None
        try:
            said: Any = json.loads(service.ready_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # not there yet, or not whole
        value = {"url": str(said.get("url", "")) if isinstance(said, dict) else ""}
        value |= {"incarnation": service.running.incarnation, "role": self._context.role.name}
        name = f"{self._context.role.name}-{service.process.index}"
        seconds = self._context.plan.network["lease_seconds"]
        service.announcement = self._directory.announce("service", name, value, seconds)
        _logger.info("%s is ready %s", name, value["url"])

    def _ended(self, service: _Service, process: ServerProcess, text: str) -> None:
        if service.announcement is not None:
            service.announcement.withdraw()
            service.announcement = None
        name = f"{self._context.role.name}-{service.process.index}"
        tail = self._context.redact(log_tail(process.log_path, TAIL_LINES))
        process.stop(grace_seconds=0.0)
        service.running = None
        self._context.folder.note("service ended", f"{name}: {text}", tail=tail)
        self._failed(service, f"{name}: {text}; the end of {process.log_path}:\n{tail}", process.exit_status or 1)

    def _failed(self, service: _Service, text: str, status: int) -> None:
        lived = time.monotonic() - service.begun
        service.failures = 1 if lived > _RESET_SECONDS else service.failures + 1
        pause = min(2.0 ** (service.failures - 1), _LONGEST_PAUSE_SECONDS)
        service.not_before = time.monotonic() + pause
        left = self._context.role.max_restarts - service.failures
        if left < 0:
            first = text.splitlines()[0]
            self.report = replace(self.report, state="failed", status=status, text=f"{first}; it is given up")
        _logger.warning("%s\n%s", text, f"restart in {pause:.0f} s" if left >= 0 else "it is given up")
