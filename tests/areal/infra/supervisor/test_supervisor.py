"""Server processes under real signals: found healthy, found dead, found hanging, restarted a bounded number of times,
and never left behind.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from areal.api import EngineError
from areal.engine.server.client import is_healthy
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.process import log_tail
from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand

SERVER = Path(__file__).with_name("small_server.py")
WAIT = 60.0


class Events:
    """What the supervisor reported, in order; a start can be refused."""

    def __init__(self):
        self.queue = queue.Queue()
        self.refuse = 0

    def server_up(self, instance):
        if self.refuse:
            self.refuse -= 1
            raise EngineError("it does not take the weights")
        self.queue.put(("up", instance, ""))

    def server_down(self, instance, reason):
        self.queue.put(("down", instance, reason))

    def server_retired(self, name, reason):
        self.queue.put(("retired", name, reason))

    def next(self, kind):
        found, subject, reason = self.queue.get(timeout=WAIT)
        assert found == kind, (found, subject, reason)
        return subject, reason


@pytest.fixture
def supervise(tmp_path):
    """Start servers by mode; everything is closed at the end."""
    running = []

    def start(*modes, events=None, **options):
        options = {"poll_seconds": 0.05, "restart_pause_seconds": 0.01, "grace_seconds": 1.0,
                   "health_timeout_seconds": 60.0, "max_missed_health_checks": 1000} | options  # fmt: skip

        def command(index, port):
            arguments = [sys.executable, "-S", str(SERVER), modes[index], str(port), str(tmp_path)]
            return ServerCommand(arguments=arguments, environment={"PYTHONUNBUFFERED": "1"})

        supervisor = LocalSupervisor(
            [f"server-{index}" for index in range(len(modes))],
            command,
            health=is_healthy,
            config=SupervisorConfig(**options),
            log_folder=tmp_path / "logs",
        )
        running.append(supervisor)
        events = events or Events()
        supervisor.start(events)
        return supervisor, events

    yield start
    for supervisor in running:
        supervisor.close()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def server_pid(guard):
    """Of the command that runs under a guard."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == guard:
            return int(entry.parent.name)
    raise AssertionError(f"guard {guard} has no child")


def test_a_server_is_reported_when_it_is_healthy_and_knows_its_incarnation(supervise):
    _, events = supervise("good", "good")
    instances = [events.next("up")[0] for _ in range(2)]
    assert {instance.name for instance in instances} == {"server-0", "server-1"}
    for instance in instances:
        with urllib.request.urlopen(f"{instance.url}/health", timeout=60) as response:
            assert response.read().decode() == instance.incarnation


@pytest.mark.fault(
    row=5,
    injected="SIGKILL of a supervised server",
    seen="reported with its signal, started again as another incarnation",
)
def test_a_killed_server_is_restarted_as_another_incarnation(supervise):
    # Checks fail quickly when nobody listens: that alone is no hang.
    supervisor, events = supervise("good", max_missed_health_checks=2)
    first, _ = events.next("up")
    os.kill(server_pid(supervisor.pid("server-0")), signal.SIGKILL)
    gone, reason = events.next("down")
    assert gone == first
    assert "SIGKILL" in reason
    second, _ = events.next("up")
    assert second.incarnation != first.incarnation


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=6,
    injected="SIGSTOP of a supervised server",
    seen="found by its health checks, killed and replaced",
)
def test_a_stopped_server_is_found_to_hang_and_replaced(supervise):
    supervisor, events = supervise("good", health_timeout_seconds=0.5, max_missed_health_checks=2)
    events.next("up")
    pid = server_pid(supervisor.pid("server-0"))
    os.kill(pid, signal.SIGSTOP)
    _, reason = events.next("down")
    assert "hangs" in reason
    events.next("up")
    assert not is_running(pid)


@pytest.mark.exhaustive
def test_a_evicted_server_is_replaced_although_it_looks_alive(supervise):
    supervisor, events = supervise("good")
    first, _ = events.next("up")
    supervisor.evict(first, "no token for 60 s")
    _, reason = events.next("down")
    assert "no token for 60 s" in reason
    second, _ = events.next("up")
    supervisor.evict(first, "of a life that is over")
    with pytest.raises(queue.Empty):
        events.queue.get(timeout=0.5)
    assert is_healthy(second.url, 60.0)


@pytest.mark.fault(
    row=5,
    injected="a server that ends at every start",
    seen="given up after the bounded number, with the end of its log",
)
def test_restarts_are_bounded_and_the_log_says_why(supervise):
    _, events = supervise("exit", max_restarts=2)
    name, reason = events.next("retired")
    assert name == "server-0"
    assert "3 starts failed" in reason
    assert "exit status 3" in reason
    assert "no model at this path" in reason


def test_a_server_that_never_listens_is_given_up(supervise):
    _, events = supervise("never", max_restarts=0, startup_seconds=0.5)
    _, reason = events.next("retired")
    assert "not ready after 0.5 s" in reason


@pytest.mark.exhaustive
def test_a_refused_server_counts_as_a_failed_start(supervise):
    events = Events()
    events.refuse = 1
    supervise("good", events=events, max_restarts=1)
    instance, _ = events.next("up")
    assert events.refuse == 0
    assert is_healthy(instance.url, 60.0)


def test_a_command_that_does_not_exist_is_named(supervise, tmp_path):
    events = Events()
    supervisor = LocalSupervisor(
        ["server-0"],
        lambda index, port: ServerCommand(arguments=["/nowhere/python"]),
        health=is_healthy,
        config=SupervisorConfig(max_restarts=0, poll_seconds=0.05),
        log_folder=tmp_path,
    )
    supervisor.start(events)
    _, reason = events.next("retired")
    assert "/nowhere/python" in reason
    supervisor.close()


@pytest.mark.fault(
    row=25,
    injected="a supervised server with children in other sessions is closed",
    seen="none of them is left",
)
def test_closing_ends_every_process_also_in_other_sessions(supervise, tmp_path):
    supervisor, events = supervise("children")
    events.next("up")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(is_running, pids))
    supervisor.close()
    assert not any(map(is_running, pids))


def test_a_server_that_ignores_sigterm_is_killed_after_its_grace(supervise):
    supervisor, events = supervise("stubborn", grace_seconds=0.3)
    events.next("up")
    pid = server_pid(supervisor.pid("server-0"))
    started = time.monotonic()
    supervisor.close()
    assert time.monotonic() - started < 10
    assert not is_running(pid)


@pytest.mark.fault(
    row=25,
    injected="SIGKILL of the process that owns a supervisor",
    seen="none of its servers is left",
)
def test_nothing_survives_an_owner_that_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, str(Path(__file__).with_name("owner.py")), str(tmp_path)])
    try:
        wait_until((tmp_path / "up").exists)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(is_running, pids))
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.exhaustive
def test_only_the_newest_logs_are_kept(supervise, tmp_path):
    _, events = supervise("exit", max_restarts=4, keep_logs=2)
    events.next("retired")
    assert len(list((tmp_path / "logs" / "server-0").glob("*.log"))) == 2


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    path = tmp_path / "x.log"
    assert log_tail(path) == ""
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert log_tail(path, 2) == "line 98\nline 99"


def test_starting_and_closing_at_once_leaves_no_thread(supervise):
    before = threading.active_count()
    supervisor, _ = supervise("good")
    supervisor.close()
    supervisor.close()
    assert threading.active_count() == before
