"""Program run by test_launcher: a model whose parameters two ranks share (FSDP), trained with checkpoints of shards.

    python train_ranks.py <folder> <steps> <step at which rank 1 dies in start 0, or 0>

All ranks save after every second step and continue from the newest checkpoint. Rank 0 writes the
final parameters to <folder>/result.pt.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig, TrainEngineConfig
from areal.engine.train.checkpoint import ShardedCheckpoints
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.processes import connected
from areal.infra.checkpoint.store import CheckpointStore
from areal.models import from_config
from areal.models.parallel import ParallelDims

SETTINGS = {"lr": 1e-2, "adam_eps": 1e-3, "weight_decay": 0.1, "device": "cpu", "dtype": "float64"}


def build_model():
    return from_config(CONFIGS["dense"], dtype=torch.float64, seed=0)


def build_engine():
    archon = ArchonConfig(parallel=ParallelDims(dp_shard=dist.get_world_size()))
    return TrainingEngine(build_model(), config=TrainEngineConfig(**SETTINGS), archon=archon)


def train(folder, steps, dies_at):
    rank, first_start = dist.get_rank(), os.environ["AREAL_LAUNCH_START"] == "0"
    engine = build_engine()
    store = CheckpointStore(folder / "checkpoints", keep=2) if rank == 0 else None
    checkpoints = ShardedCheckpoints(engine, store)
    dist.barrier()
    newest = CheckpointStore(folder / "checkpoints", keep=2).load_latest()
    if newest is not None:
        checkpoints.load(newest.path)
    sys.stdout.write(f"rank {rank} starts at step {engine.num_steps}\n")
    sys.stdout.flush()
    batch = make_batch()
    for step in range(engine.num_steps, steps):
        engine.train_batch(batch, loss_of(batch), with_entropy=True)
        if first_start and rank == 1 and step + 1 == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if (step + 1) % 2 == 0:
            checkpoints.save(step + 1)
            checkpoints.wait()  # so that the kill comes after a checkpoint that is whole
    parameters = dict(engine.state_dict()["parameters"])
    if rank == 0:
        torch.save(parameters, folder / "result.pt")


def main():
    with connected("cpu", timeout_seconds=60):
        train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
