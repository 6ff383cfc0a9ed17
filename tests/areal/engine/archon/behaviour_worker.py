"""One rank of the behaviour tests: what the engine does besides computing what one process computes."""

import dataclasses
import math

import torch
from over_ranks import config_of, difference, everywhere, message, run, weights_of

from areal.algorithm.packing import select
from areal.api import NumericsError, TrainEngine
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig
from areal.engine.train import distributed_muon as matrices
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.models.parallel import ParallelDims


def engine_of(kind="dense", sizes=None, *, config=None, seed=0, **archon):
    dims = ParallelDims(**(sizes or {"dp_shard": 2}))
    model = from_config(CONFIGS[kind], dtype=torch.float64, seed=seed)
    return TrainingEngine(model, config=config or config_of(), archon=ArchonConfig(parallel=dims, **archon))


def single_of(kind="dense", *, config=None, seed=0):
    return TrainingEngine(from_config(CONFIGS[kind], dtype=torch.float64, seed=seed), config=config or config_of())


def poisoned(batch, row):
    """A loss that is NaN where `row` has a part."""
    plain = loss_of(batch)

    def loss_fn(scores, entropy, part):
        output = plain(scores, entropy, part)
        hit = bool((part.rewards == batch.rewards[row]).any())
        return dataclasses.replace(output, loss=output.loss * math.nan) if hit else output

    return loss_fn


def skips():
    """One row of one rank is not finite: every rank skips, says which row, and goes on."""
    engine, batch = engine_of(config=config_of(max_skipped_steps=1)), make_batch()
    before = weights_of(engine)
    stats = engine.train_batch(batch, poisoned(batch, 4))
    unchanged = difference(before, weights_of(engine))
    rows, stepped = list(engine.offending_rows), stats.stepped
    after = engine.train_batch(batch, loss_of(batch))
    engine.train_batch(batch, poisoned(batch, 0))
    try:
        engine.train_batch(batch, poisoned(batch, 0))
        stopped = ""
    except NumericsError as error:
        stopped = str(error)
    return {
        "stepped": stepped, "rows": rows, "unchanged": unchanged, "skips": engine.num_skipped_steps,
        "count": stats.metrics["nonfinite_sequences_count"], "recovers": after.stepped, "stopped": stopped,
    }  # fmt: skip


def nothing():
    """No token is trained: nothing changes, weight decay included."""
    engine, batch = engine_of(config=config_of(weight_decay=0.5)), make_batch()
    batch = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    engine.train_batch(make_batch(), loss_of(make_batch()))
    before = weights_of(engine)
    stats = engine.train_batch(batch, loss_of(batch))
    return {
        "changed": difference(before, weights_of(engine)),
        "norm": stats.grad_norm,
        "stepped": stats.stepped,
    }


def states():
    """What one engine saves, the other continues, in both directions."""
    batch = make_batch()
    many, single = engine_of("mixture", {"dp_shard": 2, "ep": 2}), single_of("mixture")
    for engine in (many, single):
        engine.train_batch(batch, loss_of(batch), with_entropy=True)
    many.set_version(3)
    crossed = single_of("mixture", seed=5), engine_of("mixture", {"tp": 2}, seed=6)
    state = many.state_dict()
    crossed[0].load_state_dict(state)
    crossed[1].load_state_dict(single.state_dict())
    for engine in (many, *crossed):
        engine.train_batch(batch, loss_of(batch), with_entropy=True)
    weights = weights_of(many)
    return {
        "into one": difference(weights, weights_of(crossed[0])),
        "into many": difference(weights, weights_of(crossed[1])),
        "version": crossed[0].version,
        "refused": message(engine_of().load_state_dict, state),
    }


def momenta():
    """States of optimizers with one momentum, in both directions, in and out of host memory, and in many rounds."""
    batch, found = make_batch(), {}
    for optimizer in ("muon", "sgd"):
        settings = {"optimizer": optimizer, "weight_decay": 0.1}
        config, offloaded = config_of(**settings), config_of(**settings, offload_optimizer=True)
        many = engine_of("mixture", {"dp_shard": 2, "ep": 2}, config=config)
        single = single_of("mixture", config=config)
        for engine in (many, single):
            engine.train_batch(batch, loss_of(batch), with_entropy=True)
        crossed = single_of("mixture", config=offloaded, seed=5), engine_of("mixture", {"tp": 2}, config=offloaded)
        size, matrices.ROUND_SIZE = matrices.ROUND_SIZE, 600
        again = engine_of("mixture", {"dp_shard": 2}, config=config, seed=7)
        matrices.ROUND_SIZE = size
        state = many.state_dict()
        for engine, source in ((crossed[0], state), (crossed[1], single.state_dict()), (again, state)):
            engine.load_state_dict(source)
        for engine in (many, *crossed, again):
            engine.train_batch(batch, loss_of(batch), with_entropy=True)
        weights = weights_of(many)
        found[optimizer] = [difference(weights, weights_of(engine)) for engine in (*crossed, again)]
        found[f"{optimizer} refused"] = message(engine_of("mixture").load_state_dict, state)
    return found


def apart():
    """Gradients of parameters that are computed apart from those of hidden states add up in float32 too."""
    found = []
    for name in ("1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"):
        model = from_config({**CONFIGS["dense"], "num_hidden_layers": 4}, dtype=torch.float32, seed=3)
        archon = ArchonConfig(parallel=ParallelDims(pp=2), pp_schedule=name)
        config = config_of(dtype="bfloat16", max_tokens_per_micro_batch=24)
        engine, batch = TrainingEngine(model, config=config, archon=archon), make_batch()
        loss = engine.train_batch(batch, loss_of(batch)).loss
        moments = engine.state_dict()["optimizer"]["moments"]
        found.append((loss, {name: moment["exp_avg"] for name, moment in moments.items()}))
    return {
        "losses": [loss for loss, _ in found],
        "gradients": [difference(found[0][1], gradients) for _, gradients in found],
        "largest": max(float(gradient.abs().max()) for gradient in found[0][1].values()),
    }


def low_precision():
    """bfloat16 keeps float32 masters: close to one process, and the same after its state was loaded."""
    # A large offset makes the update follow the size of gradients, where a first step of AdamW is only their sign.
    config, batch = config_of(dtype="bfloat16", adam_eps=0.1), make_batch()
    found = {}
    for name, sizes in (("dp_shard", {"dp_shard": 2}), ("tp", {"tp": 2})):
        many, single = engine_of(sizes=sizes, config=config), single_of(config=config)
        losses = [engine.train_batch(batch, loss_of(batch), with_entropy=True).loss for engine in (many, single)]
        state = many.state_dict()
        masters = [each["optimizer"]["masters"] for each in (state, single.state_dict())]
        found[name] = {
            "loss": abs(losses[0] - losses[1]),
            "masters": sorted({str(tensor.dtype) for tensor in masters[0].values()}),
            "parameters": sorted({str(tensor.dtype) for tensor in state["parameters"].values()}),
            "difference": difference(*masters),
        }
        again = engine_of(sizes={"dp_shard": 2}, config=config, seed=9)
        again.load_state_dict(state)
        found[name]["reloaded"] = difference(weights_of(again), weights_of(many))
    return found


def refusals():
    """What cannot be built, each with its reason."""
    tied = CONFIGS["tied"]
    attempts = {
        "processes": lambda: engine_of(sizes={"dp_shard": 4}),
        "too many pieces": lambda: engine_of(sizes={"pp": 2}, pp_schedule="Interleaved1F1B"),
        "backward apart": lambda: engine_of(
            sizes={"pp": 2}, config=config_of(gradient_checkpointing=True), pp_schedule="ZBVZeroBubble"
        ),
        "no pieces": lambda: engine_of(sizes={"pp": 2}, pp_schedule="Interleaved1F1B", pp_pieces=0),
        "role": lambda: TrainingEngine(
            from_config(tied), config=config_of(), archon=ArchonConfig(parallel=ParallelDims(tp=2)), is_critic=True
        ),
        "values": lambda: engine_of().forward_values(make_batch()),
    }  # fmt: skip
    return {name: message(attempt) for name, attempt in attempts.items()}


def order():
    """Rows in another order, and other micro-batches, change nothing beyond rounding."""
    batch, results = make_batch(), []
    for rows, budget in (([*range(8)], 24), ([5, 2, 7, 0, 1, 6, 3, 4], 1000), ([*range(8)], 1)):
        engine, shuffled = engine_of(config=config_of(max_tokens_per_micro_batch=budget)), select(batch, rows)
        results.append((engine.train_batch(shuffled, loss_of(shuffled)), weights_of(engine)))
    return {
        "losses": max(abs(stats.loss - results[0][0].loss) for stats, _ in results),
        "parameters": max(difference(results[0][1], weights) for _, weights in results),
        "contract": isinstance(engine_of(), TrainEngine),
        "micro_batches": [stats.num_micro_batches for stats, _ in results],
    }


BEHAVIOURS = {
    behaviour.__name__: behaviour
    for behaviour in (skips, nothing, states, momenta, low_precision, apart, refusals, order)
}


def main(arguments):
    results = {name: BEHAVIOURS[name]() for name in arguments.what}
    return results | {"same on every rank": all(other == results for other in everywhere(results))}


if __name__ == "__main__":
    run(main)
