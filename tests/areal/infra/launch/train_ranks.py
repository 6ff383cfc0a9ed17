"""Program run by test_launcher: a small data-parallel training run with checkpoints, over gloo.

    python train_ranks.py <folder> <steps> <step at which rank 1 dies in start 0, or 0>

Rank 0 saves after every second step; all continue from the newest checkpoint. The gradient is the sum of one of each
rank, so that a rank that is out of step changes the result, whose digest rank 0 writes to <folder>/result.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed

from areal.infra.checkpoint.store import CheckpointStore


def main():
    folder, steps, dies_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    distributed.init_process_group("gloo")
    rank, first_start = distributed.get_rank(), os.environ["AREAL_LAUNCH_START"] == "0"
    store = CheckpointStore(folder / "checkpoints", keep=2) if rank == 0 else None
    distributed.barrier()
    store = store or CheckpointStore(folder / "checkpoints", keep=2)
    weights = torch.ones(4)
    optimizer = torch.optim.AdamW([weights], lr=0.1)
    checkpoint = store.load_latest()
    first = 0
    if checkpoint is not None:
        state = checkpoint.load("state")
        weights.copy_(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        first = checkpoint.step
    sys.stdout.write(f"rank {rank} starts at step {first}\n")
    sys.stdout.flush()
    for step in range(first, steps):
        gradient = torch.randn(4, generator=torch.Generator().manual_seed(100 * step + rank))
        distributed.all_reduce(gradient)
        weights.grad = gradient
        optimizer.step()
        if first_start and rank == 1 and step + 1 == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and (step + 1) % 2 == 0:
            store.save(step + 1, {"state": {"weights": weights, "optimizer": optimizer.state_dict()}})
    distributed.barrier()
    if rank == 0:
        (folder / "result").write_text(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    distributed.destroy_process_group()


main()
