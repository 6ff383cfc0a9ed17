"""Recurrences in chunks agree with the plainest form, token by token, wherever documents begin."""

from __future__ import annotations

import itertools
import operator
from dataclasses import fields, replace
from typing import NamedTuple

import pytest
import torch

from areal.api import OF_HEADS, DecayedSum, DeltaRule, Diagonal, ModelError, SelectiveScan
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.recurrences.chunks import Borders
from areal.models.blocks.recurrences.decayed_sum import decayed_sum_rows, decayed_sum_step
from areal.models.blocks.recurrences.delta import delta_rule_rows, delta_rule_step
from areal.models.blocks.recurrences.diagonal import diagonal_rows, diagonal_step
from areal.models.blocks.recurrences.rows import lanes
from areal.models.blocks.recurrences.selective import selective_rows, selective_step

# Documents per row: of one token, a chunk and its neighbours, several in a chunk, one that covers chunks, a border at a
# chunk's first and last token.
ROWS = [[1, 3, 4, 5, 12, 1, 14], [40], [8, 8, 7, 1, 16]]
KINDS = ["delta", "delta by channel", "sum", "diagonal", "diagonal from a first value", "selective"]
ROWS_OF = {
    "delta": delta_rule_rows,
    "delta by channel": delta_rule_rows,
    "sum": decayed_sum_rows,
    "diagonal": diagonal_rows,
    "diagonal from a first value": diagonal_rows,
    "selective": selective_rows,
}
STEP_OF = {
    "delta": delta_rule_step,
    "delta by channel": delta_rule_step,
    "sum": decayed_sum_step,
    "diagonal": diagonal_step,
    "diagonal from a first value": diagonal_step,
    "selective": selective_step,
}


class Sizes(NamedTuple):
    groups: int = 2
    heads: int = 4
    d_k: int = 6
    d_v: int = 5


SIZES = Sizes()


def make(kind, shape, *, sizes=SIZES, seed=0, dtype=torch.float64, chunk=4):
    """Decays from nearly 0 to nearly 1, keys of length 1, rates up to 2."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*rest):
        return torch.randn((*shape, *rest), generator=generator, dtype=torch.float64)

    diagonal = kind.startswith("diagonal")
    per_channel = (sizes.d_k,) if kind == "delta by channel" else (sizes.d_v,) if diagonal else ()
    strength = torch.rand((*shape, sizes.heads, *per_channel), generator=generator, dtype=torch.float64)
    unit = torch.nn.functional.normalize
    if kind == "selective":
        scan = SelectiveScan(
            query=draw(1, sizes.d_k),
            key=draw(1, sizes.d_k),
            value=draw(sizes.heads),
            step=torch.exp(4 * strength - 3),
            rates=-torch.linspace(-3, 2, sizes.heads * sizes.d_k, dtype=torch.float64).exp().view(sizes.heads, -1),
            chunk=chunk,
        )
        return mapped(scan, lambda tensor: tensor.to(dtype))
    tensors = {
        "query": unit(draw(sizes.groups, sizes.d_k), dim=-1),
        "key": unit(draw(sizes.groups, sizes.d_k), dim=-1),
        "value": draw(sizes.heads, sizes.d_v),
        "log_decay": -torch.exp(9 * strength - 6),
        "rate": 2 * torch.rand((*shape, sizes.heads), generator=generator, dtype=torch.float64),
    }
    if diagonal:
        tensors = {name: tensors[name] for name in ("value", "log_decay")}
    if kind == "diagonal from a first value":
        tensors["first"] = draw(sizes.heads, sizes.d_v)
    if kind == "sum":
        del tensors["rate"]
    record = Diagonal if diagonal else DecayedSum if kind == "sum" else DeltaRule
    return record(**{name: tensor.to(dtype) for name, tensor in tensors.items()}, chunk=chunk)


def tensors_of(rule):
    """Names of what it holds."""
    return [f.name for f in fields(rule) if isinstance(getattr(rule, f.name), torch.Tensor)]


def mapped(rule, change, *, of_tokens=False):
    """Change all tensors, or those that have a row per token."""
    names = [f.name for f in fields(rule) if f.name in tensors_of(rule) and not (of_tokens and f.metadata == OF_HEADS)]
    return replace(rule, **{name: change(getattr(rule, name)) for name in names})


def plain(rule, state=None):
    """One document [L, ...] by the formula: outputs [L, H, d_v] and the last state."""
    if isinstance(rule, SelectiveScan):
        state, outputs = torch.zeros_like(rule.rates) if state is None else state, []
        for query, key, value, step in zip(rule.query, rule.key, rule.value, rule.step, strict=True):
            state = (step[:, None] * rule.rates).exp() * state + torch.outer(step * value, key[0])
            outputs.append(state @ query[0])
        return torch.stack(outputs), state
    if isinstance(rule, Diagonal):
        outputs, state_is_given = [], state is not None
        state = state if state_is_given else torch.zeros_like(rule.value[0])
        begun = rule.value if rule.first is None or state_is_given else torch.cat((rule.first[:1], rule.value[1:]))
        for value, log_decay in zip(begun, rule.log_decay, strict=True):
            state = log_decay.exp() * state + value
            outputs.append(state)
        return torch.stack(outputs), state
    heads, (d_k, d_v) = rule.value.shape[1], (rule.key.shape[-1], rule.value.shape[-1])
    per_key = heads // rule.key.shape[1]
    outputs = []
    states = list(torch.zeros(heads, d_k, d_v, dtype=rule.value.dtype) if state is None else state)
    for token in range(len(rule.value)):
        for head in range(heads):
            query, key = rule.query[token, head // per_key], rule.key[token, head // per_key]
            value, decay = rule.value[token, head], rule.log_decay[token, head].exp()
            old = states[head] * (decay[:, None] if decay.dim() else decay)
            if isinstance(rule, DeltaRule):
                value = rule.rate[token, head] * (value - old.T @ key)
            states[head] = old + torch.outer(key, value)
            outputs.append(states[head].T @ query)
    return torch.stack(outputs).unflatten(0, (-1, heads)), torch.stack(states)


def begins_of(rows):
    begins = torch.zeros(len(rows), sum(rows[0]), dtype=torch.bool)
    for row, lengths in enumerate(rows):
        begins[row, [sum(lengths[:number]) for number in range(len(lengths))]] = True
    return begins


def separately(rule, rows):
    """Every document alone: the outputs [R, L, H, d_v] and the state after the last one of each row."""
    outputs, finals = [], []
    for row, lengths in enumerate(rows):
        parts = []
        for number, length in enumerate(lengths):
            start = sum(lengths[:number])
            document = operator.itemgetter((row, slice(start, start + length)))
            output, state = plain(mapped(rule, document, of_tokens=True))
            parts.append(output)
        outputs.append(torch.cat(parts))
        finals.append(state)
    return torch.stack(outputs), torch.stack(finals)


def worst(found, expected):
    return float((found.detach().double() - expected).abs().max() / expected.std())


@pytest.fixture(scope="module")
def expected():
    """Of each kind: the rule, and what it gives, computed once."""
    return {kind: (rule := make(kind, (3, 40)), *separately(rule, ROWS)) for kind in KINDS}


@pytest.mark.sample(10)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 4, 7, 16, 64])
def test_chunks_of_any_size_give_what_documents_give_alone(kind, chunk, expected):
    rule, outputs, finals = expected[kind]
    found, states = ROWS_OF[kind](replace(rule, chunk=chunk), Borders(begins_of(ROWS)))
    assert worst(found, outputs) < 1e-10
    assert worst(states, finals) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("chunk", "limit"), [(16, 3e-6), (64, 8.3e-6)])
def test_float32_loses_no_more_than_its_rounding(kind, chunk, limit, expected):
    rule, outputs, _ = expected[kind]
    narrow = mapped(replace(rule, chunk=chunk), lambda tensor: tensor.float())
    # The reference gets the numbers that the narrow one gets.
    exact, _ = ROWS_OF[kind](mapped(narrow, lambda tensor: tensor.double()), Borders(begins_of(ROWS)))
    assert worst(exact, outputs) < 1e-4
    found, states = ROWS_OF[kind](narrow, Borders(begins_of(ROWS)))
    assert found.dtype == states.dtype == torch.float32
    assert worst(found, exact) < limit


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_formula(kind):
    rows = [[1, 3, 5], [4, 1, 4]]
    leaves = mapped(make(kind, (2, 9), sizes=Sizes(1, 2, 3, 2)), lambda tensor: tensor.requires_grad_())
    tensors = [getattr(leaves, name) for name in tensors_of(leaves)]
    found, _ = ROWS_OF[kind](leaves, Borders(begins_of(rows)))
    outputs, _ = separately(leaves, rows)
    factor = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = zip(
        torch.autograd.grad((found * factor).sum(), tensors),
        torch.autograd.grad((outputs * factor).sum(), tensors),
        strict=True,
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_pass_gradcheck(kind):
    rule = make(kind, (1, 5), sizes=Sizes(1, 2, 2, 1), chunk=2)
    names = tensors_of(rule)
    sizes = (1, 2, 1) if kind.startswith("diagonal") else (1, 2, 2) if kind == "selective" else (1, 2, 2, 1)
    initial = torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def run(initial, *tensors):
        begins = torch.tensor([[False, False, False, True, False]])
        return ROWS_OF[kind](replace(rule, **dict(zip(names, tensors, strict=True))), Borders(begins), initial)

    inputs = [initial, *(getattr(rule, name) for name in names)]
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in inputs])


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [1, 4, 11, 39])
def test_a_state_continues_at_every_split_in_chunks_and_token_by_token(kind, split):
    rule = make(kind, (3, 40))
    whole, final = ROWS_OF[kind](rule, Borders())
    first, state = ROWS_OF[kind](mapped(rule, lambda tensor: tensor[:, :split], of_tokens=True), Borders())
    second, last = ROWS_OF[kind](mapped(rule, lambda tensor: tensor[:, split:], of_tokens=True), Borders(), state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last, final, rtol=1e-10, atol=1e-10)
    for token in range(split, 40):
        one = mapped(rule, operator.methodcaller("select", 1, token), of_tokens=True)
        output, state = STEP_OF[kind](one, state)
        torch.testing.assert_close(output, whole[:, token], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, final, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_zeros_change_no_state(kind):
    rule = make(kind, (3, 40))
    padded = mapped(rule, lambda tensor: torch.cat((tensor, torch.zeros_like(tensor[:, :9])), 1), of_tokens=True)
    torch.testing.assert_close(ROWS_OF[kind](padded, Borders())[1], ROWS_OF[kind](rule, Borders())[1])


@pytest.mark.parametrize("kind", KINDS)
def test_decays_of_any_strength_stay_finite_and_exact(kind):
    # Sums of -1e4 and more in a chunk beside decays of nearly 1: factored or restarted sums fail here.
    rule = make(kind, (3, 40), dtype=torch.float32, chunk=16)
    decaying = "step" if kind == "selective" else "log_decay"
    strength = torch.rand(getattr(rule, decaying).shape, generator=torch.Generator().manual_seed(3))
    drawn = torch.where(strength < 0.2, -1e4 * strength, -1e-3 * strength)
    rule = replace(rule, **{decaying: drawn.abs() if kind == "selective" else drawn})
    wide = mapped(rule, lambda tensor: tensor.double())
    expected, _ = separately(wide, ROWS)
    found = ROWS_OF[kind](mapped(rule, lambda tensor: tensor.requires_grad_()), Borders(begins_of(ROWS)))[0]
    assert worst(found, expected) < 5e-6
    (gradient,) = torch.autograd.grad(found.square().sum(), getattr(rule, decaying))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_document_reaches_another_one(kind):
    rule = make(kind, (3, 40))
    spoiled = mapped(rule, lambda tensor: tensor.clone())
    for name in {"value", "first"} & set(tensors_of(rule)):
        getattr(spoiled, name)[0, 8:13] *= 100
    before, after = (ROWS_OF[kind](each, Borders(begins_of(ROWS)))[0] for each in (rule, spoiled))
    changed = (before != after).flatten(2).any(-1)
    assert changed[0, 8:13].all()
    assert not changed[0, :8].any()
    assert not changed[0, 13:].any()
    assert not changed[1:].any()


def test_decays_by_channel_are_computed_a_slice_at_a_time(monkeypatch):
    rule = make("delta by channel", (3, 40))
    whole, _ = delta_rule_rows(rule, Borders(begins_of(ROWS)))
    monkeypatch.setattr("areal.models.blocks.recurrences.delta.MAX_PAIR_CELLS", 1)
    torch.testing.assert_close(delta_rule_rows(rule, Borders(begins_of(ROWS)))[0], whole, rtol=0, atol=1e-14)


@pytest.mark.sample(15)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "lengths", [[40], [3, 0, 1, 12, 24], [10, 10, 10, 10], [1] * 40, [20, 1, 1, 1, 1, 1, 1, 7, 7]], ids=str
)
def test_packed_documents_are_scanned_as_if_they_were_alone(kind, lengths, expected):
    rule = mapped(expected[kind][0], operator.itemgetter(0), of_tokens=True)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    spans = [slice(start, end) for start, end in itertools.pairwise(bounds.tolist()) if end > start]
    outputs = [plain(mapped(rule, operator.itemgetter(span), of_tokens=True))[0] for span in spans]
    found = PackedBackend(bounds, 40, torch.device("cpu")).scan(0, rule)
    torch.testing.assert_close(found, torch.cat(outputs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([40], [40]),
        ([10] * 8, [10] * 8),
        ([4, 1, 2, 0, 3, 4], [4, 3, 3, 4]),
        ([100, 1, 1, 1], [103]),
        ([60, 60, 60, 100, 40, 40], [180, 180]),
    ],
)
def test_documents_fill_rows_of_similar_length(lengths, rows):
    assert lanes(lengths, torch.device("cpu")).lengths == rows


def test_an_unknown_recurrence_is_refused_by_name():
    with pytest.raises(ModelError, match="no recurrence for str, expected one of DecayedSum, DeltaRule, Diagonal"):
        PackedBackend(torch.tensor([0, 2]), 2, torch.device("cpu")).scan(0, "delta")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("chunk", "limit"), [(16, 3e-6), (64, 1e-5)])
def test_long_documents_stay_within_the_limits_of_float32(kind, chunk, limit):
    lengths = [1, 3, 64, 65, 200, 367]
    sizes = Sizes(2, 4, 32, 32)
    rule = mapped(
        make(kind, (1, 700), sizes=sizes, dtype=torch.float32, chunk=chunk), lambda tensor: tensor.requires_grad_()
    )
    wide = mapped(rule, lambda tensor: tensor.detach().double().requires_grad_())
    names = tensors_of(rule)
    outputs, _ = separately(wide, [lengths])
    found, _ = ROWS_OF[kind](rule, Borders(begins_of([lengths])))
    assert worst(found, outputs.detach()) < limit
    factor = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((found * factor).sum(), [getattr(rule, name) for name in names])
    theirs = torch.autograd.grad((outputs * factor).sum(), [getattr(wide, name) for name in names])
    for name, one, other in zip(names, ours, theirs, strict=True):
        assert worst(one, other) < 5e-5, name
