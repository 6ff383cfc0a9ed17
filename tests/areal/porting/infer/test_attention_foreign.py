"""Attention that no library wrote: found by its numbers when it is of a known kind, refused when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from areal.porting.infer.rotary import shared_turning
from areal.porting.infer.rotation import Turning
from areal.porting.records import UnsupportedError
from areal.porting.spec import AttentionSpec
from tests.areal.porting.infer.attention_hosts import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    WIDTH,
    Attention,
    Host,
    infer_foreign,
    infer_in,
    turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

HALVES = [(0, 4), (1, 5), (2, 6), (3, 7)]


def series(theta: float, pairs: int) -> list[float]:
    return [theta ** (-index / pairs) for index in range(pairs)]


def test_names_do_not_matter() -> None:
    inferred = infer_foreign(Attention(rotate=lambda heads: turn(heads, HALVES, series(10000.0, 4))))

    assert inferred.spec.attention.num_kv_heads == KV_HEADS
    assert inferred.spec.rotary.theta == 10000.0
    assert set(inferred.tensors) == {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}


@pytest.mark.parametrize("theta", [500.0, 12345.0, 1e6])
def test_a_theta_that_no_field_says_is_measured(theta: float) -> None:
    rotary = infer_foreign(Attention(rotate=lambda heads: turn(heads, HALVES, series(theta, 4)))).spec.rotary

    assert rotary.theta == pytest.approx(theta, rel=1e-3)


def test_a_theta_in_a_field_of_any_name_is_exact() -> None:
    attention = Attention(rotate=lambda heads: turn(heads, HALVES, series(54321.5, 4)))

    assert infer_foreign(attention, {"wavelength_unit": 54321.5}).spec.rotary.theta == 54321.5


@pytest.mark.parametrize(
    ("pairs", "interleaved"),
    [
        ([(4, 6), (5, 7)], False),
        ([(4, 5), (6, 7)], True),
        ([(0, 7), (1, 6)], False),
    ],
)
def test_rotated_dimensions_anywhere_become_the_first_ones(pairs: list[tuple[int, int]], interleaved: bool) -> None:
    inferred = infer_foreign(Attention(rotate=lambda heads: turn(heads, pairs, series(100.0, 2))))

    assert (inferred.spec.rotary.dim, inferred.spec.rotary.interleaved) == (4, interleaved)


class Fused(Attention):
    """Rows of one bare parameter, per key head: its queries, key and value, elements of heads far apart."""

    def __init__(self) -> None:
        super().__init__()
        del self.wanted, self.offered, self.content
        groups = HEADS // KV_HEADS + 2
        self.everything = nn.Parameter(torch.zeros(HIDDEN, WIDTH * groups * KV_HEADS))
        self.shift = nn.Parameter(torch.zeros(WIDTH * groups * KV_HEADS))

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = (hidden @ self.everything + self.shift).unflatten(-1, (WIDTH, KV_HEADS, -1)).permute(0, 1, 3, 4, 2)
        return rows[..., :-2, :].flatten(2, 3), rows[..., -2, :], rows[..., -1, :]


def test_rows_of_a_fused_parameter_are_told_apart() -> None:
    attention = Fused()

    inferred = infer_foreign(attention)

    expected = attention.everything.detach().t().unflatten(0, (WIDTH, KV_HEADS, -1)).permute(1, 2, 0, 3)
    torch.testing.assert_close(inferred.tensors["q_proj.weight"], expected[:, :-2].flatten(0, 2))
    torch.testing.assert_close(inferred.tensors["v_proj.weight"], expected[:, -1].flatten(0, 1))
    assert inferred.spec.attention.query_bias


def test_fused_kernels_are_looked_into() -> None:
    class Kernel(Attention):
        def forward(self, hidden: Tensor) -> Tensor:
            query, key, value = (each.transpose(1, 2) for each in self.project(hidden))
            attended = nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=0.2, enable_gqa=True
            )
            merged: Tensor = self.merge(attended.transpose(1, 2).flatten(2))
            return merged

    finding = infer_foreign(Kernel()).spec

    assert finding.attention.scale == 0.2
    assert finding.rotary is None


@pytest.mark.parametrize(("window", "chunk"), [(9, None), (None, 16), (None, None)])
def test_masks_are_read_off_the_scores(window: int | None, chunk: int | None) -> None:
    def visible(query: Tensor, key: Tensor) -> Tensor:
        seen = key <= query
        if window is not None:
            seen = seen & (key > query - window)
        return seen if chunk is None else seen & (key // chunk == query // chunk)

    finding = infer_foreign(Attention(visible=visible)).spec

    assert (finding.window, finding.chunk) == (window, chunk)


class Gated(Attention):
    """A gate per head out of the same matrix as the queries."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.wanted = nn.Linear(HIDDEN, HEADS * (WIDTH + 1), bias=False)
        self.activation = activation

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.wanted(hidden).unflatten(-1, (HEADS, WIDTH + 1))
        gates = self.activation(heads[..., -1:])
        self.attended = lambda attended: attended * gates
        _, key, value = (
            heads,
            *(each(hidden).unflatten(-1, (KV_HEADS, WIDTH)) for each in (self.offered, self.content)),
        )
        return heads[..., :-1], key, value


def test_a_gate_inside_the_query_matrix_is_found() -> None:
    attention = Gated(torch.sigmoid)

    inferred = infer_foreign(attention)

    assert inferred.spec.attention.gate == "headwise"
    expected = attention.wanted.weight.detach().unflatten(0, (HEADS, WIDTH + 1))[:, -1]
    torch.testing.assert_close(inferred.tensors["gate_proj.weight"], expected)


class Normed(Attention):
    """Norms queries and keys in its own forward."""

    def __init__(self, norm: Callable[[Tensor], Tensor], *, weighted: bool) -> None:
        super().__init__(rotate=lambda heads: turn(heads, HALVES, series(10000.0, 4)))
        self.norm = norm
        self.sharp = nn.Parameter(torch.ones(WIDTH)) if weighted else None
        self.soft = nn.Parameter(torch.ones(WIDTH)) if weighted else None

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(hidden)
        query, key = self.norm(query), self.norm(key)
        return (query, key, value) if self.sharp is None else (query * self.sharp, key * self.soft, value)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    "norm",
    [
        lambda heads: nn.functional.rms_norm(heads, (WIDTH,), eps=1e-3),
        lambda heads: nn.functional.normalize(heads, dim=-1) * 3.0,
    ],
)
def test_norms_that_are_no_modules_are_found(norm: Callable[[Tensor], Tensor], weighted: bool) -> None:
    attention = Normed(norm, weighted=weighted)

    inferred = infer_foreign(attention)

    found = inferred.spec.attention
    assert found.query_norm.kind == found.key_norm.kind == "rms"
    assert found.query_norm.weight == found.key_norm.weight == weighted
    if weighted:
        torch.testing.assert_close(inferred.tensors["k_norm.weight"], attention.soft.detach())


def test_softcap_that_no_field_says_is_fitted() -> None:
    attention = infer_foreign(Attention(scores=lambda scores: 2.5 * torch.tanh(scores / 2.5))).spec.attention

    assert attention.softcap == pytest.approx(2.5, rel=1e-4)


def steps(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.float32)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("attention", "feature"),
    [
        (lambda: Gated(torch.tanh), "between attention and its output projection"),
        (lambda: Gated(lambda gate: 2 * gate.sigmoid()), "between attention and its output projection"),
        (
            lambda: Attention(scores=lambda scores: scores + 0.3 * (steps(scores.shape[-1]) % 3)),
            "attention scores",
        ),
        (
            lambda: Attention(rotate=lambda heads: heads * (1 + steps(heads.shape[1]).log1p()[None, :, None, None])),
            "scaled by position",
        ),
        (
            lambda: Attention(rotate=lambda heads: turn(heads, HALVES, [1.0, 0.9, 0.2, 0.01])),
            "table of rotary frequencies",
        ),
        (lambda: Attention(weights=lambda weights: weights * 0.9), "changed after the softmax"),
        (lambda: Attention(visible=lambda query, key: (key <= query) & ((query - key) % 3 != 1)), "attention mask"),
        (lambda: Attention(visible=lambda query, key: key <= query + 2), "not causal"),
        (lambda: Attention(value=lambda value: (1 + steps(value.shape[-1])) * value), "different factors on values"),
        (lambda: Attention(value=lambda value: value.square()), "values that are not projections"),
        (lambda: Attention(attended=lambda attended: attended.roll(1, 1)), "between attention and its output"),
    ],
)
def test_what_no_spec_says_is_refused(attention: Callable[[], nn.Module], feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature):
        infer_foreign(attention())


def test_mixers_without_softmax_are_refused() -> None:
    class Linear(Attention):
        def forward(self, hidden: Tensor) -> Tensor:
            query, key, value = self.project(hidden)
            key, value = (each.repeat_interleave(HEADS // KV_HEADS, 2) for each in (key, value))
            state = torch.einsum("bkhd,bkhe->bkhde", key, value).cumsum(1)
            merged: Tensor = self.merge(torch.einsum("bqhd,bqhde->bqhe", query, state).flatten(2))
            return merged

    with pytest.raises(UnsupportedError, match="without softmax"):
        infer_foreign(Linear())


def test_memories_beside_the_tokens_are_refused() -> None:
    class Memory(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.Parameter(torch.zeros(1, 2, KV_HEADS, WIDTH))

        def forward(self, hidden: Tensor) -> Tensor:
            query, key, value = self.project(hidden)
            key, value = (torch.cat((self.memory.expand(len(hidden), -1, -1, -1), each), 1) for each in (key, value))
            key, value = (each.repeat_interleave(HEADS // KV_HEADS, 2) for each in (key, value))
            scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
            hidden_keys = torch.ones(scores.shape[-2:]).triu(3).bool()
            weights = scores.masked_fill(hidden_keys, float("-inf")).softmax(-1)
            merged: Tensor = self.merge(torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2))
            return merged

    with pytest.raises(UnsupportedError):
        infer_foreign(Memory())


class Growing(Attention):
    """Queries, or keys, times a function of the position."""

    def __init__(self, growth: Callable[[Tensor], Tensor], *, keys: bool = False, turned: bool = True) -> None:
        super().__init__()
        self.growth, self.keys = growth, keys
        if turned:
            self.rotate = lambda heads: turn(heads, HALVES, series(10000.0, 4))

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(hidden)
        factor = self.growth(torch.arange(hidden.shape[1]))[:, None, None]
        return (query, key * factor, value) if self.keys else (query * factor, key, value)


def logarithm(every: int) -> Callable[[Tensor], Tensor]:
    return lambda position: 1 + 0.25 * torch.log(1 + torch.floor(position / every))


def test_queries_that_grow_with_the_position_are_measured() -> None:
    rotary = infer_foreign(Growing(logarithm(7))).spec.rotary

    assert (rotary.query_growth, rotary.growth_length) == (0.25, 7)
    assert rotary.theta == 10000.0


@pytest.mark.parametrize(("shift", "every"), [(0, 7), (1, 6)])
def test_queries_that_grow_without_rotation_are_measured(shift: int, every: int) -> None:
    rotary = infer_foreign(Growing(lambda position: logarithm(every)(position + shift), turned=False)).spec.rotary

    assert (rotary.dim, rotary.query_growth, rotary.growth_length, rotary.growth_shift) == (0, 0.25, every, shift)


class Placed(Host):
    """Tells its attention where the first token stands."""

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        self.mixer.start = 0 if position_ids is None else int(position_ids[0, 0])
        return super().forward(input_ids)


class GrowingByPower(Growing):
    start = 0

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = Attention.project(self, hidden)
        return query * self.growth(self.start + torch.arange(hidden.shape[1]))[:, None, None], key, value


@pytest.mark.parametrize("shift", [0, 1])
def test_queries_that_grow_by_a_power_are_measured_far_away(shift: int) -> None:
    grown = GrowingByPower(lambda position: (1 + (position + shift) / 300) ** 0.2, turned=False)
    rotary = infer_in(Placed(grown), "mixer", 0, {}).spec.rotary

    assert (rotary.dim, rotary.growth_power) == (0, True)
    assert (rotary.query_growth, rotary.growth_length, rotary.growth_shift) == (0.2, 300, shift)


def test_other_growth_far_away_is_refused() -> None:
    """Near the start, this is nearly a power."""
    bent = GrowingByPower(lambda position: 1 + 0.1 * torch.sin(position / 600), turned=False)

    with pytest.raises(UnsupportedError, match="queries scaled by position"):
        infer_in(Placed(bent), "mixer", 0, {})


def test_a_factor_on_values_and_gates_by_softplus_are_found() -> None:
    assert infer_foreign(Attention(value=lambda value: 1.5 * value)).spec.attention.value_scale == 1.5
    assert infer_foreign(Gated(nn.functional.softplus)).spec.attention.gate_function == "softplus"


@pytest.mark.parametrize(
    "attention",
    [
        Growing(lambda position: 1 + 0.05 * position),
        Growing(logarithm(7), keys=True),
    ],
    ids=["linear", "keys"],
)
def test_other_factors_by_position_are_refused(attention: Attention) -> None:
    with pytest.raises(UnsupportedError, match="scaled by position"):
        infer_foreign(attention)


def turning(pairs: dict[int, float]) -> Turning:
    first = torch.tensor(list(pairs))
    frequencies = torch.tensor(list(pairs.values()), dtype=torch.float64)
    return Turning(first, first + 4, frequencies, 1e-7, 1.0, relative=False)


VIEW: Any = SimpleNamespace(name="mixer", run=SimpleNamespace(length=40))


def test_a_pair_that_turns_too_slowly_to_be_seen_in_queries_is_that_of_keys() -> None:
    keys, queries = turning({0: 1.0, 1: 0.01, 2: 5e-7}), turning({0: 1.0, 1: 0.01})

    assert len(shared_turning(queries, keys, VIEW).real) == 3
    assert len(shared_turning(keys, queries, VIEW).real) == 3


@pytest.mark.parametrize("queries", [{0: 1.0}, {0: 1.0, 1: 0.02}, {0: 1.0, 2: 0.01}])
def test_queries_and_keys_that_turn_differently_are_refused(queries: dict[int, float]) -> None:
    with pytest.raises(UnsupportedError, match="rotation of queries that keys do not share"):
        shared_turning(turning(queries), turning({0: 1.0, 1: 0.01}), VIEW)


class Paired(Attention):
    """Differential attention in two calls; subclasses replace a step."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.zeros(WIDTH)) for _ in range(4))

    def halves(self, value: Tensor) -> list[Tensor]:
        """Values [B, T, KV_HEADS, D] of the two calls."""
        return [half.repeat(1, 1, 2, 1) for half in value.chunk(2, 2)]

    def combined(self, first: Tensor, second: Tensor) -> Tensor:
        """What enters the last matrix, [B, T, H / 2, 2 D]."""
        difference = first - ((self.a @ self.b).exp() - (self.c @ self.d).exp() + 0.2) * second
        return 0.8 * difference * torch.rsqrt(difference.square().mean(-1, keepdim=True) + 1e-5)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.project(hidden)
        key = key.repeat_interleave(HEADS // KV_HEADS, 2)
        position = torch.arange(hidden.shape[1])
        attended = []
        for half in self.halves(value):
            scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * WIDTH**-0.5
            weights = scores.masked_fill(position[:, None] < position, float("-inf")).softmax(-1)
            attended.append(torch.einsum("bhqk,bkhd->bqhd", weights, half.repeat_interleave(HEADS // half.shape[2], 2)))
        merged: Tensor = self.merge(self.combined(*torch.cat(attended, -1).chunk(2, 2)).flatten(2))
        return merged


class Unnormed(Paired):
    def combined(self, first: Tensor, second: Tensor) -> Tensor:
        return first - ((self.a @ self.b).exp() - (self.c @ self.d).exp() + 0.2) * second


class Elsewhere(Paired):
    def halves(self, value: Tensor) -> list[Tensor]:
        return [value, value.flip(2)]


def test_heads_that_are_taken_from_each_other_are_found() -> None:
    module = Paired()
    found = infer_foreign(module)
    assert isinstance(found.spec.attention, AttentionSpec)
    assert found.spec.attention.differential_eps == 1e-5
    assert torch.equal(found.tensors["v_proj.weight"], module.content.weight)
    tensors = [found.tensors[f"differential.lambda_{name}"] for name in ("q1", "k1", "q2", "k2")]
    assert all(map(torch.equal, tensors, (module.a, module.b, module.c, module.d)))
    assert torch.equal(found.tensors["o_proj.weight"], module.merge.weight)


@pytest.mark.parametrize("attention", [Unnormed, Elsewhere])
def test_other_pairs_of_attentions_are_refused(attention: type[Paired]) -> None:
    with pytest.raises(UnsupportedError, match="several attentions in one module"):
        infer_foreign(attention())
