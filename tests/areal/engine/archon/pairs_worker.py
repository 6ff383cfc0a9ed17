"""One rank of the tests on pairs: what preference losses and reward models give over ranks, and over none."""

import torch
from over_ranks import config_of, difference, run, weights_of

from areal.algorithm.preference import PreferenceConfig, bradley_terry_loss, final_scores, preference_loss
from areal.api import PairedBatch
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.config import ArchonConfig, LoraConfig
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.models.parallel import ParallelDims
from areal.models.value_head import ValueModel

# Unequal work: one pair is as long as all others together, so that it is alone on its rank.
LENGTHS = ((20, 24), (3, 9), (1, 2), (8, 4), (2, 2))
WAYS = {
    "dp_shard": {"parallel": ParallelDims(dp_shard=2)},
    "dp_shard, groups may part": {"parallel": ParallelDims(dp_shard=2), "keep_groups": False},
    "tp": {"parallel": ParallelDims(tp=2)},
}


def make_pairs():
    generator = torch.Generator().manual_seed(5)
    flat = [4 + length for pair in LENGTHS for length in pair]
    columns, sizes = torch.arange(max(flat)), torch.tensor(flat)
    tokens = torch.randint(0, CONFIGS["dense"]["vocab_size"], (len(flat), max(flat)), generator=generator)
    tokens[1::2, :4] = tokens[::2, :4]
    zeros = torch.zeros(tokens.shape)
    return PairedBatch(
        tokens=tokens,
        lengths=sizes,
        loss_mask=((columns >= 4) & (columns < sizes[:, None])).float(),
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.tensor([1.0, 0.0] * len(LENGTHS)),
        groups=torch.arange(len(LENGTHS)).repeat_interleave(2),
        truncated=torch.zeros(len(flat), dtype=torch.bool),
        reference=-10 * torch.rand(len(flat), generator=generator, dtype=torch.float64),
    )


def model_of(*, critic):
    model = from_config(CONFIGS["dense"], dtype=torch.float64, seed=2)
    if not critic:
        return model
    model = ValueModel(model, bias=False)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    return model


def preference(scores, _, part):
    return preference_loss(scores, batch=part, settings=PreferenceConfig(likelihood_coef=0.1), num_pairs=len(LENGTHS))


def scored(values, _, part):
    return bradley_terry_loss(final_scores(values, part.lengths), batch=part, center_coef=0.01, num_pairs=len(LENGTHS))


def compare(way, *, critic, **changes):
    batch, loss_fn, config = (
        make_pairs(),
        scored if critic else preference,
        config_of(max_tokens_per_micro_batch=40, **changes),
    )
    alone = TrainingEngine(model_of(critic=critic), config=config, is_critic=critic)
    ranks = TrainingEngine(model_of(critic=critic), config=config, archon=ArchonConfig(**WAYS[way]), is_critic=critic)
    first, second = (engine.train_batch(batch, loss_fn) for engine in (alone, ranks))
    parameters = difference(weights_of(ranks), alone.weights())
    metrics = max(abs(first.metrics[name] - second.metrics[name]) for name in ("accuracy", "margin"))
    return {"loss": abs(first.loss - second.loss), "parameters": parameters, "metrics": metrics}


def main(_):
    return {
        "preference": {way: compare(way, critic=False) for way in WAYS},
        "reward model": {way: compare(way, critic=True) for way in WAYS},
        "preference with adapters": {"tp": compare("tp", critic=False, lora=LoraConfig(rank=4))},
        "reward model with adapters": {"dp_shard": compare("dp_shard", critic=True, lora=LoraConfig(rank=4))},
    }


if __name__ == "__main__":
    run(main)
