"""Two processes never write one run directory."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from areal.api import BusyError, CheckpointError
from areal.infra.checkpoint.run_control import RunLock

_HOLD = (
    "import sys, time; from pathlib import Path; from areal.infra.checkpoint.run_control import RunLock\n"
    "with RunLock(Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def owner(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.fault(
    row=24,
    injected="two processes lock one run directory",
    seen="the second is refused with pid, host and start of the first, exit code 75",
)
def test_a_second_process_is_refused_with_pid_host_and_start_of_the_first(tmp_path, owner):
    with pytest.raises(BusyError) as caught:
        RunLock(tmp_path).acquire()
    message = str(caught.value)
    assert f"pid {owner.pid} on host {socket.gethostname()}" in message
    assert re.search(r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", message)
    assert str(tmp_path) in message
    assert caught.value.exit_code == 75


@pytest.mark.fault(
    row=24,
    injected="the owner of a run directory is killed",
    seen="its lock is taken over, with a warning that names it",
)
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, owner, caplog):
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with RunLock(tmp_path):
        assert f"pid {owner.pid}" in caplog.text


def test_a_released_lock_is_free_and_silent(tmp_path, caplog):
    for _ in range(2):
        with RunLock(tmp_path / "run") as lock, pytest.raises(BusyError, match=f"pid {os.getpid()}"):
            RunLock(tmp_path / "run").acquire()
    with pytest.raises(BusyError, match="this very object"), lock:
        lock.acquire()
    lock.release()
    assert caplog.text == ""


def test_a_forked_worker_that_outlives_the_run_does_not_keep_its_lock(tmp_path):
    script = (
        "import os, sys, time; from pathlib import Path; from areal.infra.checkpoint.run_control import RunLock\n"
        "lock = RunLock(Path(sys.argv[1])).acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(1); time.sleep(60)\n"
        "print(child, flush=True); os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        check=False,
        capture_output=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = int(done.stdout)
    try:
        os.kill(worker, 0)
        with RunLock(tmp_path) as lock:
            assert str(os.getpid()) in lock.path.read_text()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_directory_that_cannot_be_made_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="choose a writable output_dir"):
        RunLock(tmp_path / "file" / "run").acquire()
