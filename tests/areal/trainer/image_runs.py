"""Tiny RL runs of an image-text model, on rows with one image, two, and none."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import runs

from tests.support.vision import LLAVA, encoded, noise

if TYPE_CHECKING:
    from pathlib import Path

    from areal.trainer.config import PPOConfig


def tiny(folder: Path, **changes: Any) -> PPOConfig:
    """A valid run with a trained tower; every batch has rows of text."""
    rows = folder.parent / "mixed.jsonl"
    if not rows.exists():
        lines = []
        for number in range(8):
            images = [
                base64.b64encode(encoded(noise(9, 9, seed=number + other))).decode() for other in range(number % 3)
            ]
            lines.append({"messages": f"{'<image>' * len(images)}{number}+?", "images": images, "answer": str(number)})
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "model__init": LLAVA, "model__implementation": "transformers",
        "model__tokenizer_path": "characters:0123456789?+",
        "train_dataset__path": str(rows), "train_dataset__shuffle": False, "workflow": "vision_rlvr",
        "workflow_options__processor": LLAVA, "rollout__batch_size": 4, "rollout__group_size": 2,
        "rollout__max_retries": 20, "gconfig__max_new_tokens": 3, "actor__vision__train": "all",
    }  # fmt: skip
    return runs.tiny(folder, **{**settings, **changes})
