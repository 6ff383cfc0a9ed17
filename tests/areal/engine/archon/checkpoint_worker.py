"""One rank of the checkpoint tests: trains, saves, loads; rank 0 writes a JSON line of what was seen."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from over_ranks import difference, everywhere, message, run

from areal.api import CheckpointError
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig, TrainEngineConfig
from areal.engine.train.checkpoint import ShardedCheckpoints
from areal.engine.train.engine import TrainingEngine
from areal.infra.checkpoint.store import CheckpointStore
from areal.models import from_config, from_pretrained
from areal.models.parallel import ParallelDims

KINDS = {"tied": {}, "mixture": {"ep": 2}}
OPTIMIZERS = {"tied": {}, "mixture": {"optimizer": "muon", "offload_optimizer": True}}
MODELS = {**CONFIGS, "tied": {**CONFIGS["tied"], "num_hidden_layers": 4}}
ARRANGEMENTS = {4: {"dp_shard": 2, "tp": 2}, 2: {"dp_shard": 2}, 1: {}}


def engine_of(kind, sizes, *, seed, dtype="float64", optimizer=None):
    options = OPTIMIZERS[kind] if optimizer is None else {"optimizer": optimizer}
    config = TrainEngineConfig(lr=1e-2, weight_decay=0.1, adam_eps=1e-3, device="cpu", dtype=dtype, **options)
    # In a pipeline, each rank has two pieces, and the first and the last have the embedding.
    archon = ArchonConfig(parallel=ParallelDims(**sizes), pp_schedule="Interleaved1F1B")
    return TrainingEngine(from_config(MODELS[kind], dtype=torch.float64, seed=seed), config=config, archon=archon)


def step(engine):
    batch = make_batch()
    return engine.train_batch(batch, loss_of(batch), with_entropy=True).loss


def logits(model):
    tokens, bounds = torch.arange(20), torch.tensor([0, 20], dtype=torch.int32)
    with torch.no_grad():
        return model(tokens, torch.arange(20), bounds, 20)


def sizes_of(kind, world_size, what):
    sizes = dict(ARRANGEMENTS[world_size])
    if world_size == 4:
        return sizes | {"ep": 4} if kind == "mixture" else {"pp": 2, "tp": 2}
    if what == "save":
        return {"pp": 2} if kind == "tied" else {"tp": 2}
    return sizes | (KINDS[kind] if world_size == 2 else {})


def save(kind, folder, world_size):
    """Two steps, save in the background while a third runs, and what the third gave."""
    engine = engine_of(kind, sizes_of(kind, world_size, "save"), seed=0)
    store = CheckpointStore(folder / kind, keep=2) if dist.get_rank() == 0 else None
    checkpoints = ShardedCheckpoints(engine, store)
    losses = [step(engine), step(engine)]
    torch.manual_seed(100 + dist.get_rank())
    checkpoints.save(2, {"losses": losses})
    drawn = torch.rand(3).tolist()
    losses.append(step(engine))
    published = checkpoints.wait()
    weights = engine.weights()
    if dist.get_rank() == 0:
        torch.save(dict(weights), folder / f"{kind}-after.pt")
    dist.barrier()
    return {"losses": losses, "published": str(published), "drawn": drawn}


def resume(kind, folder, world_size):
    """Another number of ranks, other initial weights: one step from the checkpoint, and an export."""
    engine = engine_of(kind, sizes_of(kind, world_size, "resume"), seed=7)
    store = CheckpointStore(folder / kind, keep=2) if dist.get_rank() == 0 else None
    checkpoints = ShardedCheckpoints(engine, store)
    path = CheckpointStore(folder / kind, keep=2).load_latest().path
    checkpoints.load(path)
    drawn = torch.rand(3).tolist()
    loss = step(engine)
    exported = folder / f"{kind}-hf-{world_size}"
    engine.save_pretrained(exported)
    weights = engine.weights()
    if dist.get_rank():
        return {"parameters": difference({}, {})}
    expected = torch.load(folder / f"{kind}-after.pt")
    model = from_config(MODELS[kind], dtype=torch.float64)
    model.load_state_dict(weights)
    reloaded = from_pretrained(exported, dtype=torch.float64)
    return {
        "loss": loss,
        "num_steps": engine.num_steps,
        "parameters": difference(expected, weights),
        "logits": float((logits(model) - logits(reloaded)).abs().max()),
        "drawn": drawn,
    }


def refusals(folder):
    """A store that refuses, and a folder of another model: the same error on every rank."""

    class Full:
        def save(self, step, write, meta=None):
            raise CheckpointError(f"no space for step {step}")

    engine = engine_of("tied", {"dp_shard": 2}, seed=0)
    checkpoints = ShardedCheckpoints(engine, Full() if dist.get_rank() == 0 else None)
    found = [message(checkpoints.save, 5), message(checkpoints.load, Path(tempfile.gettempdir()) / "nothing")]
    for optimizer in ("adamw", "muon"):
        other = ShardedCheckpoints(
            engine_of("mixture", {"dp_shard": 2}, seed=0, optimizer=optimizer),
            CheckpointStore(folder / "mixture", keep=2) if dist.get_rank() == 0 else None,
        )
        found.append(message(other.load, CheckpointStore(folder / "tied", keep=2).load_latest().path))
    return {"errors": found, "same": all(errors == found for errors in everywhere(found))}


def main(arguments):
    world_size = dist.get_world_size()
    results = {
        what: {kind: work(kind, arguments.folder, world_size) for kind in KINDS}
        for what, work in (("save", save), ("resume", resume))
        if what in arguments.what
    }
    return results | ({"refusals": refusals(arguments.folder)} if world_size == 2 else {})


if __name__ == "__main__":
    run(main)
