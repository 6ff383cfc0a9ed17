"""Run tests in processes that are forked after collection: `pytest --workers 3`.

Workers that start by themselves import torch and collect ten thousand tests each, 9 CPU s a worker. Here one process
collects and forks. A worker takes the tests of one file at a time and sends their reports; what the terminal, the
cache of failures and `--maxfail` make of reports happens where the tests were collected. A test that ends its worker
fails, and another worker takes the rest of the file. Unix only.

Hooks for other plugins: `pytest_workers_begin(session)` before the first fork, and `pytest_worker_ended(output)` with
what a worker's plugins left in `config.workeroutput`, a dict. In a worker `config` has `workerinput`.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection
from pathlib import Path

import pytest
from _pytest.terminal import TerminalWriter  # what pytest-timeout shows stacks with

END_SECONDS = 10.0


class Hooks:
    """What `pytest_addhooks` adds."""

    def pytest_workers_begin(self, session):
        """Workers are forked next: start what they share."""

    def pytest_worker_ended(self, output):
        """A worker ended; `output` is what its plugins left."""


def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser):
    group = parser.getgroup("forked workers")
    group.addoption(
        "--workers", type=int, default=0, metavar="N", help="run files in N processes, forked after collection"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    count, option = session.config.getoption("workers"), session.config.option
    if count < 1 or option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
        return None
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and (threads := len(list(tasks.iterdir()))) > 1:
        raise pytest.UsageError(
            f"--workers: {threads} threads run after collection, expected one, for a fork has no other: find the test "
            "module that starts one when it is imported, or run without --workers"
        )
    Pool(session).run(count)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


@dataclass(eq=False)
class Worker:
    """A process that runs tests, as its parent sees it."""

    name: str
    pid: int
    link: connection.Connection
    left: deque[int] = field(default_factory=deque)
    """Tests it was given that it has not reported."""


class Pool:
    """The workers of a session and the files that none of them has yet."""

    def __init__(self, session):
        self.session = session
        self.hook = session.config.hook
        files: dict[str, list[int]] = {}
        for index, item in enumerate(session.items):
            files.setdefault(item.nodeid.partition("::")[0], []).append(index)
        self.files = deque(files.values())
        self.workers: dict[connection.Connection, Worker] = {}
        self.started = 0
        self.stop = mmap.mmap(-1, 1)  # shared; workers look at it after each test

    @property
    def stopped(self) -> bool:
        return bool(self.session.shouldfail or self.session.shouldstop)

    def run(self, count: int) -> None:
        self.session.config._tmp_path_factory.getbasetemp()  # the parent of the workers' folders
        self.hook.pytest_workers_begin(session=self.session)
        try:
            for _ in range(min(count, len(self.files))):
                self.add_worker()
            while self.workers:
                for link in connection.wait(list(self.workers)):
                    self.receive(self.workers[link])
                self.stop[0] = self.stopped
        finally:
            self.end()

    def add_worker(self) -> None:
        link, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.started += 1
        name = f"worker{self.started}"
        if pid := os.fork():
            theirs.close()
            worker = self.workers[link] = Worker(name, pid, link)
            self.give_a_file(worker)
            return
        code = 1
        try:
            for other in (*self.workers, link):  # else nobody would see that the parent, or another worker, is gone
                other.close()
            work(self.session, theirs, self.stop, name)
            code = 0
        except KeyboardInterrupt:
            code = 2
        except BaseException:  # noqa: BLE001 - nothing above may run in a worker
            traceback.print_exc(file=sys.__stderr__)
        finally:
            sys.__stderr__.flush()
            os._exit(code)

    def give_a_file(self, worker: Worker) -> None:
        worker.left = deque([] if self.stopped or not self.files else self.files.popleft())
        with contextlib.suppress(OSError):  # it is gone, as the end of its link will tell
            worker.link.send(list(worker.left))

    def receive(self, worker: Worker) -> None:
        try:
            kind, content = worker.link.recv()
        except (EOFError, OSError):
            self.lost(worker)
            return
        if kind == "test":
            worker.left.popleft()
            for data in content:
                report = self.hook.pytest_report_from_serializable(config=self.session.config, data=data)
                self.hook.pytest_runtest_logreport(report=report)
            self.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
            if not worker.left:
                self.give_a_file(worker)
        elif kind == "warning":
            self.hook.pytest_warning_recorded.call_historic(kwargs=content)
        else:
            self.hook.pytest_worker_ended(output=content)
            self.remove(worker)

    def lost(self, worker: Worker) -> None:
        """Fail the test that a worker ran when it ended, and let another worker run the rest of the file."""
        code = self.remove(worker)
        if worker.left:
            item = self.session.items[worker.left.popleft()]
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            report = pytest.TestReport(
                nodeid=item.nodeid, location=item.location, keywords={}, outcome="failed", when="call",
                longrepr=f"{worker.name} {how} while it ran this test",
            )  # fmt: skip
            self.hook.pytest_runtest_logreport(report=report)
        if worker.left:
            self.files.appendleft(list(worker.left))
        if self.files and not self.stopped:
            self.add_worker()

    def remove(self, worker: Worker) -> int:
        del self.workers[worker.link]
        worker.link.close()
        return os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])

    def end(self) -> None:
        """Wait for workers after an interruption, which reached them too, and kill those that go on."""
        self.stop[0] = 1
        self.files.clear()
        for worker in self.workers.values():
            self.give_a_file(worker)
        deadline = time.monotonic() + END_SECONDS
        while self.workers and time.monotonic() < deadline:
            for link in connection.wait(list(self.workers), 0.1):
                try:
                    link.recv()
                except (EOFError, OSError):
                    self.remove(self.workers[link])
        for worker in list(self.workers.values()):
            os.kill(worker.pid, signal.SIGKILL)
            self.remove(worker)


# ---------------------------------------------------------------------------------------------------- in the worker


class Boundary(pytest.Item):
    """What follows the last test of a file: fixtures of the file end, those of the session stay."""

    def runtest(self):
        raise NotImplementedError


class Sender:
    """Takes the terminal's place: reports and warnings go to the parent."""

    def __init__(self, config):
        self.config = config
        self.link = None
        self.reports = []
        self._tw = TerminalWriter(sys.__stderr__)

    def pytest_runtest_logreport(self, report):
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        if self.link is None:  # one of the collection: the parent has it
            return
        found = warning_message
        category, text = found.category, str(found.message)
        if category.__module__ != "builtins":  # the parent may not know the class
            category, text = UserWarning, f"{category.__name__}: {text}"
        sent = warnings.WarningMessage(text, category, found.filename, found.lineno)
        kwargs = {"warning_message": sent, "when": when, "nodeid": nodeid, "location": location}
        self.link.send(("warning", kwargs))


def become_a_worker(config, link, name) -> Sender:
    """Leave what belongs to the parent: its terminal, files of captured output, temporary folder and exit handlers."""
    atexit._clear()
    config.workerinput, config.workeroutput = {"workerid": name}, {}
    os.environ["PYTEST_WORKER"] = name
    config.pluginmanager.unregister(name="terminalreporter")
    sender = Sender(config)
    config.pluginmanager.register(sender, "terminalreporter")
    sender.link = link
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folder = config._tmp_path_factory.getbasetemp() / name
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder
    return sender


def work(session, link, stop, name) -> None:
    """Run the files that the parent gives until it gives none."""
    sender = become_a_worker(session.config, link, name)
    boundary = Boundary.from_parent(session, name="boundary")
    while not stop[0] and (indices := link.recv()):
        items = [session.items[index] for index in indices]
        for item, following in zip(items, [*items[1:], boundary], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            link.send(("test", sender.reports))
            sender.reports = []
            if stop[0]:
                break
    session.config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
    link.send(("ended", session.config.workeroutput))
    link.close()
    atexit._run_exitfuncs()
    sys.stdout.flush()
