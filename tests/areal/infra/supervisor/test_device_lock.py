"""A device that servers and a learner have in turn: who may take it, and who has it when its holder has ended."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from areal.api import ConfigError, EngineError
from areal.engine.server.client import is_healthy
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.device_lock import DeviceLock, StartOnDevice
from areal.infra.supervisor.process import ServerProcess
from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand

SERVER = Path(__file__).with_name("small_server.py")


def is_free(path, *, alone):
    lock = DeviceLock(path)
    try:
        return lock.take(alone=alone, given_up=lambda: True)
    finally:
        lock.release()


def test_servers_start_together_and_the_learner_alone(tmp_path):
    path = tmp_path / "files" / "device.lock"
    one, other, learner = DeviceLock(path), DeviceLock(path), DeviceLock(path)
    assert one.take(alone=False)
    assert other.take(alone=False)
    with pytest.raises(EngineError, match="not given up within"):
        learner.take(alone=True, seconds=0.2)
    one.release()
    assert not is_free(path, alone=True)
    other.release()
    assert learner.take(alone=True)
    assert not is_free(path, alone=False)
    learner.release()
    learner.release()
    assert is_free(path, alone=True)


def test_a_device_of_ones_own_is_always_there():
    lock = DeviceLock(None)
    assert lock.take(alone=True)
    assert (lock.descriptors, lock.take(alone=True)) == ((), True)
    lock.release()


def test_a_file_that_cannot_be_locked_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot lock"):
        DeviceLock(tmp_path).take(alone=True)


def test_what_a_server_leaves_running_keeps_the_device_and_its_end_frees_it(tmp_path):
    """Whoever started it is gone, as after SIGKILL; its guard is not."""
    lock = DeviceLock(tmp_path / "lock")
    assert lock.take(alone=False)
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    process = ServerProcess(command, environment={}, log_path=tmp_path / "log", incarnation="a", grace_seconds=0.1,
                            keeps=lock.descriptors)  # fmt: skip
    for descriptor in lock.descriptors:
        os.close(descriptor)
    assert not is_free(tmp_path / "lock", alone=True)
    process.stop(grace_seconds=0.0)
    assert is_free(tmp_path / "lock", alone=True)


class Listener:
    def __init__(self):
        self.up = queue.Queue()

    def server_up(self, instance):
        self.up.put(instance)

    def server_down(self, instance, reason):
        pass

    def server_retired(self, name, reason):
        self.up.put(reason)


def test_a_server_is_started_once_the_learner_sleeps_and_sleeps_before_it_is_used(tmp_path):
    path, asleep, listener = tmp_path / "lock", [], Listener()
    learner = DeviceLock(path)
    assert learner.take(alone=True)

    def put_to_sleep(url):
        assert not is_free(path, alone=True), "it has the device until it sleeps"
        asleep.append(url)

    supervisor = LocalSupervisor(
        ["server-0"],
        lambda _, port: ServerCommand(arguments=[sys.executable, "-S", str(SERVER), "good", str(port)]),
        health=is_healthy,
        config=SupervisorConfig(poll_seconds=0.05, restart_pause_seconds=0.01, grace_seconds=1.0),
        log_folder=tmp_path / "logs",
        device=StartOnDevice(lock=path, put_to_sleep=put_to_sleep),
    )
    supervisor.start(listener)
    try:
        time.sleep(0.3)
        assert supervisor.pid("server-0") is None
        learner.release()
        first = listener.up.get(timeout=60)
        assert asleep == [first.url]
        assert learner.take(alone=True, seconds=30)
        # It dies while the learner is at work.
        os.kill(supervisor.pid("server-0"), signal.SIGKILL)
        with pytest.raises(queue.Empty):
            listener.up.get(timeout=0.5)
        learner.release()
        assert listener.up.get(timeout=60).incarnation != first.incarnation
        assert len(asleep) == 2
    finally:
        learner.release()
        supervisor.close()
    assert is_free(path, alone=True)


def test_the_device_of_a_learner_that_was_killed_is_free(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from areal.infra.supervisor.device_lock import DeviceLock; "
        "lock = DeviceLock(Path(sys.argv[1])); lock.take(alone=True); print('taken', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "lock"], stdout=subprocess.PIPE, text=True
    ) as learner:
        assert learner.stdout.readline() == "taken\n"
        assert not is_free(tmp_path / "lock", alone=False)
        learner.kill()
    assert is_free(tmp_path / "lock", alone=False)
