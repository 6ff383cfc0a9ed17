"""Program run by test_injected_faults: runs whose file system fills up, on a real one of a few megabytes.

    unshare --mount python full_disk_training.py <folder>

Exits with 77 where mounting is not permitted. One line per run on stdout; the runs' own log on stderr.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import runs

from areal.api import CheckpointError
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.metrics.logger import read_metrics
from areal.utils import logging

MEGABYTES = 8
SETTINGS = {
    "rollout__batch_size": 1,
    "rollout__group_size": 2,
    "total_train_steps": 8,
    "checkpoint__every_steps": 3,
    "checkpoint__keep": 2,
}


def mount(directory):
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "none", str(directory)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        sys.stderr.write("mounting is not permitted here\n")
        raise SystemExit(77)


def filler(directory, *, fill_at, empty_at):
    """Called between sampling and learning of each step."""
    ballast = directory / "ballast"

    def act(step, trajectories):
        if step == fill_at:
            with ballast.open("wb", buffering=0) as file:
                while shutil.disk_usage(directory).free:
                    file.write(bytes(4096))
        if step == empty_at:
            ballast.unlink()
        return list(trajectories)

    return act


def main():
    root = Path(sys.argv[1])
    logging.configure("info")
    directory = root / "emptied"
    mount(directory)
    config = runs.tiny(directory, **SETTINGS)
    summary, _ = runs.train(config, transform_rewards=filler(directory, fill_at=2, empty_at=5))
    steps = CheckpointStore(directory / "checkpoints", keep=2).steps()
    logged = list(read_metrics(directory / "metrics.jsonl"))
    sys.stdout.write(f"emptied: saved at {steps}, finished {summary['finished']}, metrics of steps {logged}\n")
    directory = root / "full"
    mount(directory)
    config = runs.tiny(directory, **SETTINGS | {"total_train_steps": 20})
    try:
        runs.train(config, transform_rewards=filler(directory, fill_at=2, empty_at=None))
    except CheckpointError as error:
        sys.stdout.write(f"full for good: CheckpointError, exit code {error.exit_code}: {error}\n")


main()
