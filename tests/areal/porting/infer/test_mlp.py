"""Feed-forward layers found between their matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from areal.porting import reference
from areal.porting.infer.mlp import apply_mlp, infer_mlp
from areal.porting.records import LayerContext, ModuleCall, Trace, UnsupportedError
from areal.porting.spec import MlpSpec

WIDTH, INNER = 32, 56


class Layer(nn.Module):
    """One or two matrices, a formula, a last matrix."""

    def __init__(self, formula, sizes: tuple[int, ...], *, bias: bool = False, conv: bool = False) -> None:
        super().__init__()
        make = (lambda i, o: Conv1D(o, i)) if conv else (lambda i, o: nn.Linear(i, o, bias=bias))
        self.parts = nn.ModuleList(make(WIDTH, size) for size in sizes)
        self.end = make(INNER, WIDTH)
        self.formula = formula
        generator = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.formula(*(part(x) for part in self.parts)))


def context(module: nn.Module, **config: Any) -> LayerContext:
    """The context that a trace of `module` as "layer" gives."""
    root = nn.Module()
    root.layer = module
    calls: dict[str, list[ModuleCall]] = {}

    def hook(name: str):
        def note(_: nn.Module, arguments: Any, output: torch.Tensor) -> None:
            order = 0 if name == "layer" else len(calls) + 1
            calls.setdefault(name, []).append(ModuleCall(name, order, arguments[0], output))

        return note

    handles = [child.register_forward_hook(hook(name)) for name, child in root.named_modules() if name]
    hidden = torch.randn(2, 12, WIDTH, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        module(hidden)
    for handle in handles:
        handle.remove()
    trace = Trace(hidden, hidden, {name: tuple(found) for name, found in calls.items()}, ())
    return LayerContext(model=root, module=module, name="layer", layer=0, num_layers=1, config=config, trace=trace)


def judged(module: nn.Module, **config: Any) -> MlpSpec:
    """The inferred spec, after the reference layer with the inferred weights gave the same output."""
    given = context(module, **config)
    found = infer_mlp(given)
    ours = reference.feed_forward(found.spec, WIDTH)
    ours.load_state_dict(dict(found.tensors), strict=True)
    with torch.no_grad():
        hidden = given.call.input.flatten(0, 1)
        assert torch.allclose(ours(hidden), given.call.output.flatten(0, 1), atol=1e-5)
        assert torch.allclose(apply_mlp(found.spec, found.tensors, hidden), ours(hidden), atol=1e-6)
    return found.spec


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("silu", lambda g, u: functional.silu(g) * u),
        ("silu", lambda u, g: functional.silu(g) * u),
        ("gelu", lambda g, u: functional.gelu(g) * u),
        ("relu2", lambda g, u: functional.relu(g).square() * u),
        ("sigmoid", lambda g, u: g.sigmoid() * u),
    ],
)
def test_gate_and_up_are_told_apart(name: str, formula, bias: bool) -> None:
    spec = judged(Layer(formula, (INNER, INNER), bias=bias))

    assert spec == MlpSpec(gated=True, activation=name, intermediate_size=INNER, bias=bias, output_bias=bias)


@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.chunk(2, -1),
        lambda x: x.chunk(2, -1)[::-1],
        lambda x: (x[..., ::2], x[..., 1::2]),
        lambda x: (x[..., 1::2], x[..., ::2]),
    ],
    ids=["gate first", "up first", "in turn", "in turn, up first"],
)
def test_one_matrix_for_gate_and_up_is_taken_apart(split) -> None:
    def formula(both: torch.Tensor) -> torch.Tensor:
        gate, up = split(both)
        return functional.silu(gate) * up

    assert judged(Layer(formula, (2 * INNER,), bias=True)).gated


@pytest.mark.parametrize("conv", [False, True])
def test_plain_layers_keep_the_spelling_of_their_config(conv: bool) -> None:
    spec = judged(Layer(gelu_tanh, (INNER,), bias=True, conv=conv), act="gelu_new")

    assert spec == MlpSpec(gated=False, activation="gelu_new", intermediate_size=INNER, bias=True, output_bias=True)


def test_clamps_and_offsets_are_found() -> None:
    def formula(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.clamp(max=1.0), up.clamp(-1.0, 1.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)

    spec = judged(Layer(formula, (INNER, INNER), bias=True), limit=1.0)

    assert (spec.activation, spec.clamp, spec.up_offset) == ("quick_gelu", 1.0, 1.0)


def test_a_clamp_far_above_usual_values_is_found() -> None:
    """No traced value reaches it, so a fit alone would be silently wrong."""

    def formula(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(gate.clamp(max=19.0)) * up.clamp(-19.0, 19.0)

    assert judged(Layer(formula, (INNER, INNER)), limit=19.0).clamp == 19.0


def test_a_bound_of_another_kind_is_refused() -> None:
    def formula(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return (functional.silu(gate) * up).clamp(-300.0, 300.0)

    with pytest.raises(UnsupportedError, match="unknown bound"):
        infer_mlp(context(Layer(formula, (INNER, INNER)), limit=300.0))


@pytest.mark.parametrize(
    ("formula", "sizes"),
    [
        (lambda g, u: functional.silu(g) * u * 1.01, (INNER, INNER)),
        (lambda g, u: functional.silu(g) + u, (INNER, INNER)),
        (lambda u: functional.layer_norm(functional.relu(u), (INNER,)), (INNER,)),
        (lambda u: functional.gelu(u) * 1.1, (INNER,)),
    ],
    ids=["factor", "sum", "inner norm", "scaled activation"],
)
def test_other_formulas_are_refused(formula, sizes: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match="feed-forward of an unknown form at layer"):
        infer_mlp(context(Layer(formula, sizes)))


class Bent(nn.Module):
    """xIELU with names and an order of its own; `gain` is the factor on the quadratic part."""

    def __init__(self, *, extra: int = 0) -> None:
        super().__init__()
        for name, value in {"tiny": -0.02, "fall": 0.4, "gain": -0.7, "tilt": 0.6}.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))
        for index in range(extra):
            self.register_parameter(f"more_{index}", nn.Parameter(torch.tensor(float(index))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        above = functional.softplus(self.gain) * x * x
        below = (torch.expm1(x.minimum(self.tiny)) - x) * (self.tilt + functional.softplus(self.fall))
        return torch.where(x > 0, above, below) + self.tilt * x


class Learned(Layer):
    """A layer whose formula is a module."""

    def __init__(self, formula: nn.Module, sizes: tuple[int, ...]) -> None:
        super().__init__(formula, sizes)
        self.kinks = formula


def test_numbers_of_an_activation_that_learns_are_told_apart_by_what_they_do() -> None:
    layer = Learned(Bent(), (INNER,))
    values = {name: float(value) for name, value in layer.kinks.state_dict().items()}

    found = infer_mlp(context(layer))

    assert judged(layer) == MlpSpec(gated=False, activation="xielu", intermediate_size=INNER)
    names = {"alpha_p": "gain", "alpha_n": "fall", "beta": "tilt", "eps": "tiny"}
    assert {ours: float(found.tensors[f"activation.{ours}"]) for ours in names} == {
        ours: values[theirs] for ours, theirs in names.items()
    }


def test_a_slope_that_learns_is_found() -> None:
    assert judged(Learned(nn.PReLU(init=0.4), (INNER,))).activation == "prelu"


def test_too_many_numbers_to_tell_apart_are_refused() -> None:
    layer = Learned(Bent(extra=3), (INNER,))
    with pytest.raises(UnsupportedError, match="unknown form"):
        infer_mlp(context(layer))
