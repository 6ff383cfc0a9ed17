"""Ranks of a run start together, end together, and start again; nothing of them is left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from areal.api import ConfigError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.infra.checkpoint.run_control import StopRequest
from areal.infra.launch.config import LaunchConfig
from areal.infra.launch.launcher import STARTS_FILE, LocalLauncher

PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
rank, world, start = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["AREAL_LAUNCH_START"])
folder = Path(sys.argv[1])
(folder / f"pid-{start}-{rank}").write_text(str(os.getpid()))
"""


@pytest.fixture
def launch(tmp_path):
    """Runs a Python program, given as text, and returns the result."""

    def run(program, stop=None, on_output=None, **config):
        command = [sys.executable, "-c", PRELUDE + program, str(tmp_path)]
        config = LaunchConfig(**{"num_ranks": 2, "restart_pause_seconds": 0.05, "failure_grace_seconds": 0.5, **config})
        launcher = LocalLauncher(command, config=config, log_folder=tmp_path / "logs", on_output=on_output)
        return launcher.run(stop or StopRequest())

    return run


def pids(folder):
    return [int(path.read_text()) for path in folder.glob("pid-*") if path.read_text()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_each_rank_knows_its_number_and_where_to_meet(launch, tmp_path):
    seen = []
    result = launch(
        "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT']\n"
        "print(*(os.environ[name] for name in names))",
        on_output=seen.append,
        num_ranks=3,
    )
    assert result.exit_code == 0
    logs = sorted(result.starts[0].log_folder.glob("rank-*.log"))
    words = [path.read_text().split() for path in logs]
    assert [line[:5] for line in words] == [[str(rank), str(rank), "3", "3", "127.0.0.1"] for rank in range(3)]
    assert len({line[5] for line in words}) == 1
    # What rank 0 prints is shown while it runs.
    assert "".join(seen) == logs[0].read_text()


def test_a_rank_that_fails_ends_the_others_and_all_start_again(launch, tmp_path, caplog):
    result = launch(
        "while not (folder / f'pid-{start}-0').exists():\n    time.sleep(0.02)\n"
        "if start == 0 and rank == 1:\n    print('cannot find my GPU', flush=True); sys.exit(9)\n"
        "if start == 0:\n    time.sleep(600)\n"
    )
    first, second = result.starts
    assert (first.status, first.rank, second.status) == (9, 1, 0)
    assert result.exit_code == 0
    assert first.incarnation != second.incarnation
    assert "rank 1 of 2: exit status 9" in caplog.text
    assert "cannot find my GPU" in caplog.text
    assert len(pids(tmp_path)) == 4
    assert not any(alive(pid) for pid in pids(tmp_path))
    # For `areal doctor`, which comes when nobody has the result any more.
    noted = [json.loads(line) for line in (first.log_folder.parent / STARTS_FILE).read_text().splitlines()]
    assert [(one["incarnation"], one["status"], one["rank"]) for one in noted] == [
        (first.incarnation, 9, 1),
        (second.incarnation, 0, None),
    ]
    assert noted[0]["logs"] == first.log_folder.name


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=23,
    injected="a rank is killed and its launch starts again",
    seen="the new start has another incarnation and another meeting point, so nothing of the old one can join it",
)
def test_a_killed_rank_is_reported_as_killed(launch, tmp_path):
    def kill_first():
        eventually(lambda: sum(path.stat().st_size > 0 for path in tmp_path.glob("logs/start-*/rank-*.log")) == 2)
        os.kill(int((tmp_path / "pid-0-0").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill_first)
    killer.start()
    result = launch("print(os.environ['AREAL_SERVER_INCARNATION'], flush=True)\nif start == 0:\n    time.sleep(600)\n")
    killer.join()
    assert [(start.status, start.rank) for start in result.starts] == [(137, 0), (0, None)]
    assert "killed by SIGKILL" in result.starts[0].text
    told = [start.log_folder.joinpath("rank-1.log").read_text().strip() for start in result.starts]
    assert told == [start.incarnation for start in result.starts]
    assert told[0] != told[1]


@pytest.mark.exhaustive
def test_restarts_are_bounded(launch):
    result = launch("sys.exit(1)", max_restarts=2)
    assert [start.status for start in result.starts] == [1, 1, 1]
    assert result.exit_code == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("status", [2, 23, 24, 75, 143])
def test_what_another_start_would_only_repeat_is_not_tried_again(launch, status):
    result = launch(f"sys.exit({status} if rank == 0 else 0)")
    assert [start.status for start in result.starts] == [status]


def test_a_program_that_cannot_be_started_is_not_tried_again(tmp_path):
    launcher = LocalLauncher([str(tmp_path / "nothing")], config=LaunchConfig(), log_folder=tmp_path / "logs")
    assert [start.status for start in launcher.run(StopRequest()).starts] == [127]


@pytest.mark.exhaustive
def test_a_run_that_hangs_is_killed_and_started_again(launch, tmp_path):
    result = launch(
        "progress = folder / 'progress'\n"
        "if start == 0 and rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "for step in range(4):\n    time.sleep(0.05); progress.write_text(str(step))\n"
        "if start == 0:\n    time.sleep(600)\n",
        stall_seconds=3.0,
        progress_file=str(tmp_path / "progress"),
    )
    assert [start.status for start in result.starts] == [124, 0]
    assert "did not change for 3 s" in result.starts[0].text
    assert not any(alive(pid) for pid in pids(tmp_path))


@pytest.mark.exhaustive
def test_old_logs_are_removed(launch, tmp_path):
    launch("sys.exit(1)", max_restarts=4, keep_logs=2, num_ranks=1)
    assert sorted(path.name[:10] for path in (tmp_path / "logs").glob("start-*")) == ["start-0003", "start-0004"]
    assert len((tmp_path / "logs" / STARTS_FILE).read_text().splitlines()) == 5


def test_a_limit_for_stalls_needs_something_to_look_at():
    with pytest.raises(ConfigError, match="needs progress_file"):
        LaunchConfig(stall_seconds=3.0)


RUNS_FOR_EVER = PRELUDE + (
    "orphan = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "(folder / f'pid-child-{rank}').write_text(str(orphan.pid))\n"
    "def save(*_):\n    time.sleep(0.3); (folder / f'saved-{rank}').touch(); sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 0 and len(sys.argv) > 2 else save)\n"
    "(folder / f'ready-{rank}').touch()\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def command(tmp_path):
    """`areal launch` of two ranks that never end, each with a child in a session of its own; waits until both run."""
    started = []

    def start(*arguments, grace="20"):
        options = ["--ranks", "2", "--grace", grace, "--log-folder", str(tmp_path / "logs"), "--json", "--"]
        program = [sys.executable, "-c", RUNS_FOR_EVER, str(tmp_path), *arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "areal", "launch", *options, *program],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert eventually(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(2)))
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.fault(
    row=25,
    injected="SIGTERM to `areal launch` of two ranks that need time to save and have children in sessions of their own",
    seen="all ranks save within the grace; exit code 143, no restart, no process left",
)
def test_sigterm_reaches_all_ranks_which_save_before_they_end(command, tmp_path):
    process = command()
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert [start["status"] for start in json.loads(output)["starts"]] == [143]
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))
    assert eventually(lambda: not any(alive(pid) for pid in pids(tmp_path)))


@pytest.mark.exhaustive
def test_a_rank_that_ignores_sigterm_is_killed_after_its_grace(command, tmp_path):
    process = command("stubborn", grace="3")
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "ranks 0 did not end within 3 s and were killed" in json.loads(output)["starts"][0]["text"]
    assert (tmp_path / "saved-1").exists()
    assert eventually(lambda: not any(alive(pid) for pid in pids(tmp_path)))


@pytest.mark.fault(
    row=25,
    injected="SIGKILL of `areal launch`",
    seen="its ranks and their children, those in sessions of their own included, end too",
)
def test_nothing_survives_a_launch_that_is_killed(command, tmp_path):
    process = command(grace="1")
    process.kill()
    process.wait()
    assert eventually(lambda: not any(alive(pid) for pid in pids(tmp_path)))


@pytest.mark.exhaustive
def test_options_of_the_program_are_its_own(tmp_path):
    options = ["--log-folder", str(tmp_path / "logs"), "--", sys.executable, "-c", "print('--json')", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "areal", "launch", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("start 0: all ranks ended well")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.fault(
    row=1,
    injected="SIGKILL of one of two ranks that share a model (FSDP), after an optimizer step, under `LocalLauncher`",
    seen="the other rank is ended; both start again as another incarnation, continue from the newest checkpoint of "
    "shards and end with the parameters of one undisturbed process",
)
def test_ranks_continue_from_their_checkpoint_of_shards(tmp_path, caplog):
    program = Path(__file__).with_name("train_ranks.py")
    config = LaunchConfig(num_ranks=2, max_restarts=1, restart_pause_seconds=0.05, failure_grace_seconds=1.0)
    command = [sys.executable, str(program), str(tmp_path), "6", "5"]
    result = LocalLauncher(command, config=config, log_folder=tmp_path / "logs").run(StopRequest())
    assert [start.status for start in result.starts] == [137, 0], caplog.text
    assert "rank 1 starts at step 4" in (result.starts[1].log_folder / "rank-1.log").read_text()
    spec = importlib.util.spec_from_file_location("train_ranks", program)
    train_ranks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train_ranks)
    single = TrainingEngine(train_ranks.build_model(), config=TrainEngineConfig(**train_ranks.SETTINGS))
    batch = train_ranks.make_batch()
    for _ in range(6):
        single.train_batch(batch, train_ranks.loss_of(batch), with_entropy=True)
    expected, found = single.state_dict()["parameters"], torch.load(tmp_path / "result.pt")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
