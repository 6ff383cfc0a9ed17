"""One rank of the runs over many processes. Rank 0 compares each with the same run in one process.

torchrun --nproc-per-node 2 rank_runs.py --out=FILE --folder=FOLDER KIND ...
"""

import argparse
import base64
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import image_runs
import pair_runs
import runs as rl_runs
import torch

from areal.api import CheckpointError
from areal.dataset.encoding import load_tokenizer
from areal.engine.config import ArchonConfig
from areal.engine.hf import loading
from areal.infra.metrics.logger import read_metrics
from areal.models import from_config, from_pretrained
from areal.models.parallel import ParallelDims
from areal.models.reward_model import load_reward_model
from areal.trainer.assembly import save_states, tokenizer_of
from areal.trainer.rank_group import RankGroup
from areal.trainer.run import lead, run_on_rank_zero
from areal.trainer.sft import SFTLearner
from tests.support.vision import LLAVA, encoded, noise

NUMBERS = {"num_threads": 1, "actor__dtype": "float64", "actor__adam_eps": 1e-3, "actor__device": "cpu"}
SHARDED = ArchonConfig(parallel=ParallelDims(dp_shard=2))
SPLIT = ArchonConfig(parallel=ParallelDims(tp=2), sequence_parallel=True)
MATRICES = ArchonConfig(parallel=ParallelDims(tp=2))
WAYS = ("ranks", "ranks to one", "one to ranks")
DIFFERENT = ("micro_batches", "model_tokens", "tokens_per_second", "time", "rollout/", "seconds", "perf/")
"""Metrics that are about the work and not about its results."""


ROUNDED = ("train/advantage", "train/behave_weight", "train/behave_weight_square", "train/correction_weight")
"""Metrics that are means of float32 numbers, as samplers record them."""


def checkpoint(folder):
    """A model to start from, which ranks read in shards; other runs start from random weights."""
    if not folder.exists():
        from_config(pair_runs.MODEL, seed=5, dtype=torch.float32, device="cpu").save_pretrained(folder)
    return {"model__path": str(folder)}


def rl(folder, **changes):
    critic = {"dtype": "float64", "device": "cpu", "adam_eps": 1e-3, "lr": 1e-3}
    changes = {"objective__preset": "ppo", "objective__kl": {"coef": 0.1}, "critic": critic, **changes}
    changes |= checkpoint(folder.parent / "start")
    return rl_runs.tiny(folder, **NUMBERS, **changes)


def distillation(folder, **changes):
    """Two teachers by row beside a reward: one rule for what they list, on every rank."""
    teachers = {}
    for name, seed in (("plus", 6), ("times", 7)):
        path = folder.parent / f"teacher-{name}"
        if not path.exists():
            from_config(pair_runs.MODEL, seed=seed, dtype=torch.float32, device="cpu").save_pretrained(path)
            load_tokenizer(rl_runs.BASE["model.tokenizer_path"]).save_pretrained(path)
        teachers[name] = {"path": str(path)}
    rows = folder.parent / "taught.jsonl"
    if not rows.exists():
        lines = [json.loads(line) for line in rl_runs.ROWS.read_text(encoding="utf-8").splitlines()]
        lines = [line | {"source": ("plus", "times")[number % 2]} for number, line in enumerate(lines)]
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    taught = {"teachers": teachers, "loss": {"divergence": "js", "estimator": "top_k", "k": 5}}
    changes |= checkpoint(folder.parent / "start")
    return rl_runs.tiny(folder, **NUMBERS, train_dataset__path=str(rows), distillation=taught, **changes)


def sft(folder, **changes):
    rows = {}
    for dataset in ("train_dataset", "valid_dataset"):
        options = {"demonstrations": 30, "seed": 0}
        rows |= {f"{dataset}__name": "arithmetic_sft", f"{dataset}__path": "", f"{dataset}__options": options}
    rows |= {"valid_dataset__split": "train", "label_smoothing": 0.1}
    return pair_runs.tiny("sft", folder, Path(), **{**NUMBERS, **rows, **changes})


def pairs(kind):
    def make(folder, **changes):
        rows = folder.parent / f"{kind}-pairs"
        if not rows.exists():
            pair_runs.write_pairs(rows, train=24, test=8)
        if kind == "reward_model":
            changes |= checkpoint(folder.parent / "start")
        return pair_runs.tiny(kind, folder, rows, **NUMBERS, **changes)

    return make


def adapters(folder, **changes):
    return sft(folder, actor__lora={"rank": 2}, **changes)


def foreign(folder, **changes):
    return sft(folder, model__implementation="transformers", **changes)


def images(folder, **changes):
    return image_runs.tiny(folder, **NUMBERS, **changes)


def image_sft(folder, **changes):
    """Rows with two images, one, and none."""
    rows = folder.parent / "pictures.jsonl"
    if not rows.exists():
        lines = []
        for number in range(12):
            files = [
                base64.b64encode(encoded(noise(9, 9, seed=number + other))).decode() for other in range(number % 3)
            ]
            prompt = f"{'<image>' * len(files)}{number}+?"
            lines.append({"prompt": prompt, "images": files, "answer": str(number)})
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    settings = {
        "model__init": LLAVA, "model__implementation": "transformers",
        "model__tokenizer_path": "characters:0123456789?+", "valid_dataset__split": "train",
        "batch_size": 6, "actor__vision__train": "all",
    }  # fmt: skip
    return pair_runs.tiny("sft", folder, rows, **{**NUMBERS, **settings, **changes})


MAKERS = {
    "rl": rl,
    "distillation": distillation,
    "sft": sft,
    "adapters": adapters,
    "foreign": foreign,
    "images": images,
    "image_sft": image_sft,
    "dpo": pairs("dpo"),
    "reward_model": pairs("reward_model"),
}


def run(kind, folder, group, archon, **changes):
    config = MAKERS[kind](folder, **changes)
    lead(replace(config, archon=archon), group)


def difference(kind, first, second):
    """Largest difference of any metric at any step, and of any weight."""
    ours, theirs = (read_metrics(folder / "metrics.jsonl") for folder in (first, second))
    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    metrics = {}
    for step, values in ours.items():
        for name, value in values.items():
            if any(part in name for part in DIFFERENT) or not isinstance(value, float):
                continue
            metrics[name] = max(metrics.get(name, 0.0), abs(value - theirs[step].get(name, math.nan)))
    load = {
        "reward_model": load_reward_model,
        "images": loading.from_pretrained,
        "image_sft": loading.from_pretrained,
    }.get(kind, from_pretrained)
    states = [load(folder / "final", dtype=torch.float64).state_dict() for folder in (first, second)]
    weights = max(float((tensor - states[1][name]).abs().max()) for name, tensor in states[0].items())
    return {"metrics": metrics, "weights": weights}


def compare(kind, folder, group, ways):
    """A run of four steps in one process against one over ranks, and against runs that change over in the middle."""
    straight = folder / f"{kind} alone"
    run(kind, straight, RankGroup(), None)
    found = {}
    for way in ways:
        target = folder / f"{kind} {way}"
        if way == "ranks":
            run(kind, target, group, {"sft": SPLIT, "image_sft": MATRICES}.get(kind, SHARDED))
        else:
            parts = [(group, SHARDED), (RankGroup(), None)]
            first, second = parts if way == "ranks to one" else reversed(parts)
            run(kind, target, *first, total_train_steps=2)
            shutil.copytree(target / "final", folder / f"{kind} {way} after two steps")
            run(kind, target, *second)
        found[way] = difference(kind, straight, target)
    return found


def saves(group, folder):
    """What becomes of a checkpoint in a folder that only rank 0 can see, and of the next one."""
    refused = ""
    config = replace(sft(folder / "none"), archon=SHARDED)
    learner = group.create(SFTLearner, config, tokenizer_of(config.model), 1)
    try:
        learner.run(save_states, Path("seen by rank 0"))
    except CheckpointError as error:
        refused = str(error)
    whole = folder / "whole"
    whole.mkdir()
    learner.run(save_states, whole)
    return {"refused": refused, "next": sorted(path.name for path in whole.iterdir())}


def work_in_own_folder(folder):
    """Relative paths are other ones on each rank, as on machines without a common file system."""
    own = folder / f"rank-{os.environ['RANK']}"
    own.mkdir()
    os.chdir(own)
    if os.environ["RANK"] == "0":
        Path("seen by rank 0").mkdir()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("kinds", nargs="+", choices=MAKERS)
    arguments = parser.parse_args()

    def lead_all(group):
        found = {kind: compare(kind, arguments.folder, group, arguments.ways) for kind in arguments.kinds}
        found["saves"] = saves(group, arguments.folder)
        arguments.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
        return {}

    work_in_own_folder(arguments.folder)
    run_on_rank_zero(replace(sft(arguments.folder / "none"), archon=SHARDED), lead_all)


if __name__ == "__main__":
    main()
