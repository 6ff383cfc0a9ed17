"""Runs of two ranks and two servers as jobs: their configuration, and what is seen of them from outside.

The servers are ours, behind vLLM's API: started by `areal serve`, found in the job's directory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from processes import command_lines, variables
from safetensors.torch import load_file

from areal.infra.metrics.logger import read_metrics

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


def warm_start(folder):
    """Train the model of `areal demo` before RL, which knows what an answer looks like; return its folder."""
    command = [sys.executable, "-m", "areal", "train", ROOT / "examples/math/arithmetic_sft.yaml"]
    done = subprocess.run(
        [*command, f"output_dir={folder}"], env=os.environ | QUIET, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "final"


def described(folder, *, steps, bound=0, model=None, servers=None, job=None, more=None):
    """Write a configuration into `folder` and return its path. bound: of staleness. model: None for random weights.
    servers, job: more of these sections. more: other sections in place of those here.
    """
    run = yaml.safe_load((ROOT / "examples/math/arithmetic_archon.yaml").read_text())
    spec = importlib.util.spec_from_file_location("program", ROOT / "tests/areal/engine/contract/vllm_program.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    roles = {"trainer": {"count": 2}, "server": {"count": 2, "min_ready": 1}}
    run |= {
        "output_dir": str(folder / "run"),
        "total_train_steps": steps,
        "eval_sets": {},
        "model": run["model"] if model is None else {"path": str(model)},
        "rollout": {"batch_size": 32, "group_size": 8, "max_head_offpolicyness": bound, "engine": "vllm"},
        "vllm": {"python": str(program.write_python(folder / "environment" / "python"))},
        "servers": {"dtype": "float32", "max_seq_len": 64, **(servers or {})},
        "weights": {"carrier": "broadcast"},
        "checkpoint": {"every_steps": 1, "keep": 3},
        "job": {
            "name": "j1",
            "directory": str(folder / "jobs"),
            "grace_seconds": 30,
            "environment": QUIET,
            "network": {"lease_seconds": 5, "meet_seconds": 300},
            "roles": roles,
            **(job or {}),
        },
        **(more or {}),
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


def run_undisturbed(folder, describe=described, **options):
    """Run it as a local job that nothing happens to; return its parameters at the end, by name."""
    command = [sys.executable, "-m", "areal", "launch", describe(folder, **options), "--on", "local"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return trained(folder)


def steps_saved(folder):
    """Return the newest step that has a checkpoint."""
    found = [int(path.name[5:13]) for path in (folder / "run" / "checkpoints").glob("step-*.*[0-9]")]
    return max(found, default=0)


def servers_of(job):
    """Return the pid of each server of the job."""
    mine = json.loads(job.folder.plan_path.read_text())["id"]
    return [
        pid for pid, words in command_lines()
        if "double.py" in " ".join(words) and "guard.py" not in " ".join(words)
        and variables(pid).get("AREAL_JOB_ID") == mine
    ]  # fmt: skip


def trained(folder):
    """Return the parameters at the end, by name."""
    found = {}
    for path in (folder / "run" / "final").glob("*.safetensors"):
        found |= load_file(path)
    return found


def largest_difference(one, other):
    """Return the largest difference of a parameter."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def rewards(folder, steps):
    """Return the reward of each step; every step was trained exactly once."""
    found = read_metrics(folder / "run" / "metrics.jsonl")
    assert sorted(found) == list(range(1, steps + 1))
    return [found[step]["reward/mean"] for step in sorted(found)]
