"""A tiny image-text model learns to count red figures from pixels, on one CPU core, with two controls.

    python examples/vision/counting.py --seed 0 --folder runs/counting

A LLaVA of 0.2 M parameters with random weights sees pictures of 32 x 32 pixels with 1 to 6 coloured figures, and is
asked how many are red: 0 to 3, equally often, so that chance is 0.25. It is shown answers first, then GRPO goes on with
fresh pictures and the reward alone (`areal train` with the workflow `vision_rlvr`). Both controls start from the same
checkpoint: `shuffled` rewards answers of other pictures, and `swapped` tests the trained model with the pictures of
other questions. All pictures come from seeds of their own; the test rows were looked at after all settings were fixed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

from areal.algorithm.packing import collate
from areal.api import GenerationConfig, LossOutput, StopReason, Trajectory
from areal.dataset.encoding import load_tokenizer
from areal.dataset.pixels import ImageLimits
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig, VisionTrainConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.trainer.configuration.source import load_config
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session
from areal.workflow.pixels import PixelPrompts
from areal.workflow.vision_rlvr import VisionRlvrWorkflow

TOKENIZER = "characters:0123?<image>"
QUESTION = "<image>?"
SFT_STEPS, SFT_ROWS = 80, 64
RL_STEPS = 80
TEST_ROWS = 200
COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)}
MODEL: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": 31,
    "tie_word_embeddings": False,
    "vision_feature_select_strategy": "default",
    "vision_feature_layer": -1,
    "text_config": {
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "projection_dim": 64,
    },
}


def picture(draw: random.Random) -> tuple[str, int]:
    """Return a picture as the base64 of a PNG, and how many of its figures are red."""
    from PIL import Image, ImageDraw

    red = draw.randrange(4)
    colours = ["red"] * red + [draw.choice(("green", "blue")) for _ in range(draw.randint(max(0, 1 - red), 3))]
    # The background tells pictures apart that have the same few figures, so that none is met twice.
    image = Image.new("RGB", (32, 32), tuple(draw.randint(225, 245) for _ in range(3)))
    pen = ImageDraw.Draw(image)
    for cell, colour in zip(draw.sample(range(9), len(colours)), colours, strict=True):
        x, y = 5 + 11 * (cell % 3) + draw.randint(-1, 1), 5 + 11 * (cell // 3) + draw.randint(-1, 1)
        box = [x - 3, y - 3, x + 3, y + 3]
        shape = draw.randrange(3)
        if shape == 2:
            pen.polygon([(x, y - 3), (x - 3, y + 3), (x + 3, y + 3)], fill=COLOURS[colour])
        else:
            (pen.ellipse if shape else pen.rectangle)(box, fill=COLOURS[colour])
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode(), red


def rows_of(name: str, count: int, *, shuffled: bool = False, swapped: bool = False) -> list[dict[str, Any]]:
    """Return rows from the seed `name`. shuffled: answers of other rows; swapped: pictures of other rows."""
    draw = random.Random(name)
    made = [picture(draw) for _ in range(count)]
    images, answers = [image for image, _ in made], [str(red) for _, red in made]
    if shuffled:
        draw.shuffle(answers)
    if swapped:
        draw.shuffle(images)
    return [
        {"messages": QUESTION, "images": [image], "answer": answer}
        for image, answer in zip(images, answers, strict=True)
    ]


def get_counting_rl_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, seed: int, shuffled: bool = False
) -> Any:
    """Return fresh rows for the reward alone; a loader that `train_dataset.name` names."""
    from datasets import Dataset

    del path, tokenizer, max_length
    return Dataset.from_list(rows_of(f"rl {split} {seed}", 16 * RL_STEPS, shuffled=shuffled))


def warm_start(folder: Path, *, seed: int) -> None:
    """Train on demonstrations: question, picture, answer; and write the checkpoint."""
    tokenizer = load_tokenizer(TOKENIZER)
    prompts = PixelPrompts(tokenizer, processor=MODEL, limits=ImageLimits(), enable_thinking=False)
    config = TrainEngineConfig(
        lr=2e-3, lr_schedule="cosine", warmup_steps=20, device="cpu", vision=VisionTrainConfig(train="all")
    )
    engine = TrainingEngine(loading.from_config(MODEL, seed=seed), config=config, total_steps=SFT_STEPS)

    async def record(row: dict[str, Any]) -> Trajectory:
        ids, images, _ = await prompts.read(row)
        answer = [*tokenizer.encode(row["answer"]), tokenizer.eos_token_id]
        mask = [0] * len(ids) + [1] * len(answer)
        versions = [0 if value else -1 for value in mask]
        return Trajectory(
            tokens=ids + answer, loss_mask=mask, logprobs=[0.0] * len(mask), versions=versions, turn_ids=versions,
            reward=0.0, stop_reason=StopReason.STOP, images=images,
        )  # fmt: skip

    async def batch_of(rows: list[dict[str, Any]]) -> list[Trajectory]:
        return await asyncio.gather(*map(record, rows))

    def loss(logp: torch.Tensor, _: Any, part: Any) -> LossOutput:
        return LossOutput(loss=-(logp * part.loss_mask).sum() / (2 * SFT_ROWS))

    for step in range(SFT_STEPS):
        rows = rows_of(f"sft {seed} {step}", SFT_ROWS)
        engine.train_batch(collate(asyncio.run(batch_of(rows))), loss)
    engine.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def reinforce(model: Path, folder: Path, *, seed: int, shuffled: bool) -> Path:
    """GRPO as `areal train` does it; returns the checkpoint."""
    settings = {
        "kind": "rl", "seed": seed, "output_dir": str(folder), "num_threads": 1, "total_train_steps": RL_STEPS,
        "model.path": str(model), "model.implementation": "transformers", "workflow": "vision_rlvr",
        "workflow_options.processor": str(model), "reward": "exact", "gconfig.max_new_tokens": 3,
        "train_dataset.name": f"{Path(__file__).stem}:get_counting_rl_dataset",
        "train_dataset.options": {"seed": seed, "shuffled": shuffled},
        "rollout.batch_size": 16, "rollout.group_size": 8, "rollout.max_head_offpolicyness": 1,
        "engine.max_seq_len": 64, "engine.num_threads": 1, "objective.preset": "grpo",
        "actor.lr": 2e-4, "actor.warmup_steps": 5, "actor.vision.train": "all", "actor.device": "cpu",
        "metrics.progress": False,
    }  # fmt: skip
    config = load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config
    with open_session(config) as session, PPOTrainer(config, session) as trainer:
        return Path(trainer.train()["checkpoint"])


def accuracy(model: Path, rows: list[dict[str, Any]], *, greedy: bool) -> float:
    """Share of right answers."""

    async def exact(prompt: str, completions: str, _: Any, __: Any, /, *, answer: str) -> float:
        return float(completions == answer)

    tokenizer = load_tokenizer(str(model))
    engine = EmbeddedEngine(
        loading.from_pretrained(model),
        config=EmbeddedEngineConfig(max_seq_len=64),
        eos_token_id=tokenizer.eos_token_id,
    )
    sampling = GenerationConfig(max_new_tokens=3, greedy=greedy)
    workflow = VisionRlvrWorkflow(exact, sampling, tokenizer, processor=str(model))

    async def all_of() -> list[Any]:
        return await asyncio.gather(*(workflow.arun_episode(engine, row) for row in rows), return_exceptions=True)

    # A fault, such as a sampled placeholder, is no right answer.
    return sum(getattr(item, "reward", 0.0) for item in asyncio.run(all_of())) / len(rows)


def measure(model: Path, seed: int) -> dict[str, float]:
    """Accuracies on held-out rows."""
    test = rows_of(f"test {seed}", TEST_ROWS)
    return {
        "greedy": accuracy(model, test, greedy=True),
        "sampled": accuracy(model, test, greedy=False),
        "swapped": accuracy(model, rows_of(f"test {seed}", TEST_ROWS, swapped=True), greedy=True),
    }


def main() -> int:
    """Run the task and its control; exit code 1 when the controls do not separate from the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/counting"))
    options = parser.parse_args()
    folder, seed = options.folder / str(options.seed), options.seed
    torch.set_num_threads(1)
    found: dict[str, Any] = {"seed": seed}
    started = time.perf_counter()
    warm_start(folder / "start", seed=seed)
    found["before"] = measure(folder / "start", seed)
    found["sft_seconds"] = round(time.perf_counter() - started, 1)
    for name in ("true", "shuffled"):
        started = time.perf_counter()
        trained = reinforce(folder / "start", folder / name, seed=seed, shuffled=name == "shuffled")
        found[name] = measure(trained, seed)
        found[f"{name}_seconds"] = round(time.perf_counter() - started, 1)
    print(json.dumps(found))
    learnt = found["true"]["sampled"] > found["before"]["sampled"] > found["shuffled"]["sampled"]
    return 0 if learnt and found["true"]["swapped"] < 0.35 else 1


if __name__ == "__main__":
    sys.exit(main())
