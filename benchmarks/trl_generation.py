"""TRL's side of rollout_engines.py: the generation inside GRPOTrainer, on request. Runs inside .venv-trl.

Not part of areal: it imports nothing of ours. A job file names model, threads and kinds of work; each line on stdin
asks for one batch, {"work": NAME, "prompts": [[ids]]}, and is answered by a line with the number of tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
GROUP = 8


def make_trainer(job: dict[str, Any], work: dict[str, Any], model: Any, tokenizer: Any) -> Any:
    """Make a GRPOTrainer that generates this kind of work; all of them share the model."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    # What ends an answer is the model's business in TRL; -1 is no token.
    model.generation_config.eos_token_id = work["stops"] or None
    config = GRPOConfig(
        output_dir=job["output_dir"],
        per_device_train_batch_size=GROUP,  # of training, which this never does
        num_generations=GROUP,
        max_completion_length=work["new_tokens"],
        generation_kwargs=None if work["stops"] else {"eos_token_id": -1},
        temperature=1.0,
        use_cpu=job["device"] == "cpu",
        bf16=job["device"] == "cuda",
        fp16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "1"}]),
        processing_class=tokenizer,
    )


def main() -> None:
    """Answer requests until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="JSON written by rollout_engines.py")
    job = json.loads(parser.parse_args().job.read_text())
    # Libraries may print; answers have a stream of their own.
    answers, sys.stdout = sys.stdout, sys.stderr

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]))
    trainers = {name: make_trainer(job, work, model, tokenizer) for name, work in job["work"].items()}
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        work, trainer = job["work"][request["work"]], trainers[request["work"]]
        prompts = [prompt for prompt in request["prompts"] for _ in range(work["group"])]
        completions, _ = trainer._generate_single_turn(prompts, None, {}, work["group"])
        # Without ends, TRL still cuts what it returns at the tokenizer's own; all tokens were generated.
        tokens = sum(map(len, completions)) if work["stops"] else len(prompts) * work["new_tokens"]
        answers.write(f"{tokens}\n")
        answers.flush()


if __name__ == "__main__":
    main()
