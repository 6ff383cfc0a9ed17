"""One rank of the fault tests: a NaN that only one rank meets; rank 0 writes what all saw."""

import argparse
import dataclasses
import json
from pathlib import Path

import torch
import torch.distributed as dist

from areal.engine.archon.config import ArchonConfig
from areal.engine.archon.engine import ArchonEngine
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.archon.processes import connected
from areal.engine.train.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.models.parallel import ParallelDims


def engines():
    """One process alone, and all together, with equal parameters."""
    config = TrainEngineConfig(lr=1e-2, adam_eps=1e-3, device="cpu", dtype="float64", max_tokens_per_micro_batch=24)
    models = [from_config(CONFIGS["dense"], dtype=torch.float64, seed=0) for _ in range(2)]
    archon = ArchonConfig(parallel=ParallelDims(dp_shard=dist.get_world_size()))
    return TrainingEngine(models[0], config=config), ArchonEngine(models[1], config=config, archon=archon)


def parameters(engine):
    return {name: value.clone() for name, value in engine.state_dict()["parameters"].items()}


def largest_difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def nan_in_one_row():
    single, many = engines()
    batch = make_batch()
    advantages = batch.advantages.clone()
    advantages[6] = float("nan")  # one row, so one rank
    poisoned = dataclasses.replace(batch, advantages=advantages)
    before = parameters(many)
    stats = [engine.train_batch(poisoned, loss_of(poisoned)) for engine in (single, many)]
    unchanged = largest_difference(before, parameters(many))
    good = [engine.train_batch(batch, loss_of(batch)) for engine in (single, many)]
    return {
        "stepped": [item.stepped for item in stats] + [item.stepped for item in good],
        "rows": [list(single.offending_rows), list(many.offending_rows)],
        "unchanged": unchanged,
        "after": largest_difference(parameters(single), parameters(many)),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with connected("cpu", timeout_seconds=60):
        found = {"nan": nan_in_one_row()}
        seen = [None] * dist.get_world_size()
        dist.all_gather_object(seen, found)
        if dist.get_rank() == 0:
            arguments.out.write_text(json.dumps(seen) + "\n")


main()
