"""Our side of grpo_vs_trl.py: the same job file, run by the ordinary trainer; prints one JSON object on stdout."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any


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
    run(resolved.config)
    seconds = time.perf_counter() - started
    lines = map(json.loads, (Path(job["output_dir"]) / "metrics.jsonl").read_text().splitlines())
    steps = [
        {"seconds": row["time/step"], "tokens": row["tokens/sampled"], "reward": row["reward/mean"]}
        for row in lines
        if "time/step" in row
    ]
    json.dump({"steps": steps, "seconds": seconds}, sys.stdout)


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """Keys and values of `areal train`."""
    samples = job["prompts_per_step"] * job["group_size"]
    # What computes at once shares what the job allows: two threads of this process, or this process and the server.
    threads = max(1, job["threads"] // (2 if job["staleness"] else 1))
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
        "objective.preset": "grpo" if job["loss_type"] == "grpo" else "dapo",
        "objective.surrogate": {"clip_low": 0.2, "clip_high": 0.28},
        "objective.advantage": {"eps": 1e-4},
        "actor.lr": job["lr"],
        "actor.device": job["device"],
        "actor.dtype": "bfloat16" if job["device"] == "cuda" else "float32",
        "actor.max_tokens_per_micro_batch": 1 << 20,
        "metrics.progress": False,
        "metrics.rollouts_per_step": 0,
        "checkpoint.resume": False,
        "checkpoint.every_seconds": 0,
        **_engine_settings(job, samples, threads),
    }


def _engine_settings(job: dict[str, Any], samples: int, threads: int) -> dict[str, Any]:
    if job["engine"] == "embedded":
        return {
            "engine.num_threads": threads,
            "engine.max_batch_size": samples,
            "engine.max_seq_len": job["max_seq_len"],
        }
    return {
        "vllm.python": job["vllm_python"],
        "vllm.cpu_cores": ",".join(map(str, job["cores"][-threads:])),
        "servers.dtype": "float32",
        "servers.max_concurrent": samples,
        "servers.max_seq_len": job["max_seq_len"],
    }


if __name__ == "__main__":
    main()
