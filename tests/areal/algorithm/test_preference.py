"""Losses over pairs: golden values and gradients, pairs that cannot be split, settings that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from areal.algorithm.packing import select
from areal.algorithm.preference import PREFERENCES, PreferenceConfig, bradley_terry_loss, pair_losses, preference_loss
from areal.api import ConfigError, DataError, EngineError, PaddedBatch, PairedBatch

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "preference_golden.json").read_text())
WIDTH = 12


def make_pairs(answers, *, with_reference=True, margins=None) -> tuple[torch.Tensor, PairedBatch]:
    """Log-probabilities and the batch of [(policy, reference, number of tokens) of the chosen, of the rejected] pairs.

    The totals are spread over the answer's tokens after a prompt of two.
    """
    rows = [row for pair in answers for row in pair]
    mask, logp = torch.zeros(len(rows), WIDTH), torch.full((len(rows), WIDTH), float("nan"), dtype=torch.float64)
    for index, (total, _, length) in enumerate(rows):
        mask[index, 2 : 2 + length] = 1
        logp[index, 2 : 2 + length] = total / length
    zeros = torch.zeros(len(rows), WIDTH)
    batch = PairedBatch(
        tokens=zeros.long(),
        lengths=torch.tensor([2 + row[2] for row in rows]),
        loss_mask=mask,
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.tensor([1.0, 0.0] * len(answers)),
        groups=torch.arange(len(answers)).repeat_interleave(2),
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        reference=torch.tensor([row[1] for row in rows], dtype=torch.float64) if with_reference else None,
        margins=None if margins is None else torch.tensor(margins).repeat_interleave(2),
    )
    return logp.requires_grad_(), batch


@pytest.fixture
def golden_pairs():
    return make_pairs([(pair["chosen"], pair["rejected"]) for pair in GOLDEN["pairs"]])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['loss']}-{case['options']}")
def test_losses_and_gradients_equal_the_golden_values_pair_by_pair(golden_pairs, case):
    logp, batch = golden_pairs
    spec = PreferenceConfig(loss=case["loss"], **case["options"])
    for index, (loss, by_chosen, by_rejected) in enumerate(case["values"]):
        rows = [2 * index, 2 * index + 1]
        # Micro-batches are trimmed to their longest row, and so are their log-probabilities.
        part = select(batch, rows)
        width = part.tokens.shape[1]
        output = preference_loss(logp[rows, :width], batch=part, settings=spec)
        (gradient,) = torch.autograd.grad(output.loss, logp)

        assert output.loss.item() == pytest.approx(loss, abs=1e-10, rel=1e-12)
        expected = torch.zeros_like(gradient)
        for row, value in zip(rows, (by_chosen, by_rejected), strict=True):
            expected[row] = value * batch.loss_mask[row].double()
        torch.testing.assert_close(gradient, expected, atol=1e-10, rtol=1e-9)


def test_the_golden_values_cover_every_loss():
    assert {case["loss"] for case in GOLDEN["cases"]} == set(PREFERENCES)
    assert list(PREFERENCES) == sorted(PREFERENCES)


@pytest.mark.parametrize(
    ("entry", "spec"),
    [
        ("dpo(.1)", PreferenceConfig()),
        ("cdpo(.1,.1)", PreferenceConfig(loss="cdpo")),
        ("ipo norm", PreferenceConfig(loss="ipo")),
        ("ipo sum", PreferenceConfig(loss="ipo", length_normalised=False)),
    ],
)
def test_losses_equal_the_values_of_the_first_golden_file(golden, entry, spec):
    answers = [((1.0, 0.0, 5), (-0.5, 0.0, 6)), ((0.4, 0.0, 4), (0.1, 0.0, 6))]
    logp, batch = make_pairs(answers)
    assert preference_loss(logp, batch=batch, settings=spec).loss.item() == pytest.approx(golden[entry].mean().item())


@pytest.mark.parametrize("case", GOLDEN["bradley_terry"], ids=lambda case: str(case["scores"]))
def test_bradley_terry_equals_the_golden_values_and_does_not_overflow(case):
    _, batch = make_pairs([((0.0, 0.0, 1), (0.0, 0.0, 1))], margins=[case["margin"]])
    scores = torch.tensor(case["scores"], dtype=torch.float64, requires_grad=True)
    output = bradley_terry_loss(scores, batch=batch, use_margins=case["margin"] != 0, center_coef=case["center_coef"])
    output.loss.backward()
    loss, *gradient = case["values"]
    assert output.loss.item() == pytest.approx(loss)
    assert scores.grad.tolist() == pytest.approx(gradient)


@pytest.mark.parametrize("loss", sorted(PREFERENCES))
def test_parts_of_the_step_add_up_to_its_loss_gradient_and_metrics(golden_pairs, loss):
    logp, batch = golden_pairs
    spec = PreferenceConfig(loss=loss, likelihood_coef=0.3)
    whole = preference_loss(logp, batch=batch, settings=spec)
    parts = []
    for rows in ([2, 3], [0, 1, 4, 5]):
        part = select(batch, rows)
        parts.append(preference_loss(logp[rows, : part.tokens.shape[1]], batch=part, settings=spec, num_pairs=3))

    total = sum(part.loss for part in parts)
    assert total.item() == pytest.approx(whole.loss.item(), abs=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(value, logp)[0] for value in (total, whole.loss)))
    for name, value in whole.metrics.items():
        assert sum(part.metrics[name] for part in parts).item() == pytest.approx(value.item(), abs=1e-12), name


def test_metrics_say_who_is_ahead_by_how_much_and_ties_count_half():
    answers = [
        ((-1.0, -2.0, 2), (-3.0, -3.0, 2)),
        ((-5.0, -4.0, 2), (-2.0, -2.5, 2)),
        ((-1.0, -1.5, 2), (-2.0, -2.5, 2)),
    ]
    logp, batch = make_pairs(answers)
    output = preference_loss(logp, batch=batch, settings=PreferenceConfig())
    metrics = {name: value.item() for name, value in output.metrics.items()}
    assert metrics == pytest.approx(
        {
            "accuracy": 0.5,
            "logp_chosen": -7 / 3,
            "logp_rejected": -7 / 3,
            "margin": 0.1 * (1.0 - 1.5 + 0.0) / 3,
            "reward_chosen": 0.1 * (1.0 - 1.0 + 0.5) / 3,
            "reward_rejected": 0.1 * (0.0 + 0.5 + 0.5) / 3,
        }
    )


def test_long_answers_in_float32_keep_the_sign_of_a_small_margin():
    length = 4096
    _, batch = make_pairs([((0.0, 0.0, 1), (0.0, 0.0, 1))])
    batch = replace(batch, loss_mask=torch.ones(2, length), reference=torch.zeros(2, dtype=torch.float64))
    logp = torch.full((2, length), -7.3)
    logp[0, 0] += 0.001

    output = preference_loss(logp, batch=batch, settings=PreferenceConfig())

    assert output.metrics["accuracy"] == 1
    assert output.metrics["margin"].item() == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize("loss", sorted(PREFERENCES))
def test_no_loss_overflows(loss):
    far = torch.tensor([-1e5, 1e5], requires_grad=True)
    losses = pair_losses(PreferenceConfig(loss=loss), far, -far)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(far.grad).all()


def test_a_pair_that_is_split_or_turned_round_cannot_exist(golden_pairs):
    _, batch = golden_pairs
    assert isinstance(select(batch, [4, 5, 0, 1]), PairedBatch)
    for rows in ([0], [1, 0], [0, 2], [0, 3], [1, 2], [0, 1, 2]):
        with pytest.raises(ValueError, match="split or reordered"):
            select(batch, rows)


def test_a_loss_over_pairs_refuses_what_is_no_pair_or_has_no_reference(golden_pairs):
    logp, batch = golden_pairs
    names = ("tokens", "lengths", "loss_mask", "logp_behave", "versions", "turn_ids", "rewards", "groups", "truncated")
    plain = PaddedBatch(**{name: getattr(batch, name) for name in names})
    with pytest.raises(EngineError, match="got a PaddedBatch"):
        preference_loss(logp, batch=plain, settings=PreferenceConfig())
    with pytest.raises(DataError, match="no log-probabilities of the reference"):
        preference_loss(logp, batch=replace(batch, reference=None), settings=PreferenceConfig())
    with pytest.raises(DataError, match="no column 'margin'"):
        bradley_terry_loss(torch.zeros(6), batch=batch, use_margins=True)
    assert preference_loss(
        logp, batch=replace(batch, reference=None), settings=PreferenceConfig(loss="simpo")
    ).loss.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "ccdpo"}, "did you mean 'cdpo'"),
        ({"beta": 0}, "beta is 0"),
        ({"beta": float("nan")}, "beta is nan"),
        (
            {"loss": "ipo", "label_smoothing": 0.1},
            "no effect with preference loss 'ipo'; it belongs to cdpo, robust",
        ),
        ({"loss": "ipo", "margin": 0.1}, "margin has no effect"),
        ({"loss": "cdpo", "label_smoothing": 0.5}, "expected >= 0 and < 0.5"),
        ({"likelihood_coef": -1}, "likelihood_coef is -1"),
    ],
)
def test_settings_that_train_on_the_wrong_thing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PreferenceConfig(**settings)
