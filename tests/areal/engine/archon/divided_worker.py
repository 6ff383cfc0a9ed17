"""One rank of the tests on divided batches: each rank is given its own rows, and computes what it does with all."""

import torch
import torch.distributed as dist
from over_ranks import config_of, difference, everywhere, run, weights_of

from areal.api import LossOutput
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import make_batch
from areal.engine.config import ArchonConfig
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.models.parallel import ParallelDims

WAYS = {
    "data 4": ParallelDims(dp_shard=4),
    "data 2, tp 2": ParallelDims(dp_shard=2, tp=2),
    "data 2, cp 2": ParallelDims(dp_shard=2, cp=2),
    "data 2, pp 2": ParallelDims(dp_shard=2, pp=2),
    "cp 2, tp 2": ParallelDims(dp_shard=1, cp=2, tp=2),
    "pp 2, tp 2": ParallelDims(dp_shard=1, pp=2, tp=2),
    "pp 2, cp 2": ParallelDims(dp_shard=1, pp=2, cp=2),
}


def loss_fn(logp, _, part):
    return LossOutput(loss=-(logp * part.advantages * part.loss_mask).sum() / 50, metrics={"seen": part.rewards.sum()})


def compare(dims, *, few_rows):
    batch = make_batch(few_rows=few_rows)
    config = config_of(max_tokens_per_micro_batch=20)
    engines = [
        TrainingEngine(
            from_config(CONFIGS["dense"], dtype=torch.float64, seed=2),
            config=config,
            archon=ArchonConfig(parallel=dims),
        )
        for _ in range(2)
    ]
    rank = dist.get_rank()
    divided = engines[1].divide(batch)
    given = divided.for_rank(rank)
    rows = given.divided[engines[1].ranks.place("data")]
    present = engines[1].receive(given)
    same_rows = all(
        bool((getattr(present.select(rows), name) == getattr(divided.select(rows), name)).all())
        for name in ("tokens", "loss_mask", "advantages", "truncated", "groups", "versions")
        if rows
    )
    logp = [engines[0].forward_logp(batch), engines[1].forward_logp(given)]
    again = engines[1].forward_logp(present)
    one = engines[1].forward_logp(divided.limited_to([0]).for_rank(rank))
    stats = [engines[0].train_batch(batch, loss_fn), engines[1].train_batch(divided.for_rank(rank), loss_fn)]
    return {
        "rows": all(everywhere(same_rows)),
        "given": sum(everywhere(given.part is not None)),
        "logp": max(everywhere(float((logp[0] - logp[1]).abs().max() + (again - logp[0]).abs().max()))),
        "one row": max(everywhere(float((one[0] - logp[0][0]).abs().max() + one[1:].abs().max()))),
        "stats": all(everywhere(stats[0] == stats[1])),
        "weights": difference(weights_of(engines[0]), weights_of(engines[1])),
    }


def main(arguments):
    ways = arguments.what or list(WAYS)
    return {way: [compare(WAYS[way], few_rows=few) for few in (False, True)] for way in ways}


if __name__ == "__main__":
    run(main)
