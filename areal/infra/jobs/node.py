"""Runs one role on one node, on every backend: the program that Slurm, Ray or a local job starts (`areal node`).

    code = NodeRunner(read_plan(path), role="trainer", node=0, life=0).run()

The first runner of the trainer leads: it serves the job's directory, in which all runners meet, and decides. A runner
ends with the exit code of the job, 69 when it lost the others, and 78 when it does not belong to them. SIGTERM asks the
job to save and end; SIGUSR1, or the end of whoever holds its lifeline, ends this runner without patience.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, EngineError
from areal.infra.checkpoint.run_control import StopRequest
from areal.infra.directory import open_directory, serve_directory
from areal.infra.directory.address import interface_of, own_address
from areal.infra.jobs.compile import TRAINER
from areal.infra.jobs.conductor import Conductor
from areal.infra.jobs.files import JobFolder, Redactor
from areal.infra.jobs.order import JOB, LOST, MISMATCH, ORDER, RUNNER, SERVICE, Order, RunnerReport, pause_since
from areal.infra.jobs.plan import CONFIG_FILE
from areal.infra.jobs.surroundings import choose_port, node_environment, use_environment
from areal.infra.jobs.work import FAILURE_GRACE_SECONDS, NodeContext, RankWork, ServiceWork
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from areal.infra.directory import Directory, DirectoryServer
    from areal.infra.jobs.plan import JobPlan

_logger = getLogger(__name__)
_POLL_SECONDS: Final = 0.1
_GOODBYE_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 2.0
"""One question to the directory; how long it may be away altogether, the lease says."""
_SETUP_FAILED: Final = 2


class NodeRunner:
    """One runner. version: of areal here. life: number of the allocation. lifeline: whether an owner holds its standard
    input open.
    """

    def __init__(self, plan: JobPlan, *, version: str, role: str, node: int, life: int, lifeline: bool = False) -> None:
        self._plan, self._role, self._version = plan, plan.role(role), version
        self._node, self._life, self._lifeline = node, life, lifeline
        self._folder = JobFolder(Path(plan.folder))
        self._hurry = ""
        self._order = Order()
        self._is_first = role == TRAINER and node == 0
        self.name = f"{role}-{node}"

    def run(self) -> int:
        """Run until the job is over; returns the exit code, which is also in the runner's status file."""
        self._watch_owner()
        code, text = LOST, "ended by an error"
        try:
            with StopRequest() as stop:
                code, text = self._run(stop)
        except ArealError as error:
            code, text = error.exit_code, str(error)
            _logger.error("%s: %s", self.name, error)  # noqa: TRY400 - the message says it all
            raise
        finally:
            with contextlib.suppress(OSError):
                self._folder.set_status(self.name, code, text, life=self._life, start=self._order.number)
            _logger.info("%s ends with %d: %s", self.name, code, text)
        return code

    def _run(self, stop: StopRequest) -> tuple[int, str]:
        if self._version != self._plan.version:
            return MISMATCH, f"areal {self._version} here, {self._plan.version} where the job was submitted"
        if not self._folder.holds_configuration(self._plan):
            path = self._folder.path / CONFIG_FILE
            return MISMATCH, f"{path} is not the configuration that was submitted; submit the job again to change it"
        private = self._folder.private()
        kept = node_environment(os.environ)
        use_environment({
            "OMP_NUM_THREADS": str(self._role.cpus),
            **kept, **private.passed, **self._plan.environment, **private.secrets,
            "AREAL_JOB_ID": self._plan.id, "AREAL_JOB_NAME": self._plan.name,
        })  # fmt: skip
        os.chdir(self._plan.working_folder)
        redact = Redactor(private.secrets)
        if (failed := self._set_up(redact)) is not None:
            return _SETUP_FAILED, failed
        with contextlib.ExitStack() as stack:
            try:
                address, url = self._meet(stack, private.key, stop)
            except TimeoutError as error:
                return MISMATCH, str(error)
            if not url:
                return LOST, self._hurry or "asked to stop before the first runner came"
            if self._plan.num_nodes > 1:
                # Else every rank announces what its host's own name means, which may be loopback.
                interface = interface_of(address)
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
                os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
            directory = stack.enter_context(open_directory(url, private.key, timeout_seconds=_CALL_SECONDS))
            context = NodeContext(
                plan=self._plan,
                role=self._role,
                node=self._node,
                life=self._life,
                folder=self._folder,
                redact=redact,
                address=address,
                directory_url=url,
                environment=dict(os.environ),
            )
            return self._work(context, directory, stop)

    def _meet(self, stack: contextlib.ExitStack, key: bytes, stop: StopRequest) -> tuple[str, str]:
        """Return this node's address and the directory's URL, which is empty when asked to stop before.

        Raises TimeoutError when the first runner's file does not appear.
        """
        path = self._folder.path / "meet.json"
        if self._is_first:
            address = self._address()
            server: DirectoryServer = stack.enter_context(serve_directory(address, key))
            where = {"id": self._plan.id, "life": self._life, "url": server.url}
            self._folder.write_private(path.name, json.dumps(where))
            self._folder.set_state("meeting", life=self._life, node=socket.gethostname())
            return address, server.url
        deadline = time.monotonic() + self._plan.network["meet_seconds"]
        while not (stop.requested or self._hurry):
            with contextlib.suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                if (found["id"], found["life"]) == (self._plan.id, self._life):
                    return self._address(found["url"]), found["url"]
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{path} was not written by the first runner within {self._plan.network['meet_seconds']:g} s; does "
                    f"every node see job.directory under this path?"
                )
            time.sleep(_POLL_SECONDS)
        return "", ""

    def _address(self, *targets: str) -> str:
        """Return the address of this node. targets: URL of the directory, for all but the first runner."""
        return own_address(
            targets,
            interface=self._plan.network["interface"],
            several_hosts=self._plan.backend != "local" and self._plan.num_nodes > 1,
            setting="job.network.interface",
        )

    def _work(self, context: NodeContext, directory: Directory, stop: StopRequest) -> tuple[int, str]:
        """Follow the orders until all is over, or nobody gives any."""
        report = RunnerReport(
            role=self._role.name,
            node=self._node,
            host=socket.gethostname(),
            version=self._version,
            digest=self._plan.digest,
        )
        work = (
            RankWork(context, report)
            if self._role.name == TRAINER
            else ServiceWork(context, report, directory)
        )  # fmt: skip
        seconds = self._plan.network["lease_seconds"]
        conductor = self._conductor(context.address) if self._is_first else None
        sent, seen = work.report, self._order
        mine = directory.announce(RUNNER, self.name, sent.as_value(), seconds)
        told = directory.announce(ORDER, JOB, self._order.as_value(), seconds) if conductor is not None else None
        answered = changed = time.monotonic()
        patience = FAILURE_GRACE_SECONDS
        try:
            while True:
                try:
                    if (now := replace(work.report, stopping=stop.requested)) != sent:
                        mine.update(now.as_value())
                        sent, changed = now, time.monotonic()
                    if conductor is not None and told is not None:
                        before = conductor.order
                        self._order = conductor.tick(directory.entries(RUNNER), directory.entries(SERVICE))
                        if self._order != before:
                            told.update(self._order.as_value())
                    elif (value := directory.entries(ORDER).get(JOB)) is not None:
                        self._order = Order.of(value)
                    elif self._order.phase != "gather" or time.monotonic() - answered > seconds:
                        return LOST, "the first runner was lost"
                    answered = time.monotonic()
                    if self._order != seen:
                        seen, changed = self._order, answered
                except EngineError as error:
                    if time.monotonic() - answered > seconds:
                        return LOST, f"the first runner was lost: {error}"
                if self._hurry:
                    return LOST, self._hurry
                work.follow(self._order)
                if self._order.phase == "over":
                    patience = self._plan.grace_seconds
                    return self._order.exit_code, self._order.reason
                time.sleep(pause_since(changed))
        finally:
            work.stop(patience)
            mine.withdraw()
            if conductor is not None:
                self._say_goodbye(conductor, directory, told)

    def _conductor(self, address: str) -> Conductor:
        numbers = [int(path.name.split("-")[1]) for path in self._folder.logs.glob("start-[0-9]*-*")]
        ports = self._plan.network["master_ports"]
        return Conductor(
            self._plan,
            self._folder,
            first_number=max(numbers, default=-1) + 1,
            meeting=lambda: (address, choose_port(address, ports)),
        )

    def _say_goodbye(self, conductor: Conductor, directory: Directory, told: Any) -> None:
        """Keep the directory until the others have read that all is over."""
        if conductor.order.phase != "over":
            conductor.give_up(LOST, self._hurry or "the first runner ended by an error")
            self._order = conductor.order
        with contextlib.suppress(ArealError):
            told.update(conductor.order.as_value())
            deadline = time.monotonic() + self._plan.grace_seconds + _GOODBYE_SECONDS
            begun = time.monotonic()
            while directory.entries(RUNNER) and time.monotonic() < deadline:
                time.sleep(pause_since(begun))

    def _set_up(self, redact: Redactor) -> str | None:
        """Run the programs of job.setup, once per host and allocation; returns what failed."""
        if not self._plan.setup:
            return None
        mark = self._folder.life(self._life) / f"setup-{socket.gethostname()}"
        mark.parent.mkdir(parents=True, exist_ok=True)
        with self._folder.locked(f"setup-{socket.gethostname()}.lock"):
            if mark.exists():
                return None
            for words in self._plan.setup:
                done = subprocess.run(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
                )  # fmt: skip
                output = redact(done.stdout.decode("utf-8", errors="replace"))
                _logger.info("setup %s: %d\n%s", words[0], done.returncode, output)
                if done.returncode:
                    return f"job.setup: {words[0]} ended with {done.returncode}"
            mark.touch()
        return None

    def _watch_owner(self) -> None:
        """End without patience on SIGUSR1, or when standard input is closed by whoever held it."""

        def hurry(*_: object) -> None:
            self._hurry = "whoever started this runner wants it gone"

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, hurry)
        if not self._lifeline:
            return

        def wait_for_end() -> None:
            while True:
                select.select([0], [], [])
                if not os.read(0, 4096):
                    self._hurry = "whoever started this runner is gone"
                    return

        threading.Thread(target=wait_for_end, name="areal-lifeline", daemon=True).start()
