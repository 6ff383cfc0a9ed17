"""The TRL side of grpo_vs_trl.py. Runs inside .venv-trl (scripts/setup_trl.sh) and prints one JSON object on stdout.

Not part of areal: it imports nothing of ours, and is given a job file with model folder, prompts and settings.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """Arguments of GRPOConfig that make it do the same work as our side."""
    return {
        "output_dir": job["output_dir"],
        "per_device_train_batch_size": job["prompts_per_step"] * job["group_size"],
        "num_generations": job["group_size"],
        "max_completion_length": job["max_new_tokens"],
        "max_steps": job["steps"],
        "num_iterations": 1,
        "beta": 0.0,
        "temperature": 1.0,
        "loss_type": job["loss_type"],
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "learning_rate": job["lr"],
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "use_vllm": job["trl_vllm"],
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": job["gpu_share"],
        "use_cpu": job["device"] == "cpu",
        "bf16": job["dtype"] == "bfloat16",
        "fp16": False,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 10_000,
        "seed": job["seed"],
    }


def main() -> None:
    """Train as the job says; record wall time, tokens and mean reward of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="JSON written by grpo_vs_trl.py")
    job = json.loads(parser.parse_args().job.read_text())

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback, set_seed
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(job["threads"])
    set_seed(job["seed"])
    model, processing = _loaded(job)
    steps: list[dict[str, float]] = []
    tokens_and_rewards: dict[str, float] = {"tokens": 0.0, "reward": 0.0}

    def reward(completions: list[Any], completion_ids: list[list[int]], answer: list[str], **_: object) -> list[float]:
        if job["images"]:
            completions = [completion[0]["content"] for completion in completions]
        scores = [float(text == gold) for text, gold in zip(completions, answer, strict=True)]
        tokens_and_rewards["tokens"] = float(sum(map(len, completion_ids)))
        tokens_and_rewards["reward"] = sum(scores) / len(scores)
        return scores

    class Recorder(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.started, self.cpu_started = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: object, **__: object) -> None:
            cpu = {"cpu_seconds": time.process_time() - self.cpu_started}
            steps.append({"seconds": time.perf_counter() - self.started, **cpu, **tokens_and_rewards})

    config = GRPOConfig(**settings(job))
    rows = [_row(json.loads(line), job) for line in Path(job["prompts"]).read_text().splitlines()]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=processing,
        callbacks=[Recorder()],
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    json.dump({"steps": steps, "seconds": seconds}, sys.stdout)


def _loaded(job: dict[str, Any]) -> tuple[Any, Any]:
    """Model, and what turns rows into its inputs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

    kind = AutoModelForImageTextToText if job["images"] else AutoModelForCausalLM
    model = kind.from_pretrained(job["model"], dtype=torch.float32)
    if job["images"]:
        return model, AutoProcessor.from_pretrained(job["model"], padding_side="left")
    return model, AutoTokenizer.from_pretrained(job["model"], padding_side="left")


def _row(row: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `areal` as TRL wants it."""
    if not job["images"]:
        return row
    from PIL import Image

    images = [Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB") for image in row["images"]]
    turns = [{**turn, "content": turn["content"].replace("<image>", "")} for turn in row["messages"]]
    return {"prompt": turns, "images": images, "answer": row["answer"]}


if __name__ == "__main__":
    main()
