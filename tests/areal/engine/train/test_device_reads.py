"""How often the host waits for the device in a training step. The device here is "meta": what reads from it raises."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from areal.api import LossOutput
from areal.engine.train.divided import DividedBatch
from areal.engine.train.passes import Scoring, SequentialPasses, Totals
from areal.engine.train.ranks import Ranks
from areal.models.parallel.plan import ParallelPlan

META = torch.device("meta")


def loss_fn(logp, entropy, part):
    loss = -(logp * part.advantages * part.loss_mask).sum() - (entropy * part.loss_mask).sum()
    return LossOutput(loss=loss, metrics={"logp": logp.detach().sum(), "length_max": part.lengths.max()})


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("shared", [True, False], ids=["shared prompts", "prompts of their own"])
def test_nothing_is_read_from_the_device_in_forward_and_backward_passes(make_model, make_batch, shared, checkpointing):
    batch = make_batch(lengths=(9, 14, 11, 5), prompts=(4, 4, 4, 2))
    if shared:
        batch.tokens[:3, :4] = batch.tokens[0, :4].clone()
    ranks, model = Ranks(META), make_model().to(META)
    plan = ParallelPlan(activation_checkpointing=checkpointing)
    passes = SequentialPasses(model, plan, ranks, chunk=7, is_critic=False, replays=False)
    divided = DividedBatch.of(batch, ranks, keep_groups=True).received(ranks)
    scoring, totals = Scoring(only_masked=True, with_entropy=True), Totals()
    passes.backward(divided, [[0, 1, 2], [3]], loss_fn, scoring, totals)
    assert {parameter.grad.device for parameter in model.parameters()} == {META}
    with torch.no_grad():
        kept = []
        passes.forward(divided, [[0, 1, 2], [3]], scoring, lambda rows, _, scored: kept.append((rows, scored)))
    assert [rows for rows, _ in kept] == [[0, 1, 2], [3]]


def test_a_read_would_be_noticed(make_model):
    model = make_model().to(META)
    with pytest.raises((RuntimeError, NotImplementedError)):
        model.embed_tokens.weight.sum().item()


class Reads(TorchDispatchMode):
    """Counts the numbers that the host asks for. Of `tolist` only those of tensors of one number are seen."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default}
        return func(*args, **(kwargs or {}))


def test_losses_and_metrics_of_a_step_are_read_at_once(make_model, make_batch):
    totals, ranks = Totals(), Ranks(torch.device("cpu"))
    passes = SequentialPasses(make_model(), ParallelPlan(), ranks, chunk=7, is_critic=False, replays=False)
    divided = DividedBatch.of(make_batch(), ranks, keep_groups=True).received(ranks)
    scoring = Scoring(only_masked=True, with_entropy=True)
    passes.backward(divided, [[0, 1, 2], [3, 4]], loss_fn, scoring, totals)
    with Reads() as reads:
        found = totals.over(ranks)
    assert reads.count == 0
    assert found.metrics["length_max"] == 12.0
    assert found.num_micro_batches == 2
