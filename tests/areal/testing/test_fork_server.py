"""Forked processes behave as started ones: arguments, environment, exit codes, signals, and the ranks of a group."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from areal.api import EngineError
from areal.testing.fork_server import ForkOrigin, ForkServer

RANK = """
import argparse, json, os, sys
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--fail", type=int, default=-1)
arguments = parser.parse_args()
dist.init_process_group("gloo")
if dist.get_rank() == arguments.fail:
    sys.exit("rank gives up")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
if dist.get_rank() == 0:
    with open(arguments.out, "w") as file:
        file.write(json.dumps({"total": total.item(), "size": dist.get_world_size()}) + "\\n")
dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path):
    """`program(text)`: a file with this program."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.exhaustive
def test_ranks_of_a_group_compute_together(fork_server, program):
    results = fork_server.run_ranks(program(RANK), 2, timeout_seconds=200)
    assert results == [{"total": 3, "size": 2}]


@pytest.mark.exhaustive
def test_a_rank_that_fails_ends_the_others_and_is_quoted(fork_server, program):
    with pytest.raises(EngineError, match=r"2 processes failed(?s:.*)rank gives up"):
        fork_server.run_ranks(program(RANK), 2, ["--fail=1"], timeout_seconds=200)


def test_a_program_has_its_arguments_environment_folder_and_streams(fork_server, program, tmp_path):
    path = program(
        "import os, sys, threading\n"
        "print(sys.argv[1:], os.environ['COLOUR'], os.getcwd(), 'torch' in sys.modules)\n"
        "threading.Timer(0.1, lambda: print('last', file=sys.stderr)).start()\n"
        "sys.exit(7)\n"
    )
    job = fork_server.start(path, ["--a", "b c"], environment={"COLOUR": "blue"}, folder=tmp_path)
    assert (job.wait(60), job.returncode) == (7, 7)
    assert job.stdout == f"['--a', 'b c'] blue {tmp_path} True\n"
    assert job.stderr == "last\n"
    assert fork_server.cpu_seconds > 0


@pytest.mark.exhaustive
def test_an_exception_is_shown_and_ends_with_1(fork_server, program):
    job = fork_server.start(program("raise ValueError('wrong')"))
    assert job.wait(60) == 1
    assert "ValueError: wrong" in job.stderr


def test_a_module_runs_as_with_dash_m(fork_server):
    job = fork_server.start("areal", ["--version"])
    assert (job.wait(60), job.stdout[:6], job.stderr) == (0, "areal ", "")


def test_signals_reach_the_process_and_kill_takes_its_children_along(fork_server, program, tmp_path):
    path = program(
        "import fcntl, os, subprocess, sys, time\n"
        "lock = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], pass_fds=[lock])\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    job = fork_server.start(path, [str(tmp_path / "lock")])
    while job.stdout != "ready\n":
        assert job.returncode is None
    with pytest.raises(TimeoutError, match="still runs"):
        job.wait(0.01)
    job.kill()
    assert job.returncode == -signal.SIGKILL
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the death of all that held it; pytest's timeout would end that
    polite = fork_server.start(program("import time; time.sleep(60)"))
    polite.send_signal(signal.SIGTERM)
    assert polite.wait(60) == -signal.SIGTERM


def test_modules_that_cannot_be_preloaded_are_named():
    with pytest.raises(EngineError, match="cannot import nowhere_to_be_found"):
        ForkServer(["nowhere_to_be_found"])


def test_a_module_that_starts_threads_is_refused(tmp_path, monkeypatch):
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="2 threads run after the imports"):
        ForkServer(["starts_a_thread"])


def test_servers_from_one_origin_share_its_imports_and_outlive_it(program):
    tell = program("import os, sys\nprint('colorsys' in sys.modules, os.getppid())")
    with ForkOrigin(["colorsys"]) as origin:
        servers = [ForkServer(origin=origin.address) for _ in range(2)]
    parents = set()
    for server in servers:
        with server:
            job = server.start(tell)
            assert job.wait(60) == 0, job.stderr
            imported, parent = job.stdout.split()
            assert imported == "True"
            parents.add(parent)
    assert len(parents) == 2
    with pytest.raises(EngineError, match="no origin at"):
        ForkServer(origin=origin.address)


def test_modules_that_an_origin_cannot_import_are_named():
    with ForkOrigin(["nowhere_to_be_found"]) as origin, pytest.raises(EngineError, match="cannot import nowhere"):
        ForkServer(origin=origin.address)


def test_processes_end_with_a_server_that_is_killed(program):
    """So that tests which are killed, their process group included, leave nothing behind."""
    script = (
        "import os, signal, sys\n"
        "from areal.testing.fork_server import ForkServer\n"
        "server = ForkServer(preload=())\n"
        "print(server.start(sys.argv[1]).pid, flush=True)\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    sleeps = program("import time\ntime.sleep(600)\n")
    killed = subprocess.run(
        [sys.executable, "-c", script, str(sleeps)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while is_running(int(killed.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_is_gone_is_said_with_its_exit_code(program):
    with ForkServer(()) as server:
        server._process.kill()
        server._process.wait()
        with pytest.raises(EngineError, match="fork server: ended with exit code -9"):
            server.start(program)


def test_a_server_that_is_killed_while_a_program_starts_is_said_with_its_exit_code(program):
    with ForkServer(()) as server:
        os.kill(server._process.pid, signal.SIGSTOP)  # it leaves the order unread
        end = threading.Timer(0.3, server._process.kill)
        end.start()
        with pytest.raises(EngineError, match="fork server: ended with exit code -9"):
            server.start(program("pass"))
        end.join()


def test_a_process_whose_server_was_killed_before_it_could_notice_does_not_begin(program, tmp_path):
    out = tmp_path / "out"
    script = (
        "import sys\n"
        "from areal.testing.fork_server import _Job, _run\n"
        "files = {'stdout': '/dev/null', 'stderr': '/dev/null'}\n"
        "_run(_Job(program=sys.argv[1], arguments=[], environment={}, folder='/', **files), int(sys.argv[2]))\n"
    )
    path = program(f"open({str(out)!r}, 'w').close()\n")
    for server, begins in ((os.getpid(), True), (os.getpid() + 1, False)):
        done = subprocess.run([sys.executable, "-c", script, str(path), str(server)], check=False)
        assert (done.returncode, out.exists()) == ((0, True) if begins else (1, False))
        out.unlink(missing_ok=True)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
