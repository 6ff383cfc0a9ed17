"""Program run by test_state: a small run that can be killed and continued.

    python continue_run.py <folder>

Six steps in float32 and in bfloat16 on batches drawn from the global random state, with a checkpoint after step 3.
Each run is made twice: in a child that ends by SIGKILL right after optimizer step 5, and once to the end. Prints one
JSON line per dtype with a digest of the final state. The test continues the killed runs in its own process.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch

from areal.api import LossOutput, PaddedBatch
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.infra.checkpoint.store import CheckpointStore, save_state
from areal.models import from_config
from areal.utils.seeding import rng_state, seed_everything, set_rng_state

DTYPES = ("float32", "bfloat16")
MODEL = {
    "model_type": "qwen3",
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "tie_word_embeddings": True,
}


def draw_batch():
    tokens = torch.randint(0, 29, (4, 10))
    mask = (torch.rand(4, 10) > 0.3).float()
    zeros = torch.zeros(4, 10)
    return PaddedBatch(
        tokens=tokens,
        lengths=torch.randint(2, 11, (4,)),
        loss_mask=mask,
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.randn(4),
        groups=torch.arange(4),
        truncated=torch.zeros(4, dtype=torch.bool),
    )


def digest(folder, state):
    folder.mkdir(parents=True)
    save_state(folder, "final", state)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def run(dtype, folder, *, resume, kill):
    seed_everything(5)
    config = TrainEngineConfig(
        lr=1e-2, dtype=dtype, device="cpu", weight_decay=0.1, lr_schedule="cosine", warmup_steps=2,
        max_tokens_per_micro_batch=12, logprob_chunk_size=5,
    )  # fmt: skip
    engine = TrainingEngine(from_config(MODEL, seed=1), config=config, total_steps=6)
    store = CheckpointStore(folder / "checkpoints", keep=1)
    checkpoint = store.load_latest() if resume else None
    if checkpoint:
        engine.load_state_dict(checkpoint.load("actor"))
        set_rng_state(checkpoint.load("rng"))
    losses = []
    for step in range(engine.num_steps + 1, 7):
        batch = draw_batch()
        total = batch.loss_mask.sum()
        stats = engine.train_batch(
            batch, lambda logp, _, part, total=total: LossOutput(loss=-(logp * part.rewards[:, None]).sum() / total)
        )
        engine.set_version(step)
        losses.append(stats.loss)
        if step == 5 and kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3:
            store.save(3, {"actor": engine.state_dict(), "rng": rng_state()}, {})
    return {"losses": losses[-3:], "steps": len(losses), **digest(folder / "final", engine.state_dict())}


def die_on_the_way(dtype, folder):
    child = os.fork()
    if child == 0:
        run(dtype, folder, resume=False, kill=True)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def main():
    root = Path(sys.argv[1])
    # All forks come before this process computes anything: a fork copies no threads, and torch starts some.
    killed = {dtype: die_on_the_way(dtype, root / "killed" / dtype) for dtype in DTYPES}
    for dtype in DTYPES:
        result = run(dtype, root / "straight" / dtype, resume=False, kill=False)
        sys.stdout.write(json.dumps({dtype: {**result, "killed": killed[dtype]}}) + "\n")


if __name__ == "__main__":
    main()
