"""Our side of grpo_vs_trl.py: the same job file, run by the ordinary trainer; prints one JSON object on stdout."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path


def main() -> None:
    """Train as the job says; report wall time, tokens and mean reward of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="JSON written by grpo_vs_trl.py")
    job = json.loads(parser.parse_args().job.read_text())

    from areal.trainer.configuration.source import load_config
    from areal.trainer.run import run

    shutil.rmtree(job["output_dir"], ignore_errors=True)
    resolved = load_config(None, [f"{key}={json.dumps(value)}" for key, value in _settings(job).items()])
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


def _settings(job: dict[str, object]) -> dict[str, object]:
    return {
        "output_dir": job["output_dir"],
        "seed": job["seed"],
        # Asynchronous runs compute in two threads at once, so each gets half of what the job allows.
        "num_threads": max(1, int(str(job["threads"])) // (2 if job["staleness"] else 1)),
        "engine.num_threads": max(1, int(str(job["threads"])) // (2 if job["staleness"] else 1)),
        "total_train_steps": job["steps"],
        "model.path": job["model"],
        "train_dataset.name": "jsonl_rl",
        "train_dataset.path": job["prompts"],
        "train_dataset.shuffle": False,
        "reward": "exact",
        "gconfig.max_new_tokens": job["max_new_tokens"],
        "rollout.batch_size": job["prompts_per_step"],
        "rollout.group_size": job["group_size"],
        "rollout.max_head_offpolicyness": job["staleness"],
        "engine.max_batch_size": int(str(job["prompts_per_step"])) * int(str(job["group_size"])),
        "engine.max_seq_len": job["max_seq_len"],
        "objective.preset": "grpo" if job["loss_type"] == "grpo" else "dapo",
        "objective.overrides": {"clip_low": 0.2, "clip_high": 0.28, "advantage_params": {"eps": 1e-4}},
        "actor.lr": job["lr"],
        "actor.max_tokens_per_micro_batch": 1 << 20,
        "metrics.progress": False,
        "metrics.rollouts_per_step": 0,
        "checkpoint.resume": False,
    }


if __name__ == "__main__":
    main()
