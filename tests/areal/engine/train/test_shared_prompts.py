"""A prompt goes through the model once for all its samples, and no number changes by it."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from areal.algorithm.packing import select
from areal.api import LossOutput, PaddedBatch
from areal.engine.config import TrainEngineConfig
from areal.engine.train.packing import lay_out
from areal.engine.train.passes import Scoring, predicted_tokens
from areal.engine.train.runner import ModelRunner
from areal.models import from_config
from areal.models.value_head import ValueModel

VOCAB = 31
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
MODELS = {
    "grouped heads": {},
    "one key head": {"num_key_value_heads": 1},
    "all heads": {"num_key_value_heads": 4},
    "window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "experts": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    },
}


def rows_of(prompt, answers, *, seed):
    """Rows of random tokens: (token, mask) pairs. Positive entries of an answer are sampled, negative ones a tool's."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count, mask):
        return [(token, mask) for token in torch.randint(0, VOCAB, (count,), generator=generator).tolist()]

    start = draw(prompt, 0)
    return [start + [pair for part in answer for pair in draw(abs(part), int(part > 0))] for answer in answers]


def batch_of(*groups, ids=None):
    rows = [row for group in groups for row in group]
    ids = ids or [index for index, group in enumerate(groups) for _ in group]
    width = max(len(row) for row in rows) + 1
    padded = torch.tensor([row + [(0, 0)] * (width - len(row)) for row in rows])
    generator = torch.Generator().manual_seed(9)
    mask = padded[..., 1].float()
    return PaddedBatch(
        tokens=padded[..., 0],
        lengths=torch.tensor([len(row) for row in rows]),
        loss_mask=mask,
        logp_behave=torch.zeros_like(mask),
        versions=mask.long() - 1,
        turn_ids=mask.long() - 1,
        rewards=torch.randn(len(rows), generator=generator),
        groups=torch.tensor(ids),
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        advantages=torch.randn(mask.shape, generator=generator),
        returns=torch.randn(mask.shape, generator=generator),
    )


def eight(prompt, answers, seed):
    return rows_of(prompt, [(answer,) for answer in answers], seed=seed)


# Each with the number of tokens that go through the model in training, worked out by hand.
CASES = {
    # Two prompts, and every answer without its last token.
    "groups of eight": (batch_of(eight(6, range(1, 9), 1), eight(6, range(1, 9), 2)), 2 * (6 + 28)),
    "long prompts": (batch_of(eight(20, [1, 2, 3] * 2, 1), eight(17, [2, 2], 2)), (20 + 6) + (17 + 2)),
    "long answers": (batch_of(eight(5, [9, 12, 10, 9, 11, 9, 9, 12], 1)), 5 + 73),
    "answers of one token": (batch_of(eight(7, [1] * 8, 1)), 7),
    "prompts of one token": (batch_of(eight(1, [2, 3, 2, 2], 1)), 1 + 5),
    # The ids say one group, the tokens say two prompts and a third that is the first one cut short.
    "unequal prompts under one id": (
        batch_of(
            eight(5, [2, 3], 1), eight(5, [2, 3], 2), [[(t, 0) for t, _ in eight(5, [1], 1)[0][:4]] + [(3, 1)] * 2],
            ids=[7] * 5,
        ),
        (5 + 3) + (5 + 3) + 5,
    ),
    "one prompt under many ids": (batch_of(eight(5, [2, 3, 4], 1), ids=[3, 4, 5]), 5 + 6),
    "groups of one": (batch_of(eight(4, [3], 1), eight(6, [2], 2), eight(2, [7], 3)), 6 + 7 + 8),
    "one shared, one not": (batch_of(eight(9, [3, 4], 1), eight(6, [5], 2), eight(9, [1, 1], 3)), (9 + 5) + 10 + 9),
    "no prompt": (batch_of(eight(0, [4, 5, 1], 1)), 3 + 4),
    # A tool's tokens belong to the row. Those after the last sampled token predict nothing.
    "turns": (batch_of(rows_of(6, [(2, -3, 4), (1, -2, 1, -5), (3,)], seed=1)), 6 + 8 + 3 + 2),
    "masked and tiny rows": (
        batch_of(eight(6, [3, 4], 1), rows_of(6, [(-3,), (-1,)], seed=1), eight(0, [1, 2], 4), eight(1, [1], 5),
                 rows_of(1, [()], seed=6)),
        (6 + 5) + 1 + 1,
    ),
    "lengths far apart": (batch_of(eight(3, [1, 40, 2, 33, 1], 1), eight(45, [1, 2, 30], 2)), (3 + 72) + (45 + 30)),
}  # fmt: skip


def model_of(kind="grouped heads", dtype=torch.float64):
    return from_config({**CONFIG, **MODELS[kind]}, dtype=dtype, seed=1)


def gradients_of(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def one_step(model, batch, loss_fn, **options):
    """Loss, log-probabilities, entropies and gradients as the engine computes them."""
    seen = []

    def recorded(scores, entropy, part):
        padding = (0, batch.tokens.shape[1] - scores.shape[1])
        seen.extend(
            functional.pad(values.detach(), padding) if values is not None else None for values in (scores, entropy)
        )
        return loss_fn(scores, entropy, part)

    runner = ModelRunner(model, TrainEngineConfig(), **options)
    scoring = Scoring(temperature=0.8, only_masked=True, with_entropy=not runner.is_critic)
    found = runner.backward(runner.receive(batch), recorded, scoring, zero_grad=model.zero_grad)
    return torch.tensor(found.loss, dtype=torch.float64), *seen, gradients_of(model)


def naive_step(model, batch, loss_fn, naive_scores):
    """The same, from every row on its own with its own prompt."""
    model.zero_grad()
    weight = predicted_tokens(batch, only_masked=True)
    logp, entropy, _ = (values * weight for values in naive_scores(model, batch, 0.8))
    loss = loss_fn(logp, entropy, batch).loss
    loss.backward()
    return loss.detach(), logp.detach(), entropy.detach(), gradients_of(model)


def assert_same_step(found, expected, tolerance):
    for one, other in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)
    assert found[3].keys() == expected[3].keys()
    for name, gradient in expected[3].items():
        torch.testing.assert_close(
            found[3][name], gradient, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


EXACT = [(kind, torch.float64, 1e-10) for kind in MODELS if kind != "experts"]
# The router rounds to float32 in any dtype.
ROUNDED = [("grouped heads", torch.float32, 1e-5), ("experts", torch.float64, 1e-5)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("case", "kind", "dtype", "tolerance"),
    [
        pytest.param(case, *model, marks=[] if model is EXACT[0] or case == "turns" else pytest.mark.exhaustive)
        for model in EXACT + ROUNDED
        for case in CASES
    ],
)
def test_loss_scores_and_gradients_equal_those_of_every_row_alone(
    case, kind, dtype, tolerance, policy_loss, naive_scores
):
    batch, _ = CASES[case]
    model, loss_fn = model_of(kind, dtype), policy_loss(batch)
    expected = naive_step(model, batch, loss_fn, naive_scores)
    assert_same_step(one_step(model, batch, loss_fn), expected, tolerance)
    assert expected[1].abs().max() > 0.1


@pytest.mark.parametrize("case", CASES)
def test_each_distinct_token_goes_through_the_model_once(case):
    batch, count = CASES[case]
    layout = lay_out(batch, predicted_tokens(batch, only_masked=True))
    assert layout.tokens.shape == layout.positions.shape == (count,)
    assert int(layout.cu_seqlens[-1]) == count


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_of_all_tokens_are_those_of_every_row_alone(case, make_engine, naive_scores):
    batch, _ = CASES[case]
    engine = make_engine(model_of(), logprob_chunk_size=5)
    expected = naive_scores(engine.model, batch)[0].detach()
    torch.testing.assert_close(engine.forward_logp(batch), expected, rtol=1e-10, atol=1e-10)
    some = engine.forward_logp(batch, only_masked=True)
    weight = predicted_tokens(batch, only_masked=True)
    torch.testing.assert_close(some, expected * weight, rtol=1e-10, atol=1e-10)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_tokens_and_any_mask_give_the_scores_of_every_row_alone(data, make_engine, naive_scores):
    # Two tokens only, so that beginnings are often equal by chance, under any ids.
    row = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=7)
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    ids = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    batch = batch_of(rows, ids=ids)
    engine = make_engine(model_of(), max_tokens_per_micro_batch=data.draw(st.integers(1, 50)))
    expected = naive_scores(engine.model, batch)[0].detach()
    torch.testing.assert_close(engine.forward_logp(batch), expected, rtol=1e-10, atol=1e-10)
    some = engine.forward_logp(batch, only_masked=True)
    torch.testing.assert_close(some, expected * predicted_tokens(batch, only_masked=True), rtol=1e-10, atol=1e-10)


def test_gradient_checkpointing_runs_the_blocks_twice_and_changes_nothing(policy_loss):
    batch, _ = CASES["groups of eight"]
    model, loss_fn, calls = model_of(), policy_loss(batch), []
    model.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    plain = one_step(model, batch, loss_fn)
    model.set_gradient_checkpointing(True)
    assert_same_step(one_step(model, batch, loss_fn), plain, 0)
    assert len(calls) == 1 + 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", ["groups of eight", "turns", "lengths far apart"])
def test_bfloat16_is_as_close_to_exact_as_without_sharing(case, policy_loss, naive_scores):
    batch, _ = CASES[case]
    loss_fn = policy_loss(batch)
    small = model_of(dtype=torch.bfloat16)
    exact = model_of().double()
    exact.load_state_dict({name: value.double() for name, value in small.state_dict().items()})
    expected = naive_step(exact, batch, loss_fn, naive_scores)[1]
    shared, alone = one_step(small, batch, loss_fn)[1], naive_step(small, batch, loss_fn, naive_scores)[1]
    errors = [float((values - expected).abs().mean()) for values in (shared, alone)]
    assert errors[0] <= 1.5 * errors[1]


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES)
def test_critic_values_and_gradients_equal_those_of_every_row_alone(case):
    batch, _ = CASES[case]
    critic = ValueModel(model_of())
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(1))

    def loss(values, _, part):
        weight = predicted_tokens(part, only_masked=True)
        return LossOutput(loss=((values - part.returns) * weight).square().sum())

    _, shared, _, shared_gradients = one_step(critic, batch, loss, is_critic=True)
    rows = []
    for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        values = critic(tokens[:length], torch.arange(length), torch.tensor([0, length]), length)
        rows.append(torch.cat((torch.zeros(1), values[:-1], torch.zeros(len(tokens) - length))))
    alone, predicted = torch.stack(rows), predicted_tokens(batch, only_masked=True)
    critic.zero_grad()
    loss(alone, None, batch).loss.backward()
    alone_gradients = gradients_of(critic)
    # Values are float32 whatever the model is.
    torch.testing.assert_close(shared.float(), alone.detach() * predicted, rtol=1e-6, atol=1e-6)
    for name, gradient in alone_gradients.items():
        torch.testing.assert_close(
            shared_gradients[name], gradient, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_engine_counts_the_tokens_of_all_micro_batches_and_keeps_groups_together(make_engine, policy_loss):
    batch, count = CASES["groups of eight"]
    # Interleaved rows: only the ids tell which belong together.
    batch = select(batch, [row for pair in zip(range(8), range(8, 16), strict=True) for row in pair])
    results, weights = [], []
    # Each of the two groups counts with the last tokens of its eight rows.
    for budget in (10_000, count // 2 + 8, 1):
        engine = make_engine(model_of(), max_tokens_per_micro_batch=budget, adam_eps=1e-3)
        stats = engine.train_batch(batch, policy_loss(batch), with_entropy=True)
        results.append((stats.num_micro_batches, stats.metrics["model_tokens_count"]))
        weights.append(engine.model.state_dict())
        for name, weight in weights[-1].items():
            torch.testing.assert_close(
                weight, weights[0][name], rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
            )
    alone = int((batch.lengths - 1).sum())
    assert results == [(1, count), (2, count), (16, alone)]


def test_a_group_larger_than_the_budget_is_cut_into_parts_that_fit(make_engine):
    batch = batch_of(eight(6, [4] * 8, 1), eight(6, [4, 4], 2))
    engine, sizes = make_engine(model_of(), max_tokens_per_micro_batch=26), []
    hidden = engine.model.hidden
    engine.model.hidden = lambda tokens, *rest, **options: sizes.append(len(tokens)) or hidden(tokens, *rest, **options)
    engine.forward_logp(batch)
    # Five of a group would fit, so its eight are four and four: the prompt and three tokens each.
    assert sorted(sizes) == [6 + 2 * 3, 6 + 4 * 3, 6 + 4 * 3]


def test_two_equal_steps_on_several_threads_are_equal_bit_by_bit(policy_loss):
    batch = batch_of(*(eight(40, [30] * 8, seed) for seed in range(4)))
    loss_fn, threads = policy_loss(batch), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, *others = (one_step(model_of(dtype=torch.float32), batch, loss_fn) for _ in range(4))
    finally:
        torch.set_num_threads(threads)
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(first[:3], other[:3], strict=True))
        assert all(torch.equal(first[3][name], other[3][name]) for name in first[3])


def test_sharing_that_spares_little_is_left_out():
    batch = batch_of(eight(2, [30, 30], 1))
    layout = lay_out(batch, predicted_tokens(batch, only_masked=True))
    assert layout.attention is None
    assert layout.tokens.shape[0] == 2 * 31
    shared = batch_of(eight(9, [30, 30], 1))
    assert lay_out(shared, predicted_tokens(shared, only_masked=True)).attention is not None


def test_prompts_are_not_shared_where_the_length_of_a_sequence_changes_its_beginning(make_engine, naive_scores):
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.5],
        "long_factor": [3.0, 6.0],
        "original_max_position_embeddings": 15,
        "factor": 2.0,
    }
    model = from_config({**CONFIG, "rope_scaling": scaling}).double()
    short = batch_of(rows_of(9, [[3], [4]], seed=1))
    mixed = batch_of(rows_of(9, [[3], [12]], seed=1))
    for batch, is_shared in ((short, True), (mixed, False)):
        predicted = predicted_tokens(batch, only_masked=True)
        layout = lay_out(batch, predicted, length_limit=model.length_limit)
        assert (layout.attention is not None) is is_shared
        engine = make_engine(model)
        expected = naive_scores(engine.model, batch)[0].detach()
        torch.testing.assert_close(engine.forward_logp(batch), expected, rtol=1e-10, atol=1e-10)


def test_nothing_predicted_needs_no_layout():
    batch = dataclasses.replace(CASES["turns"][0], loss_mask=torch.zeros_like(CASES["turns"][0].loss_mask))
    assert lay_out(batch, predicted_tokens(batch, only_masked=True)) is None
