"""One rank of the tests on distillation: what a teacher lists and a student learns from it, over ranks and none."""

import torch
from over_ranks import config_of, difference, run, weights_of

from areal.algorithm.aggregations import count
from areal.algorithm.distillation import Distillation
from areal.api import DistilledBatch, PaddedBatch
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.config import ArchonConfig
from areal.engine.train.candidates import Top
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.runner import FrozenModel
from areal.models import from_config
from areal.models.parallel import ParallelDims

WAYS = {
    "dp_shard": {"parallel": ParallelDims(dp_shard=2)},
    "tp": {"parallel": ParallelDims(tp=2)},
    "tp, in pieces": {"parallel": ParallelDims(tp=2), "sequence_parallel": True},
    "cp": {"parallel": ParallelDims(cp=2)},
    "pp": {"parallel": ParallelDims(pp=2)},
}
VOCABULARY = CONFIGS["dense"]["vocab_size"]
SETTINGS = Distillation(divergence="js", estimator="top_k", k=VOCABULARY // 2 + 3)


def make_batch():
    generator = torch.Generator().manual_seed(5)
    lengths = torch.tensor([20, 3, 9, 2, 8, 14])
    columns = torch.arange(20)
    zeros = torch.zeros(6, 20)
    return PaddedBatch(
        tokens=torch.randint(0, VOCABULARY, (6, 20), generator=generator),
        lengths=lengths,
        loss_mask=((columns >= 2) & (columns < lengths[:, None])).float(),
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.zeros(6),
        groups=torch.arange(6) // 2,
        truncated=torch.zeros(6, dtype=torch.bool),
    )


def model_of(seed):
    return from_config(CONFIGS["dense"], dtype=torch.float64, seed=seed)


def learn(engine, batch, scores):
    values = {name: getattr(batch, name) for name in PaddedBatch.__dataclass_fields__ if name != "rows_per_unit"}
    distilled = DistilledBatch(
        **values,
        teachers=torch.zeros(6, dtype=torch.int64),
        teacher_logp=scores.logp,
        candidates=scores.candidates,
        candidate_teacher_logp=scores.candidate_logp,
    )
    denominators = count(batch.loss_mask)

    def loss_fn(logp, _, part):
        return SETTINGS.loss(
            logp,
            teacher_logp=part.teacher_logp,
            logp_anchor=part.logp_behave,
            mask=part.loss_mask,
            denominators=denominators,
            candidate_logp=part.candidate_logp,
            teacher_candidate_logp=part.candidate_teacher_logp,
        )

    return engine.train_batch(distilled, loss_fn, temperature=0.8, with_entropy=True)


def compare(way):
    batch, config = make_batch(), config_of(max_tokens_per_micro_batch=24)
    top = Top(k=SETTINGS.k, below=VOCABULARY - 2)
    listed = []
    for archon in (None, ArchonConfig(**WAYS[way])):
        teacher = FrozenModel(model_of(7), config=config, archon=archon)
        listed.append(teacher.forward_top(batch, top, temperature=0.8))
    first, second = listed
    alone = TrainingEngine(model_of(2), config=config)
    ranks = TrainingEngine(model_of(2), config=config, archon=ArchonConfig(**WAYS[way]))
    stats = [learn(engine, batch, first) for engine in (alone, ranks)]
    return {
        "ids": int((first.candidates != second.candidates).sum()),
        "listed": float((first.candidate_logp - second.candidate_logp).abs().max()),
        "logp": float((first.logp - second.logp).abs().max()),
        "loss": abs(stats[0].loss - stats[1].loss),
        "metrics": max(abs(stats[0].metrics[name] - stats[1].metrics[name]) for name in ("divergence", "teacher_logp")),
        "parameters": difference(weights_of(ranks), alone.weights()),
    }


def main(_):
    return {way: compare(way) for way in WAYS}


if __name__ == "__main__":
    run(main)
