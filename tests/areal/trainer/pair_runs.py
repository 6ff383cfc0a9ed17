"""Tiny runs on preference pairs whose truth is known: the better answer is the one with the larger sum of digits."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from areal.api import load
from areal.trainer.configuration.source import load_config
from areal.trainer.run import ROW_TRAINERS
from areal.trainer.session import open_session

if TYPE_CHECKING:
    from pathlib import Path

MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 17,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
BASE: dict[str, Any] = {
    "seed": 3,
    "total_train_steps": 4,
    "model.init": MODEL,
    "model.tokenizer_path": "characters:0123456789+-*/=",
    "batch_size": 8,
    "actor.lr": 3e-3,
    "metrics.progress": False,
}


def write_pairs(folder: Path, *, train: int = 64, test: int = 128, seed: int = 0, turn_labels: bool = False) -> Path:
    """train.jsonl and test.jsonl with prompt, chosen, rejected and margin; no prompt occurs in both."""
    generator = random.Random(seed)
    prompts = [f"{a}{b}+{c}=" for a in range(10) for b in range(10) for c in range(10)]
    generator.shuffle(prompts)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("test", test)):
        rows = []
        for prompt in (prompts.pop() for _ in range(count)):
            answers = {"".join(generator.choices("0123456789", k=generator.randint(2, 4))) for _ in range(8)}
            ordered = sorted(answers, key=lambda text: (digit_sum(text), text))
            sides = [ordered[-1], ordered[0]]
            if turn_labels and split == "train":
                sides.reverse()
            margin = abs(digit_sum(sides[0]) - digit_sum(sides[1])) / 10
            rows.append({"prompt": prompt, "chosen": sides[0], "rejected": sides[1], "margin": margin})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def digit_sum(text: str) -> int:
    """What the preferences are about."""
    return sum(map(int, text))


def tiny(kind: str, output_dir: Path, pairs: Path, **changes: Any) -> Any:
    """A valid run; keys of `changes` use __ for the dot."""
    settings = BASE | {
        "kind": kind,
        "output_dir": str(output_dir),
        "train_dataset.name": "jsonl",
        "train_dataset.path": str(pairs),
        "valid_dataset.name": "jsonl",
        "valid_dataset.path": str(pairs),
        "valid_dataset.split": "test",
    }
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config


def train(config: Any, *, fail_at: int | None = None, stop_at: int | None = None) -> tuple[dict[str, Any], Any]:
    """Run to the end; returns the summary and the trainer. fail_at, stop_at: step before which the process fails, or
    is asked to stop."""
    with open_session(config) as session:
        trainer = load("trainer", config.kind, ROW_TRAINERS)(config, session)
        learn = trainer.learn

        def interrupted(ordinals: range) -> Any:
            step = ordinals.start // config.batch_size
            if step == fail_at:
                raise KeyboardInterrupt
            result = learn(ordinals)
            if stop_at is not None and step + 1 == stop_at:
                session.stop.request()
            return result

        trainer.learn = interrupted
        return trainer.train(), trainer
