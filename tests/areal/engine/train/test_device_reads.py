"""How often the host waits for the device in a training step. The device here is "meta": what reads from it raises."""

from __future__ import annotations

import sys

import pytest
import torch

from areal.api import LossOutput
from areal.engine.config import TrainEngineConfig
from areal.engine.train.divided import DividedBatch
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.passes import Scoring, SequentialPasses, Totals
from areal.engine.train.ranks import Ranks
from areal.models.parallel.plan import ParallelPlan
from areal.utils.transfers import read_together

META = torch.device("meta")


def loss_fn(logp, entropy, part):
    loss = -(logp * part.advantages * part.loss_mask).sum() - (entropy * part.loss_mask).sum()
    return LossOutput(loss=loss, metrics={"logp": logp.detach().sum(), "length_max": part.lengths.max()})


@pytest.mark.sample(1)
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


@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "optimizer"), [("float32", "muon"), ("bfloat16", "adamw")])
def test_a_whole_step_reads_once(make_model, make_batch, monkeypatch, dtype, optimizer):
    """Whatever else would be read raises here; what is read is replaced by ones."""
    reads = []

    def read(numbers):
        reads.append({number.device.type for number in numbers})
        return [1.0] * len(numbers)

    monkeypatch.setattr("areal.engine.train.passes.read_together", read)
    # torch has the shapes of its fused kernels, but does not take them for this device.
    checks = sys.modules["torch.optim.optimizer"]  # which torch.optim hides
    monkeypatch.setattr(checks, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    config = TrainEngineConfig(dtype=dtype, device="meta", optimizer=optimizer, max_tokens_per_micro_batch=20)
    engine = TrainingEngine(make_model(), config=config)
    for step in range(1, 3):
        stats = engine.train_batch(make_batch(lengths=(9, 14, 11, 5), prompts=(4, 4, 4, 2)), loss_fn, with_entropy=True)
        assert reads == [{"meta"}] * step
        assert (stats.stepped, stats.num_micro_batches, stats.grad_norm) == (True, 3, 1.0)
        assert set(stats.metrics) == {"logp", "length_max", "model_tokens_count"}


def test_what_is_read_together_is_what_single_reads_give():
    numbers = [torch.tensor(3), torch.tensor(0.1), torch.tensor(float("inf")), torch.tensor(1e300).double()]
    assert read_together(numbers) == [float(number) for number in numbers]
    assert read_together([]) == []


def test_losses_metrics_and_gradient_norm_of_a_step_are_those_of_its_micro_batches(make_model, make_batch):
    totals, ranks = Totals(), Ranks(torch.device("cpu"))
    passes = SequentialPasses(make_model(), ParallelPlan(), ranks, chunk=7, is_critic=False, replays=False)
    divided = DividedBatch.of(make_batch(), ranks, keep_groups=True).received(ranks)
    scoring = Scoring(only_masked=True, with_entropy=True)
    passes.backward(divided, [[0, 1, 2], [3, 4]], loss_fn, scoring, totals)
    found = totals.over(ranks, torch.tensor(0.5))
    assert (found.gradient_norm, found.is_finite) == (0.5, True)
    assert found.metrics["length_max"] == 12.0
    assert found.num_micro_batches == 2
    assert not totals.over(ranks, torch.tensor(float("nan"))).is_finite
