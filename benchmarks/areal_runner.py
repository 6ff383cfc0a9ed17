"""Our side of grpo_vs_trl.py: the same job file, run by the ordinary trainer; prints one JSON object on stdout."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from servers import GPU_SHARE

DEFAULTS: Final = {
    "async_threads": None,
    "dtype": "float32",
    "images": False,
    "gpu_share": GPU_SHARE,
    "separate_learner": False,
}
"""Of what a job may leave out."""


def main() -> None:
    """Train as the job says; report wall time, tokens and mean reward of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="JSON written by grpo_vs_trl.py")
    job = json.loads(parser.parse_args().job.read_text())

    from areal.trainer.configuration.source import load_config
    from areal.trainer.run import run

    shutil.rmtree(job["output_dir"], ignore_errors=True)
    resolved = load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings(job).items()])
    started = time.perf_counter()
    metrics = Path(job["output_dir"]) / "metrics.jsonl"
    with StepClock(metrics) as clock:
        run(resolved.config)
    seconds = time.perf_counter() - started
    lines = map(json.loads, metrics.read_text().splitlines())
    steps = [
        {"seconds": row["time/step"], "cpu_seconds": cpu, "tokens": row["tokens/sampled"], "reward": row["reward/mean"]}
        for row, cpu in zip((line for line in lines if "time/step" in line), clock.per_step(), strict=True)
    ]
    json.dump({"steps": steps, "seconds": seconds}, sys.stdout)


class StepClock:
    """Notes the CPU seconds of this process, and of the one that trains beside it, whenever the run has written a
    step's metrics, within 20 ms."""

    def __init__(self, metrics: Path) -> None:
        self._metrics = metrics
        self._size = 0
        self._learner: list[Path] = []
        self._ends = [self._cpu_seconds()]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StepClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def per_step(self) -> list[float]:
        """Between the ends of steps; the first one includes the start."""
        return [end - start for start, end in itertools.pairwise(self._ends)]

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self._note()
        self._note()

    def _note(self) -> None:
        size = self._metrics.stat().st_size if self._metrics.exists() else 0
        if size == self._size:
            return
        self._size, written = size, self._metrics.read_bytes().count(b'"time/step"')
        new, before = written + 1 - len(self._ends), self._ends[-1]
        gained = self._cpu_seconds() - before
        # Of steps shorter than a look apart, several are seen at once: each has its share.
        self._ends += [before + gained * number / new for number in range(1, new + 1)]

    def _cpu_seconds(self) -> float:
        if self._metrics.exists() and not self._learner:
            self._learner = _learner_processes()
        ticks = 0
        for stat in self._learner:
            with contextlib.suppress(OSError):  # it has ended
                ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _learner_processes() -> list[Path]:
    """Files with the times of the processes that `separate_learner` starts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            # The last word names the process that asked for it.
            if len(words) > 2 and words[2].endswith(b"_learner_child.py") and words[-2] == str(os.getpid()).encode():
                found.append(folder / "stat")
    return found


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """Keys and values of `areal train`."""
    job = DEFAULTS | job
    samples = job["prompts_per_step"] * job["group_size"]
    threads, generating = _threads(job)
    return {
        "output_dir": job["output_dir"],
        "seed": job["seed"],
        "num_threads": threads,
        "total_train_steps": job["steps"],
        "model.path": job["model"],
        "train_dataset.name": "jsonl_rl",
        "train_dataset.path": job["prompts"],
        "train_dataset.shuffle": False,
        "reward": "exact",
        "gconfig.max_new_tokens": job["max_new_tokens"],
        "rollout.engine": job["engine"],
        "rollout.batch_size": job["prompts_per_step"],
        "rollout.group_size": job["group_size"],
        "rollout.max_head_offpolicyness": job["staleness"],
        "separate_learner": job["separate_learner"],
        "objective.preset": "grpo" if job["loss_type"] == "grpo" else "dapo",
        "objective.surrogate": {"clip_low": 0.2, "clip_high": 0.28},
        "objective.advantage": {"eps": 1e-4},
        "actor.lr": job["lr"],
        "actor.device": job["device"],
        "actor.dtype": job["dtype"],
        "actor.max_tokens_per_micro_batch": 1 << 20,
        "metrics.progress": False,
        "metrics.rollouts_per_step": 0,
        "checkpoint.resume": False,
        "checkpoint.every_seconds": 0,
        **_engine_settings(job, samples, generating),
        **(_image_settings(job) if job["images"] else {}),
    }


def _threads(job: dict[str, Any]) -> tuple[int, int]:
    """Of training and of generation."""
    if not job["staleness"]:
        return job["threads"], job["threads"]
    if job["async_threads"]:
        training, generating = job["async_threads"]
        return training, generating
    if job["engine"] != "embedded":
        # A server does not know when the trainer waits, so each has its half.
        half = max(1, job["threads"] // 2)
        return half, half
    from areal.trainer.config import ModelConfig
    from areal.trainer.configuration.threads import choose_threads, num_parameters
    from areal.utils.machine import CpuShare

    # As a run chooses by itself where nothing else computes.
    quiet = CpuShare(total=job["threads"], allowed=job["threads"], quota=None, load=0.0)
    chosen = choose_threads(quiet, parameters=num_parameters(ModelConfig(path=job["model"])), processes=1)
    return chosen.number, chosen.number


def _image_settings(job: dict[str, Any]) -> dict[str, Any]:
    # TRL trains all there is.
    return {
        "model.implementation": "transformers",
        "workflow": "vision_rlvr",
        "workflow_options.processor": job["model"],
        "actor.vision.train": "all",
    }


def _engine_settings(job: dict[str, Any], samples: int, threads: int) -> dict[str, Any]:
    if job["engine"] == "embedded":
        return {
            "engine.num_threads": threads,
            # The kernel computes in float32, by the rounded weights, in half of torch's time with bfloat16.
            "engine.dtype": "float32" if job["device"] == "cpu" and job["dtype"] == "bfloat16" else "auto",
            "engine.max_batch_size": samples,
            "engine.max_seq_len": job["max_seq_len"],
        }
    return {
        "vllm.python": job["vllm_python"],
        "vllm.cpu_cores": ",".join(map(str, job["cores"][-threads:])),
        "vllm.gpu_memory_utilization": job["gpu_share"],
        "vllm.enforce_eager": job["device"] == "cpu",
        "servers.dtype": job["dtype"],
        "servers.max_concurrent": samples,
        "servers.max_seq_len": job["max_seq_len"],
    }


if __name__ == "__main__":
    main()
