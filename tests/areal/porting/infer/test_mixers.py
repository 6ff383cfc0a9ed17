"""Mixers with a state are known by what they compute: modules of our own, with names and layouts of nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

from areal.models.blocks.lightning import decay_tables, slope_rates
from areal.porting import recurrences
from areal.porting.infer.mixers import infer_mixer
from areal.porting.probe.instance import logits_of
from areal.porting.records import Inferred, LayerContext, Trace, UnsupportedError
from areal.porting.spec import GatedDeltaSpec, LightningSpec, Mamba1Spec, RGLRUSpec, ShortConvolutionSpec, Stateful
from tests.areal.porting.infer.attention_hosts import HIDDEN, TOKENS, Host

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 4
SLOPED = 12
"""Features of the heads of lightning attention."""
RECURRENT = 12
"""Channels of recurrent units."""


def infer_module(mixer: nn.Module) -> Inferred[Stateful]:
    """Infer a mixer of our own."""
    model = Host(mixer)
    with torch.no_grad():
        logits = logits_of(model(TOKENS))
    trace = Trace(tokens=TOKENS, logits=logits, calls={}, softmaxes=())
    context = LayerContext(
        model=model, module=mixer, name="mixer", layer=0, num_layers=1, config={}, trace=trace, shared=None
    )
    return infer_mixer(context)


class Short(nn.Module):
    """A gated short convolution in plain torch; subclasses replace one step each."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.wide = nn.Linear(HIDDEN, 3 * HIDDEN, bias=bias)
        self.filters = nn.Parameter(torch.zeros(HIDDEN, 1, WIDTH))
        self.shift = nn.Parameter(torch.zeros(HIDDEN)) if bias else None
        self.narrow = nn.Linear(HIDDEN, HIDDEN, bias=bias)

    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """B, C, x."""
        return self.wide(hidden).chunk(3, -1)

    def kernel(self) -> Tensor:
        """[C, K]."""
        return self.filters[:, 0]

    def between(self, convolved: Tensor) -> Tensor:
        """What follows the convolution."""
        return convolved

    def forward(self, hidden: Tensor) -> Tensor:
        before, after, values = self.parts(hidden)
        kernel, product = self.kernel(), before * values
        padded = functional.pad(product, (0, 0, kernel.shape[1] - 1, 0))
        total = sum(padded[:, place : place + hidden.shape[1]] * kernel[:, place] for place in range(kernel.shape[1]))
        total = total if self.shift is None else total + self.shift
        result: Tensor = self.narrow(after * self.between(total))
        return result


class InTurn(Short):
    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.wide(hidden).unflatten(-1, (HIDDEN, 3)).unbind(-1)


class GateFirst(Short):
    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        after, before, values = self.wide(hidden).chunk(3, -1)
        return before, after, values


class Turned(Short):
    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.zeros(WIDTH, HIDDEN))

    def kernel(self) -> Tensor:
        return self.filters.T


class Separate(Short):
    def __init__(self) -> None:
        super().__init__()
        del self.wide
        self.a, self.b, self.c = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))

    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.a(hidden), self.b(hidden), self.c(hidden)


class Activated(Short):
    def between(self, convolved: Tensor) -> Tensor:
        return functional.silu(convolved)


class BiasOfFiltersOnly(Short):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(HIDDEN))


class Bounded(Short):
    """As usual up to a size that the tokens of the trace reach, but not those of one token alone."""

    def between(self, convolved: Tensor) -> Tensor:
        return convolved.clone().index_fill_(1, torch.tensor([36]), 0.0) if convolved.shape[1] == 37 else convolved


@pytest.mark.parametrize(
    "mixer",
    [Short(), Short(bias=True), InTurn(), GateFirst(), Turned(), Separate()],
    ids=lambda mixer: str(type(mixer)),
)
def test_gated_short_convolutions_are_found_in_any_layout(mixer: Short) -> None:
    found = infer_module(mixer)

    assert found.spec == ShortConvolutionSpec(kernel_size=WIDTH, bias=mixer.shift is not None)
    hidden = torch.randn(1, 13, HIDDEN, generator=torch.Generator().manual_seed(5))
    ours = recurrences.mix(found.spec, found.tensors, hidden[0])
    torch.testing.assert_close(ours, mixer(hidden)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mixer", "feature"),
    [
        (Activated(), "without softmax attention"),
        (BiasOfFiltersOnly(), "some biases only"),
        (Bounded(), "a mixer with a state"),
        (nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU()), "without softmax attention"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_short_convolution_is_refused(mixer: nn.Module, feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature) as refusal:
        infer_module(mixer)

    assert refusal.value.where == "mixer"
    assert refusal.value.detail


HEADS, KEY_HEADS, KEY, VALUE = 4, 2, 6, 10


class Delta(nn.Module):
    """A gated delta rule in plain torch, token by token, with a matrix for each part; subclasses replace a step."""

    doubled = False
    order = "qkv"

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q": KEY_HEADS * KEY, "k": KEY_HEADS * KEY, "v": HEADS * VALUE}
        self.sizes = [sizes[part] for part in self.order]
        self.stacked = nn.Linear(HIDDEN, sum(self.sizes), bias=False)
        self.small = nn.Linear(HIDDEN, 2 * HEADS, bias=False)
        self.open = nn.Linear(HIDDEN, HEADS * VALUE, bias=False)
        self.filter = nn.Conv1d(sum(self.sizes), sum(self.sizes), WIDTH, groups=sum(self.sizes), bias=False)
        self.first = nn.Parameter(torch.zeros(HEADS))
        self.second = nn.Parameter(torch.zeros(HEADS))
        self.scale = nn.Parameter(torch.ones(VALUE))
        self.out = nn.Linear(HEADS * VALUE, HIDDEN, bias=False)

    def steps(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What rates and decays are made of, [B, T, H] each."""
        rate, decay = self.small(hidden).chunk(2, -1)
        return rate, decay

    def decays(self, decay: Tensor) -> Tensor:
        """Log decays of heads, [B, T, H], or of their channels."""
        return -self.first.exp() * functional.softplus(decay + self.second)

    def update(self, state: Tensor, decay: Tensor, key: Tensor, value: Tensor, rate: Tensor) -> Tensor:
        state = state * decay
        missing = (value - torch.einsum("bhkv,bhk->bhv", state, key)) * rate[..., None]
        return state + key[..., None] * missing[:, :, None]

    def finish(self, given: Tensor, gate: Tensor) -> Tensor:
        normed = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + 3e-4) * self.scale
        return normed * functional.silu(gate)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = functional.silu(self.filter(functional.pad(self.stacked(hidden).mT, (WIDTH - 1, 0)))).mT
        parts = dict(zip(self.order, mixed.split(self.sizes, -1), strict=True))
        query, key = (parts[part].unflatten(-1, (KEY_HEADS, KEY)) for part in "qk")
        query, key = (
            (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(HEADS // KEY_HEADS, 2)
            for part in (query, key)
        )
        value = parts["v"].unflatten(-1, (HEADS, VALUE))
        rate, decay = self.steps(hidden)
        rate = rate.sigmoid() * (2.0 if self.doubled else 1.0)
        decay = self.decays(decay).exp()
        decay = decay[..., None] if decay.dim() == 4 else decay[..., None, None]
        state = hidden.new_zeros(len(hidden), HEADS, KEY, VALUE)
        given = []
        for token in range(hidden.shape[1]):
            state = self.update(state, decay[:, token], key[:, token], value[:, token], rate[:, token])
            given.append(torch.einsum("bhkv,bhk->bhv", state, query[:, token] * KEY**-0.5))
        result: Tensor = self.out(
            self.finish(torch.stack(given, 1), self.open(hidden).unflatten(-1, (HEADS, VALUE))).flatten(2)
        )
        return result


class Doubled(Delta):
    doubled = True


class ValuesFirst(Delta):
    order = "vqk"


class ByKeyHead(Delta):
    def steps(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        rate, decay = self.small(hidden).unflatten(-1, (KEY_HEADS, -1)).chunk(2, -1)
        return rate.flatten(2), decay.flatten(2)


class Sigmoid(Delta):
    def finish(self, given: Tensor, gate: Tensor) -> Tensor:
        return given * torch.rsqrt(given.square().mean(-1, keepdim=True) + 3e-4) * self.scale * gate.sigmoid()


class ByChannel(Delta):
    """A decay per channel of the key, decays and gates out of two matrices, the gate by a sigmoid."""

    order = "kqv"

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(HIDDEN, HEADS, bias=False)
        self.second = nn.Parameter(torch.zeros(HEADS * KEY))
        self.open = nn.Sequential(nn.Linear(HIDDEN, 5, bias=False), nn.Linear(5, HEADS * VALUE, bias=False))
        self.forget = nn.Sequential(nn.Linear(HIDDEN, 7, bias=False), nn.Linear(7, HEADS * KEY, bias=False))

    def steps(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.small(hidden), self.forget(hidden)

    def decays(self, decay: Tensor) -> Tensor:
        raw = (decay + self.second).unflatten(-1, (HEADS, KEY))
        return -self.first.exp()[:, None] * functional.softplus(raw)

    def finish(self, given: Tensor, gate: Tensor) -> Tensor:
        return given * torch.rsqrt(given.square().mean(-1, keepdim=True) + 3e-4) * self.scale * gate.sigmoid()


class Bounded5(ByChannel):
    def __init__(self) -> None:
        super().__init__()
        self.floor = -5.0

    def decays(self, decay: Tensor) -> Tensor:
        raw = (decay + self.second).unflatten(-1, (HEADS, KEY))
        return self.floor * (self.first.exp()[:, None] * raw).sigmoid()


class ErrorBeforeDecay(Delta):
    def update(self, state: Tensor, decay: Tensor, key: Tensor, value: Tensor, rate: Tensor) -> Tensor:
        missing = (value - torch.einsum("bhkv,bhk->bhv", state, key)) * rate[..., None]
        return state * decay + key[..., None] * missing[:, :, None]


class GateBeforeNorm(Delta):
    def finish(self, given: Tensor, gate: Tensor) -> Tensor:
        given = given * functional.silu(gate)
        return given * torch.rsqrt(given.square().mean(-1, keepdim=True) + 3e-4) * self.scale


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "mixer", [Delta(), Doubled(), ValuesFirst(), ByKeyHead(), Sigmoid()], ids=lambda mixer: type(mixer).__name__
)
def test_gated_delta_rules_are_found_in_any_layout(mixer: Delta) -> None:
    found = infer_module(mixer)

    assert isinstance(found.spec, GatedDeltaSpec)
    heads = (found.spec.num_key_heads, found.spec.num_value_heads, found.spec.key_dim, found.spec.value_dim)
    assert heads == (KEY_HEADS, HEADS, KEY, VALUE)
    assert found.spec.max_rate == (2.0 if mixer.doubled else 1.0)
    assert found.spec.gate == ("sigmoid" if isinstance(mixer, Sigmoid) else "silu")
    assert found.spec.norm_eps == pytest.approx(3e-4, rel=1e-3)
    assert torch.equal(found.tensors["A_log"], mixer.first)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mixer", "floor"), [(ByChannel(), None), (Bounded5(), -5.0)])
def test_decays_by_channel_are_found_with_what_they_are_made_of(mixer: ByChannel, floor: float | None) -> None:
    found = infer_module(mixer)

    assert found.spec == GatedDeltaSpec(
        num_key_heads=KEY_HEADS,
        num_value_heads=HEADS,
        key_dim=KEY,
        value_dim=VALUE,
        kernel_size=WIDTH,
        norm_eps=found.spec.norm_eps,
        gate="sigmoid",
        by_channel=True,
        decay_floor=floor,
        decay_rank=7,
        gate_rank=5,
    )
    assert torch.equal(found.tensors["decay_down.weight"], mixer.forget[0].weight)
    assert torch.equal(found.tensors["gate_proj.weight"], mixer.open[1].weight)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mixer", [ErrorBeforeDecay(), GateBeforeNorm()], ids=lambda mixer: type(mixer).__name__)
def test_other_orders_of_the_same_steps_are_refused(mixer: Delta) -> None:
    with pytest.raises(UnsupportedError, match="without softmax attention"):
        infer_module(mixer)


CHANNELS, STATE, RANK = 20, 5, 3


class Selective(nn.Module):
    """Mamba-1 in plain torch, token by token; subclasses replace a step."""

    order = ("step", "b", "c")
    eps: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(HIDDEN, 2 * CHANNELS, bias=False)
        self.filter = nn.Conv1d(CHANNELS, CHANNELS, WIDTH, groups=CHANNELS)
        self.made = nn.Linear(CHANNELS, RANK + 2 * STATE, bias=False)
        self.second = nn.Linear(RANK, CHANNELS)
        self.first = nn.Parameter(torch.zeros(CHANNELS, STATE))
        self.passing = nn.Parameter(torch.zeros(CHANNELS))
        self.out = nn.Linear(CHANNELS, HIDDEN, bias=False)

    def halves(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What is convolved, and the gate."""
        inputs, gate = self.wide(hidden).chunk(2, -1)
        return inputs, gate

    def normed(self, part: str, values: Tensor) -> Tensor:
        return values if self.eps is None else recurrences.rms(values, self.eps)

    def update(self, state: Tensor, decay: Tensor, step: Tensor, inputs: Tensor, key: Tensor) -> Tensor:
        return state * decay + (step * inputs)[..., None] * key[:, None]

    def finish(self, given: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        return (given + self.passing * inputs) * functional.silu(gate)

    def forward(self, hidden: Tensor) -> Tensor:
        inputs, gate = self.halves(hidden)
        inputs = functional.silu(self.filter(functional.pad(inputs.mT, (WIDTH - 1, 0)))).mT
        sizes = [RANK if part == "step" else STATE for part in self.order]
        parts = dict(zip(self.order, self.made(inputs).split(sizes, -1), strict=True))
        parts = {part: self.normed(part, values) for part, values in parts.items()}
        step = functional.softplus(self.second(parts["step"]))
        decay = (-step[..., None] * self.first.exp()).exp()
        state = hidden.new_zeros(len(hidden), CHANNELS, STATE)
        given = []
        for token in range(hidden.shape[1]):
            state = self.update(state, decay[:, token], step[:, token], inputs[:, token], parts["b"][:, token])
            given.append((state * parts["c"][:, token, None]).sum(-1))
        result: Tensor = self.out(self.finish(torch.stack(given, 1), inputs, gate))
        return result


class QueriesFirst(Selective):
    order = ("c", "step", "b")

    def halves(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gate, inputs = self.wide(hidden).chunk(2, -1)
        return inputs, gate


class Weightless(Selective):
    eps = 3e-4

    def __init__(self) -> None:
        super().__init__()
        self.known = 3e-4


class Weighted(Weightless):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"step": RANK, "b": STATE, "c": STATE}
        self.norms = nn.ParameterDict({f"of_{part}": nn.Parameter(torch.ones(size)) for part, size in sizes.items()})

    def normed(self, part: str, values: Tensor) -> Tensor:
        weight: Tensor = self.norms[f"of_{part}"]
        return super().normed(part, values) * weight


class LateDecay(Selective):
    def update(self, state: Tensor, decay: Tensor, step: Tensor, inputs: Tensor, key: Tensor) -> Tensor:
        return (state + (step * inputs)[..., None] * key[:, None]) * decay


class Ungated(Selective):
    def finish(self, given: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        return given + self.passing * inputs + gate


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "mixer", [Selective(), QueriesFirst(), Weightless(), Weighted()], ids=lambda mixer: type(mixer).__name__
)
def test_selective_scans_are_found_in_any_layout(mixer: Selective) -> None:
    found = infer_module(mixer)

    assert found.spec == Mamba1Spec(
        inner_size=CHANNELS,
        state_size=STATE,
        step_rank=RANK,
        kernel_size=WIDTH,
        norm_eps=mixer.eps,
        norm_weights=isinstance(mixer, Weighted),
    )
    assert torch.equal(found.tensors["D"], mixer.passing)
    assert torch.equal(found.tensors["dt_bias"], mixer.second.bias)
    if isinstance(mixer, Weighted):
        assert torch.equal(found.tensors["b_norm.weight"], mixer.norms["of_b"])


@pytest.mark.parametrize("mixer", [LateDecay(), Ungated()], ids=lambda mixer: type(mixer).__name__)
def test_what_is_no_selective_scan_is_refused(mixer: Selective) -> None:
    with pytest.raises(UnsupportedError, match="without softmax attention"):
        infer_module(mixer)


class Lightning(nn.Module):
    """Lightning attention in plain torch, token by token; subclasses replace a step."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(HIDDEN, 3 * SLOPED, bias=False)
        self.lid = nn.Linear(HIDDEN, SLOPED, bias=False)
        self.scaling = nn.Parameter(torch.ones(SLOPED))
        self.narrow = nn.Linear(SLOPED, HIDDEN, bias=False)
        for place, table in enumerate(decay_tables(slope_rates(4, 0, 1), 6).values()):
            self.register_buffer(f"table_{place}", table)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Values, keys, queries [T, heads, dim] of one document."""
        return rows.unflatten(-1, (4, 3, -1)).unbind(-2)

    def finish(self, given: Tensor, gate: Tensor) -> Tensor:
        """What enters the last matrix."""
        return recurrences.rms(given, 1e-3) * self.scaling * gate.sigmoid()

    def forward(self, hidden: Tensor) -> Tensor:
        found = []
        for document in functional.silu(self.wide(hidden)):
            value, key, query = self.split(document)
            decay = -slope_rates(4, 0, 1).to(hidden.dtype).expand(len(document), -1)
            found.append(recurrences.state_space(query, key, value, decay, torch.ones_like(decay)).flatten(1))
        result: Tensor = self.narrow(self.finish(torch.stack(found), self.lid(hidden)))
        return result


class Stacked(Lightning):
    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        query, key, value = rows.chunk(3, -1)
        return tuple(part.unflatten(-1, (4, -1)) for part in (value, key, query))


class NormedByHead(Lightning):
    def finish(self, given: Tensor, gate: Tensor) -> Tensor:
        heads = recurrences.rms(given.unflatten(-1, (4, -1)), 1e-3).flatten(-2)
        return heads * self.scaling * gate.sigmoid()


class Scaled(Lightning):
    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        value, key, query = super().split(rows)
        return value, key.softmax(-1), query


@pytest.mark.sample(1)
@pytest.mark.parametrize("mixer", [Lightning(), Stacked()], ids=lambda mixer: type(mixer).__name__)
def test_lightning_attention_is_found_in_any_layout(mixer: Lightning) -> None:
    found = infer_module(mixer)

    eps = found.spec.norm_eps
    assert found.spec == LightningSpec(num_heads=4, head_dim=SLOPED // 4, num_layers=1, table_size=6, norm_eps=eps)
    assert 9e-4 < eps < 1.1e-3
    value = mixer.split(mixer.wide.weight.T)[0].flatten(1).T
    assert torch.equal(found.tensors["v_proj.weight"], value)


@pytest.mark.parametrize("mixer", [NormedByHead(), Scaled()], ids=lambda mixer: type(mixer).__name__)
def test_what_is_no_lightning_attention_is_refused(mixer: Lightning) -> None:
    with pytest.raises(UnsupportedError, match="without softmax attention"):
        infer_module(mixer)


class Recurrent(nn.Module):
    """A gated linear recurrent unit in plain torch; subclasses replace a step."""

    def __init__(self) -> None:
        super().__init__()
        self.lid = nn.Linear(HIDDEN, RECURRENT)
        self.wide = nn.Linear(HIDDEN, RECURRENT)
        self.filters = nn.Conv1d(RECURRENT, RECURRENT, WIDTH, groups=RECURRENT, padding=WIDTH - 1)
        self.keep = nn.Parameter(torch.zeros(RECURRENT))
        self.small = nn.ParameterList(nn.Parameter(torch.zeros(3, 4, 4)) for _ in range(2))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(3, 4)) for _ in range(2))
        self.narrow = nn.Linear(RECURRENT, HIDDEN)

    def weights(self) -> list[Tensor]:
        """Of both gates, from their second dimension to their third."""
        return list(self.small)

    def root(self, kept: Tensor) -> Tensor:
        """What inputs are multiplied with."""
        return (1 - kept**2).sqrt()

    def beginning(self, kept: Tensor) -> Tensor:
        """What the first input is multiplied with."""
        return torch.ones_like(kept)

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        inputs = self.filters(self.wide(hidden).transpose(1, 2))[..., :length].transpose(1, 2)
        strength, gate = (
            recurrences.by_blocks(inputs, *each).sigmoid() for each in zip(self.weights(), self.shifts, strict=True)
        )
        kept = (-8 * strength * functional.softplus(self.keep)).exp()
        state = self.beginning(kept[:, 0]) * gate[:, 0] * inputs[:, 0]
        found = [state]
        for token in range(1, length):
            state = kept[:, token] * state + self.root(kept[:, token]) * gate[:, token] * inputs[:, token]
            found.append(state)
        result: Tensor = self.narrow(torch.stack(found, 1) * functional.silu(self.lid(hidden)))
        return result


class Turned(Recurrent):
    def weights(self) -> list[Tensor]:
        return [weight.mT for weight in self.small]


class Unscaled(Recurrent):
    def root(self, kept: Tensor) -> Tensor:
        return 1 - kept


class WithoutBeginning(Recurrent):
    def beginning(self, kept: Tensor) -> Tensor:
        return self.root(kept)


@pytest.mark.parametrize("mixer", [Recurrent(), Turned()], ids=lambda mixer: type(mixer).__name__)
def test_recurrent_units_are_found_in_any_order(mixer: Recurrent) -> None:
    found = infer_module(mixer)

    assert found.spec == RGLRUSpec(width=RECURRENT, num_blocks=3, kernel_size=WIDTH, activation="silu")
    assert torch.equal(found.tensors["decay"], mixer.keep)
    assert torch.equal(found.tensors["input_gate.weight"], mixer.weights()[1])
    assert torch.equal(found.tensors["decay_gate.bias"], mixer.shifts[0])


@pytest.mark.parametrize("mixer", [Unscaled(), WithoutBeginning()], ids=lambda mixer: type(mixer).__name__)
def test_what_is_no_recurrent_unit_is_refused(mixer: Recurrent) -> None:
    with pytest.raises(UnsupportedError, match="without softmax attention"):
        infer_module(mixer)
