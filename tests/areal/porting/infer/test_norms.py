"""Normalisations found by what they do to values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from areal.porting.infer.norms import apply_norm, fit_norm, infer_norm, may_be_plain
from areal.porting.records import UnsupportedError
from areal.porting.spec import NormSpec

WIDTH = 48


class Odd(nn.Module):
    """An RMS norm with names and an epsilon that nobody would guess."""

    def __init__(self, shape: tuple[int, ...] = (WIDTH,), shift: float = 0.0, tiny: float = 1e-6) -> None:
        super().__init__()
        self.lambda_ = nn.Parameter(0.3 * hidden(*shape) + 1.0 - shift)
        self.shift = shift
        self.hidden_constant = (tiny,)  # no number among the attributes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.hidden_constant[0])
        return unit * (self.lambda_ + self.shift)


def hidden(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def inferred(module: nn.Module, value: torch.Tensor) -> NormSpec:
    with torch.no_grad():
        found = infer_norm(module, value, module(value), name="n")
        assert torch.allclose(apply_norm(found.spec, found.tensors, value), module(value), atol=1e-5)
    return found.spec


@pytest.mark.sample(4)
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("tiny", [1e-6, 1e-5, 1e-12, 2e-3, 3.7e-4])
def test_an_epsilon_that_no_attribute_shows_is_found(shift: float, tiny: float) -> None:
    spec = inferred(Odd(shift=shift, tiny=tiny), hidden(2, 24, WIDTH))

    assert spec == NormSpec(kind="rms", eps=pytest.approx(tiny, rel=1e-3), weight=True, offset=shift)


@pytest.mark.parametrize(("affine", "bias"), [(True, True), (True, False), (False, False)])
def test_a_layer_norm_is_found_with_what_it_has(affine: bool, bias: bool) -> None:
    norm = nn.LayerNorm(WIDTH, eps=1e-5, elementwise_affine=affine, bias=bias)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=0.5)

    assert inferred(norm, hidden(2, 24, WIDTH)) == NormSpec(kind="layer", eps=1e-5, weight=affine, bias=affine and bias)


@pytest.mark.sample(1)
@pytest.mark.parametrize("tiny", [0.0, 1e-6, 3.7e-4, 0.05])
@pytest.mark.parametrize("centred", [True, False])
def test_a_norm_without_a_scale_is_found_whatever_its_epsilon(tiny: float, centred: bool) -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            around = x - x.mean(-1, keepdim=True) if centred else x
            return around * torch.rsqrt(around.square().mean(-1, keepdim=True) + tiny)

    spec = inferred(Plain(), hidden(2, 24, WIDTH) + 0.5)

    assert (spec.kind, spec.weight, spec.bias) == ("layer" if centred else "rms", False, False)
    assert spec.eps == pytest.approx(tiny, rel=1e-3, abs=1e-14)


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU(), nn.ReLU(), nn.Identity(), nn.Tanh(), nn.Hardtanh()])
def test_an_activation_is_no_norm(activation: nn.Module) -> None:
    value = hidden(2, 24, WIDTH)
    with pytest.raises(UnsupportedError, match="normalisation"):
        infer_norm(activation, value, activation(value), name="n")
    assert may_be_plain(value, activation(value)) == isinstance(activation, nn.Identity)


def test_a_norm_with_a_weight_per_head_is_one_norm() -> None:
    assert inferred(Odd((4, WIDTH)), hidden(2, 24, 4, WIDTH)) == NormSpec(kind="rms", eps=1e-6)


def test_the_size_of_the_input_does_not_hide_the_epsilon() -> None:
    """At this size 1e-5 and 1e-6 give the same float32 numbers: only smaller inputs tell them apart."""
    assert inferred(Odd(tiny=1e-5), 30 * hidden(2, 24, WIDTH)).eps == 1e-5


def test_values_alone_prefer_a_number_of_the_config_and_say_what_else_fits() -> None:
    source, weight = 30 * hidden(48, WIDTH), hidden(WIDTH)
    target = source * torch.rsqrt(source.square().mean(-1, keepdim=True) + 1e-6) * weight

    found = fit_norm(source, target, {"w": weight}, epsilons=(1e-5,), name="block")

    assert found.spec.eps == 1e-5
    assert "1e-06" in found.evidence[0].detail
    assert "cannot be distinguished" in found.evidence[0].detail


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x * w,
        lambda x, w: functional.normalize(x, dim=-1) * w,
        lambda x, w: functional.rms_norm(x, x.shape[-1:]) * w * 1.1,
        lambda x, w: functional.rms_norm(x, x.shape[-1:]) * w + x * 1e-3,
        lambda x, w: torch.tanh(x) * w,
    ],
    ids=["scale", "l2", "extra factor", "extra sum", "tanh"],
)
def test_something_like_a_norm_is_refused(function) -> None:
    source, weight = hidden(48, WIDTH), hidden(WIDTH)

    with pytest.raises(UnsupportedError, match="normalisation at here"):
        fit_norm(source, function(source, weight), {"w": weight}, name="here")


def test_a_scale_that_is_no_parameter_is_refused() -> None:
    source = hidden(48, WIDTH)

    with pytest.raises(UnsupportedError):
        fit_norm(source, functional.rms_norm(source, (WIDTH,)) * hidden(WIDTH), {"w": hidden(WIDTH) + 1}, name="here")


@pytest.mark.parametrize("seed", [3, 8, 10, 17])
def test_rounding_of_large_outputs_does_not_hide_norms_of_inputs_with_an_offset(seed):
    generator = torch.Generator().manual_seed(seed)
    module = nn.LayerNorm(16, eps=2e-3, bias=False)
    with torch.no_grad():
        module.weight.copy_(1 + 0.3 * torch.randn(16, generator=generator))
        inputs = torch.randn(2, 1, 24, 16, generator=generator) + 3
        found = infer_norm(module, inputs, module(inputs), name="norm")
    assert (found.spec.kind, found.spec.eps, found.spec.bias) == ("layer", 2e-3, False)
