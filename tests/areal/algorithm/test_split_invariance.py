"""Loss and gradient do not depend on how a step is cut: micro-batches, ranks, order, packing, padding width."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal.algorithm import PRESETS, get_objective, packing
from areal.algorithm.aggregations import Denominators
from areal.algorithm.registry import AGGREGATIONS, CORRECTIONS
from areal.algorithm.tokens import combine

TOLERANCE = 1e-10
SEQUENCES = 7
PER_SEQUENCE = {"groups"}

REGULARISED: dict[str, Any] = {
    "kl": {"estimator": "k2", "coef": 0.1, "place": "loss"},
    "entropy_coef": 0.01,
}


def _settings() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every preset, every aggregation, every correction under both denominators, and the stranger corners."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {f"preset {name}": (name, REGULARISED) for name in PRESETS}
    for name in AGGREGATIONS:
        norm = {"length_norm": 100.0} if name == "seq-mean-token-sum-norm" else {}
        aggregation = {"name": name, **norm}
        cases[f"aggregation {name}"] = ("ppo", {"aggregation": aggregation, **REGULARISED})
        cases[f"aggregation {name}, kept"] = (
            "icepop",
            {"aggregation": aggregation, "denominator": "kept", "correction": {"low": 0.9, "high": 1.2}},
        )
    for name in sorted(set(CORRECTIONS) - {"none"}):
        bounds = {"low": 0.95, "high": 1.05} if name in {"geometric", "seq_mask_tis"} else {}
        correction = {"name": name, **bounds}
        cases[f"correction {name}"] = ("grpo", {"correction": correction})
        if name != "opsm":
            cases[f"correction {name}, kept"] = ("grpo", {"correction": correction, "denominator": "kept"})
    cases["sequence tis"] = ("ppo", {"correction": {"name": "tis", "level": "sequence"}})
    cases["dual clip, decoupled"] = ("ppo", {"surrogate": {"dual_clip": 1.5}, "decoupled": True})
    cases["cispo on behave"] = ("cispo", {"anchor": "behave"})
    return cases


SETTINGS = _settings()


def _rows(batch: dict[str, Tensor], rows: list[int]) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in batch.items()}


def _loss(objective, batch: dict[str, Tensor], logp: Tensor, denominators: Denominators | None):
    others = {name: tensor for name, tensor in batch.items() if name != "logp"}
    return objective.loss(logp, **others, denominators=denominators)


def _denominators(objective, batch: dict[str, Tensor]) -> Denominators:
    names = ("mask", "groups", "logp_prox", "logp_behave")
    return objective.denominators(**{name: batch[name] for name in names})


def _whole(objective, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Loss, gradient and metrics when the step is one micro-batch."""
    logp = batch["logp"].clone().requires_grad_()
    output = _loss(objective, batch, logp, None)
    output.loss.backward()
    return output.loss.detach(), logp.grad, combine([output.metrics])


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", sorted(SETTINGS))
def test_micro_batches_in_any_order_add_up_to_the_step(make_batch, case):
    preset, changes = SETTINGS[case]
    objective, batch = get_objective(preset, **changes), make_batch(0)
    loss, gradient, expected_metrics = _whole(objective, batch)
    assert gradient.abs().sum() > 0, "a case without gradient tests nothing"
    denominators = _denominators(objective, batch)
    for parts in ([[3], [0, 6, 5], [1, 2], [4]], [[6], [5], [4], [3], [2], [1], [0]]):
        logp = batch["logp"].clone().requires_grad_()
        outputs = [_loss(objective, _rows(batch, rows), logp[rows], denominators) for rows in parts]
        total = sum(output.loss for output in outputs)
        total.backward()
        torch.testing.assert_close(total.detach(), loss, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(logp.grad, gradient, atol=TOLERANCE, rtol=0)
        combined = combine(output.metrics for output in outputs)
        assert combined == pytest.approx(expected_metrics, abs=TOLERANCE)


@pytest.mark.sample(2)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    cut=st.lists(st.integers(0, 3), min_size=SEQUENCES, max_size=SEQUENCES),
    extra=st.integers(0, 5),
)
@pytest.mark.parametrize(
    "case", ["preset grpo", "preset m2po", "aggregation prompt-mean", "aggregation prompt-mean, kept"]
)
def test_any_split_with_any_padding_gives_the_same_step(make_batch, case, seed, cut, extra):
    batch = make_batch(seed)
    preset, changes = SETTINGS[case]
    objective = get_objective(preset, **changes)
    loss, gradient, _ = _whole(objective, batch)
    denominators = _denominators(objective, batch)
    logp = batch["logp"].clone().requires_grad_()

    total = torch.zeros((), dtype=torch.float64)
    for part in sorted(set(cut)):
        rows = [index for index, owner in enumerate(cut) if owner == part]
        micro = {
            name: tensor
            if name in PER_SEQUENCE
            else torch.nn.functional.pad(tensor, (0, extra * part), value=float("nan"))
            for name, tensor in _rows(batch, rows).items()
        }
        micro["mask"] = micro["mask"].nan_to_num(0.0)
        total = (
            total + _loss(objective, micro, torch.nn.functional.pad(logp[rows], (0, extra * part)), denominators).loss
        )
    total.backward()

    torch.testing.assert_close(total.detach(), loss, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(logp.grad, gradient, atol=TOLERANCE, rtol=0)


@pytest.mark.sample(15)
@pytest.mark.parametrize("case", sorted(SETTINGS))
def test_ranks_that_count_apart_and_combine_agree_with_one_rank(make_batch, case):
    preset, changes = SETTINGS[case]
    objective, batch = get_objective(preset, **changes), make_batch(1)
    ranks = [[0, 3, 4], [1, 2], [5, 6]]
    local = [_denominators(objective, _rows(batch, rows)) for rows in ranks]

    if objective.correction.needs_step:
        with pytest.raises(ValueError, match="whole batch"):
            Denominators.combine(local)
        return

    assert Denominators.combine(local) == _denominators(objective, batch)


@pytest.mark.parametrize("case", ["preset grpo", "preset gspo", "preset dapo", "preset m2po", "preset drgrpo"])
def test_packed_sequences_give_the_same_step_as_padded_ones(make_batch, case):
    preset, changes = SETTINGS[case]
    objective, batch = get_objective(preset, **changes), make_batch(2)
    width = batch["logp"].shape[1]
    lengths = torch.full((SEQUENCES,), width) - torch.arange(SEQUENCES) % 3
    batch["mask"] = batch["mask"] * (torch.arange(width) < lengths.unsqueeze(1))
    loss, gradient, _ = _whole(objective, batch)
    packed = packing.pack_values(batch["logp"], lengths).requires_grad_()
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])

    output = _loss(objective, batch, packing.unpack(packed, cu_seqlens, width), None)
    output.loss.backward()

    torch.testing.assert_close(output.loss.detach(), loss, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(packed.grad, packing.pack_values(gradient, lengths), atol=TOLERANCE, rtol=0)


@pytest.mark.sample(15)
@pytest.mark.fault(
    row=20,
    injected="a micro-batch without trained tokens",
    seen="a zero that is connected to the graph, so that every rank takes part in the collective",
)
@pytest.mark.parametrize("case", sorted(SETTINGS))
def test_an_all_masked_micro_batch_is_a_zero_that_is_connected_to_the_graph(make_batch, case):
    preset, changes = SETTINGS[case]
    objective, batch = get_objective(preset, **changes), make_batch(3)
    denominators = _denominators(objective, batch)
    nothing = _rows(batch, [SEQUENCES // 2])
    assert nothing["mask"].sum() == 0
    logp = torch.full_like(nothing["logp"], float("nan")).requires_grad_()

    for chosen in (denominators, None):
        output = _loss(objective, nothing, logp, chosen)
        logp.grad = None
        output.loss.backward()

        assert output.loss.item() == 0.0
        assert torch.equal(logp.grad, torch.zeros_like(logp))
        assert all(torch.isfinite(value) for value in output.metrics.values())


def test_dividing_by_local_counts_would_have_been_caught(make_batch):
    objective, batch = get_objective("dapo"), make_batch(0)
    loss, _, _ = _whole(objective, batch)

    local = sum(
        _loss(objective, _rows(batch, rows), batch["logp"][rows], None).loss for rows in ([0, 1, 2], [3, 4, 5, 6])
    )

    assert abs(local - loss).item() > 1e-3
