"""Pairs in the training engine: never separated or turned round, and results that do not depend on how they are cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.algorithm.packing import select
from areal.algorithm.preference import MARK, PreferenceConfig, bradley_terry_loss, final_scores, marked, preference_loss
from areal.api import PairedBatch
from areal.engine.train.packing import Beginnings, Cutter, divide_rows
from areal.models.value_head import ValueModel

VOCAB = 29


def pairs_of(lengths, *, prompt=3, marks=False, seed=0):
    """Pairs of answers of the given lengths; both begin with the same prompt."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = [], prompt + max(max(pair) for pair in lengths) + marks
    for chosen, rejected in lengths:
        start = torch.randint(0, VOCAB, (prompt,), generator=generator).tolist()
        for length in (chosen, rejected):
            tokens = start + torch.randint(0, VOCAB, (length,), generator=generator).tolist()
            mask = [0] * prompt + [1] * length
            rows.append(marked(tokens, mask) if marks else (tokens, mask))
    number = len(rows)
    padded = torch.zeros(2, number, width, dtype=torch.int64)
    for index, row in enumerate(rows):
        for plane, values in enumerate(row):
            padded[plane, index, : len(values)] = torch.tensor(values)
    zeros = torch.zeros(number, width)
    return PairedBatch(
        tokens=padded[0],
        lengths=torch.tensor([len(tokens) for tokens, _ in rows]),
        loss_mask=padded[1].float(),
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.tensor([1.0, 0.0] * (number // 2)),
        groups=torch.arange(number // 2).repeat_interleave(2),
        truncated=torch.zeros(number, dtype=torch.bool),
        reference=-torch.rand(number, generator=generator, dtype=torch.float64),
    )


answers = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9)


@pytest.mark.exhaustive
@given(lengths=answers, budget=st.integers(1, 60))
@settings(deadline=None)
def test_micro_batches_hold_whole_pairs_in_their_order(lengths, budget):
    batch = pairs_of(lengths)
    cutter = Cutter(batch, Beginnings.of(batch))
    parts = cutter.cut(budget)
    assert sorted(row for part in parts for row in part) == list(range(2 * len(lengths)))
    for part in parts:
        assert part == [row for first in part[::2] for row in (first, first + 1)]
        assert all(first % 2 == 0 for first in part[::2])
        assert len(part) == 2 or cutter.count(part) <= budget
        assert isinstance(select(batch, part), PairedBatch)


@given(lengths=answers, ranks=st.integers(1, 5), budget=st.integers(1, 60))
@settings(deadline=None)
def test_ranks_hold_whole_pairs_in_their_order(lengths, ranks, budget):
    batch = pairs_of(lengths)
    divided = divide_rows(batch, ranks, keep_groups=True)
    seen = []
    for rank in range(ranks):
        for part in Cutter(batch, Beginnings.of(batch)).cut_all(budget, divided)[rank]:
            if part:
                seen += select(batch, part).groups.tolist()
    assert sorted(seen) == sorted(batch.groups.tolist())


def update(engine, batch, loss_fn):
    stats = engine.train_batch(batch, loss_fn)
    return stats, {name: tensor.clone() for name, tensor in engine.weights().items()}


LENGTHS = ((4, 9), (7, 2), (1, 1), (3, 8), (6, 6))


@pytest.mark.sample(1)
@pytest.mark.parametrize("loss", ["dpo", "ipo", "simpo"])
@pytest.mark.parametrize("budget", [1, 25, 40])
def test_an_update_from_preferences_does_not_depend_on_micro_batches(make_engine, loss, budget):
    batch = pairs_of(LENGTHS)
    spec = PreferenceConfig(loss=loss, likelihood_coef=0.1)

    def loss_fn(logp, _, part):
        return preference_loss(logp, batch=part, settings=spec, num_pairs=len(LENGTHS))

    whole, expected = update(make_engine(), batch, loss_fn)
    cut, found = update(make_engine(max_tokens_per_micro_batch=budget), batch, loss_fn)
    assert (whole.num_micro_batches, cut.num_micro_batches > 1) == (1, True)
    assert cut.loss == pytest.approx(whole.loss, abs=1e-10)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-10)
    for name in ("accuracy", "margin", "reward_chosen", "logp_rejected"):
        assert cut.metrics[name] == pytest.approx(whole.metrics[name], abs=1e-10)


@pytest.mark.sample(1)
@pytest.mark.parametrize("budget", [1, 25, 40])
def test_an_update_of_a_reward_model_does_not_depend_on_micro_batches(make_engine, make_model, budget):
    batch = pairs_of(LENGTHS, marks=True)

    def loss_fn(values, _, part):
        scores = final_scores(values, part.lengths)
        return bradley_terry_loss(scores, batch=part, center_coef=0.01, num_pairs=len(LENGTHS))

    results = []
    for tokens in (10_000, budget):
        model = ValueModel(make_model(dtype=torch.float64), bias=False)
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
        engine = make_engine(model, is_critic=True, max_tokens_per_micro_batch=tokens)
        results.append(update(engine, batch, loss_fn))
    (whole, expected), (cut, found) = results
    assert cut.num_micro_batches > 1
    assert cut.loss == pytest.approx(whole.loss, abs=1e-10)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-10)


def test_a_score_is_that_of_the_state_after_the_last_token(make_engine, make_model):
    batch = pairs_of(LENGTHS, marks=True)
    model = ValueModel(make_model(dtype=torch.float64), bias=False)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    scores = final_scores(make_engine(model, is_critic=True).forward_values(batch), batch.lengths)
    for row, length in enumerate(batch.lengths.tolist()):
        assert batch.tokens[row, length - 1] == MARK
        tokens = batch.tokens[row, : length - 1]
        bounds = torch.tensor([0, length - 1], dtype=torch.int32)
        states = model.backbone.hidden(tokens, torch.arange(length - 1), bounds, length - 1)
        assert scores[row].item() == pytest.approx((states[-1] @ model.head.weight[0]).item(), abs=1e-5)


def test_the_prompt_that_two_answers_share_is_computed_once(make_engine):
    batch = pairs_of([(3, 4)], prompt=20)
    spec = PreferenceConfig()
    stats = make_engine().train_batch(batch, lambda logp, _, part: preference_loss(logp, batch=part, settings=spec))
    assert stats.metrics["model_tokens_count"] == 20 + (3 - 1) + (4 - 1)
