"""Program run by test_killed_runs: `areal train` killed by SIGKILL at places of a step and of a save, and continued.

    python kill_training.py <empty folder> <place> ...

Every run is a process of its own that executes the real command line; processes are forked from one that has imported
everything and computed nothing, since importing takes longer than training here. Prints one JSON object per place:
what the continued run ended with, what an uninterrupted one ended with is the first ("straight"). Nothing is judged
here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import runs
import torch._dynamo  # noqa: F401 - imported once for all forks, like what is not used below

import areal.infra.metrics.report
import areal.trainer.ppo  # noqa: F401 - likewise, for all forks
from areal.cli.main import main as command_line
from areal.engine.train.optimizer import ModelOptimizer
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.metrics.logger import MetricLogger, read_metrics
from areal.infra.rollout.executor import RolloutExecutor
from areal.trainer.assembly import tokenizer_of
from areal.trainer.configuration.source import dump_yaml
from areal.utils import atomic

SETTINGS = {
    "total_train_steps": 5,
    "checkpoint__every_steps": 2,
    "objective__num_minibatches": 2,
    "rollout__batch_size": 2,
    "rollout__group_size": 2,
    "actor__lr_schedule": "cosine",
    "actor__weight_decay": 0.1,
    # Two sources under a curriculum: what is drawn next depends on what was sampled before.
    "train_dataset__name": "",
    "train_dataset__path": "",
    "sources": {
        "exact": {"dataset": {"name": "jsonl", "path": str(runs.ROWS)}, "max_rows": 5, "weight": 2},
        "length": {
            "dataset": {"name": "jsonl", "path": str(runs.ROWS)},
            "reward": {"length": {"options": {"shape": "target", "target": 3}}},
            "pass_reward": 0.6,
            "max_rows": 4,
        },
    },
    "curriculum": {"pools": {"hard": {"up_to": 0.4}, "easy": {"weight": 0.5}}, "replay": 0.3},
}
PLACES = {
    # name: owner, method, call, before or after it. Step 4 is the worst: step 3 is done and in no checkpoint.
    "between the two optimizer steps of step 4": (ModelOptimizer, "step", 7, "after"),
    "after the last optimizer step of step 4": (ModelOptimizer, "step", 8, "after"),
    "after the rollouts moved on to step 5": (RolloutExecutor, "advance", 4, "after"),
    "between the two logs of step 4": (MetricLogger, "log", 4, "after"),
    "after step 4, before its checkpoint": (CheckpointStore, "save", 2, "before"),
    "before the checkpoint is renamed": (atomic, "fsync_tree", 2, "after"),
    "before the older checkpoint is removed": (CheckpointStore, "_prune", 2, "before"),
    "after the last step, before the final checkpoint": (CheckpointStore, "save", 3, "before"),
}
RUN_DEPENDENT = ("time", "tokens_per_second", "wait", "seconds", "perf/")
"""Parts of names of metrics that measure this run's speed."""


def kill_at(owner: object, name: str, call: int, when: str) -> None:
    """SIGKILL this process at the given call of `owner.name`."""
    original = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def counted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def train_in_child(config_file: Path, place: tuple | None) -> tuple[int, int]:
    """Run `areal train` in a fork; returns (pid, wait status)."""
    child = os.fork()
    if child == 0:
        log = os.open(config_file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if place is not None:
            kill_at(*place)
        os._exit(command_line(["train", str(config_file), "--json"]))
    return child, os.waitpid(child, 0)[1]


def orphans_of(pid: int) -> list[str]:
    """Command lines of reward workers that still name `pid` as their parent, after a moment to notice its end."""
    deadline = time.monotonic() + 60
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(word.endswith("_worker.py") for word in words) and str(pid) in words:
                found.append(" ".join(words))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def describe(directory: Path) -> dict:
    """Everything that must be equal, bit for bit."""
    checkpoint = CheckpointStore(directory / "checkpoints", keep=2).load_latest()
    rollout = checkpoint.load("rollout")
    files = sorted([*checkpoint.path.glob("learner*"), *checkpoint.path.glob("rng*"), *directory.glob("final/*")])
    metrics = read_metrics(directory / "metrics.jsonl")
    return {
        "step": checkpoint.step,
        # How far admission had come when the run ended is a race that changes nothing.
        "ledger": {name: value for name, value in rollout["ledger"].items() if name != "next_ordinal"},
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "metrics": {
            step: {name: value for name, value in row.items() if not any(part in name for part in RUN_DEPENDENT)}
            for step, row in metrics.items()
        },
        "leftovers": [path.name for path in directory.rglob(".*")],
    }


def run_case(root: Path, name: str, place: tuple | None) -> dict:
    directory = root / name.replace(" ", "-").replace(",", "")
    config_file = directory.with_suffix(".yaml")
    config_file.write_text(dump_yaml(runs.tiny(directory, **SETTINGS)))
    report: dict = {"name": name, "killed": None, "orphans": []}
    if place is not None:
        pid, status = train_in_child(config_file, place)
        report["killed"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        report["orphans"] = orphans_of(pid)
        report["steps_logged"] = len(read_metrics(directory / "metrics.jsonl"))
        report["checkpoint_left"] = max(CheckpointStore(directory / "checkpoints", keep=2).steps(), default=0)
    _, status = train_in_child(config_file, None)
    report["exit_code"] = os.waitstatus_to_exitcode(status)
    report["log"] = config_file.with_suffix(".log").read_text()[-2000:] if report["exit_code"] else ""
    return report | (describe(directory) if report["exit_code"] == 0 else {})


def main() -> None:
    root = Path(sys.argv[1])
    tokenizer_of(runs.tiny(root).model)  # imports, too
    for name in ("straight", *sys.argv[2:]):
        sys.stdout.write(json.dumps(run_case(root, name, PLACES.get(name))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
