"""The blocks that train compute what the plain recurrences do: packed documents are rows alone, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from areal.models.blocks.packed_backend import PackedBackend
from areal.porting import recurrences, reference
from areal.porting.spec import (
    GatedDeltaSpec,
    LightningSpec,
    Mamba1Spec,
    Mamba2Spec,
    RGLRUSpec,
    ShortConvolutionSpec,
)

HIDDEN = 12
BOUNDS = [0, 1, 17, 17, 20, 45]
MAMBA = Mamba2Spec(num_heads=4, head_dim=3, num_groups=2, state_size=5, kernel_size=3, norm_eps=1e-5, norm_groups=2)
MAMBA1 = Mamba1Spec(inner_size=10, state_size=5, step_rank=3, kernel_size=3)
DELTA = GatedDeltaSpec(num_key_heads=2, num_value_heads=4, key_dim=3, value_dim=5, kernel_size=3, norm_eps=1e-5)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "spec",
    [
        ShortConvolutionSpec(kernel_size=4, bias=True),
        DELTA,
        GatedDeltaSpec(**{**vars(DELTA), "max_rate": 2.0, "conv_activation": "gelu", "gate": "sigmoid"}),
        GatedDeltaSpec(**{**vars(DELTA), "num_key_heads": 4, "by_channel": True, "decay_rank": 3, "gate_rank": 2}),
        GatedDeltaSpec(**{**vars(DELTA), "by_channel": True, "decay_floor": -5.0, "gate": "sigmoid"}),
        MAMBA,
        Mamba2Spec(**{**vars(MAMBA), "norm_first": True, "bias": True, "conv_bias": False, "step_limits": (0.3, 0.9)}),
        Mamba2Spec(
            **{**vars(MAMBA), "norm_eps": None, "output_bias": True, "multipliers": (0.7, 1.4, 0.5, 1.2, 0.3)},
        ),
        MAMBA1,
        Mamba1Spec(**{**vars(MAMBA1), "norm_eps": 1e-3, "bias": True, "conv_bias": False}),
        Mamba1Spec(**{**vars(MAMBA1), "norm_eps": 1e-3, "norm_weights": True, "conv_activation": "gelu"}),
        RGLRUSpec(width=8, num_blocks=2, kernel_size=4, activation="gelu_pytorch_tanh"),
        RGLRUSpec(width=9, num_blocks=3, kernel_size=1, activation="silu", bias=False, conv_bias=False),
        LightningSpec(num_heads=4, head_dim=5, num_layers=3, table_size=6, norm_eps=1e-5, activation="gelu"),
    ],
    ids=[
        "convolution",
        "delta",
        "doubled",
        "channels",
        "floor",
        "mamba",
        "bounded",
        "factors",
        "mamba-1",
        "normed",
        "scaled",
        "rg-lru",
        "without biases",
        "lightning",
    ],
)
def test_packed_documents_are_mixed_as_if_each_were_alone(spec) -> None:
    generator = torch.Generator().manual_seed(0)
    module = reference.stateful(spec, HIDDEN, 0).double()
    for name, parameter in module.named_parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5
        bounds = {"A_log": (-4, 3), "decay": (-8, 1)}.get(name)
        if bounds is not None:  # from states that hardly decay to states that are gone at the next token
            parameter.data = torch.linspace(*bounds, parameter.numel(), dtype=torch.float64).view_as(parameter)
    for name, table in module.tables().items() if isinstance(spec, LightningSpec) else ():
        module.get_buffer(name).copy_(table)
    hidden = torch.randn(BOUNDS[-1], HIDDEN, generator=generator, dtype=torch.float64)
    backend = PackedBackend(torch.tensor(BOUNDS, dtype=torch.int32), BOUNDS[-1], torch.device("cpu"))

    for chunk in (4, 64):
        module.chunk = chunk
        found = module(hidden, None, backend)
        tensors = dict(module.state_dict())
        alone = [
            recurrences.mix(spec, tensors, hidden[start:end])
            for start, end in itertools.pairwise(BOUNDS)
            if end > start
        ]
        torch.testing.assert_close(found, torch.cat(alone), rtol=1e-9, atol=1e-11)


def test_a_recurrent_unit_begins_with_its_first_input_as_it_is() -> None:
    ones = torch.ones(2, 1, dtype=torch.float64)
    decay = torch.tensor([math.log(math.exp(math.log(2) / 8) - 1)], dtype=torch.float64)  # a half, gates open
    given = recurrences.gated_unit(ones * 3, ones, ones, decay)
    # 3; then 0.5 * 3 and the root of 0.75 of the next 3.
    torch.testing.assert_close(given.flatten(), torch.tensor([3, 1.5 + 3 * 0.75**0.5], dtype=torch.float64))


def test_decay_comes_before_the_error() -> None:
    ones = torch.ones(2, 1, 1, dtype=torch.float64)
    decay = torch.tensor([[0.0], [0.5]], dtype=torch.float64).log()
    given = recurrences.delta_rule(
        ones, ones, torch.tensor([[[1.0]], [[3.0]]], dtype=torch.float64), decay, ones[..., 0] * 0.5
    )
    # 0.5 * 1; then 0.5 * 0.5 = 0.25 and half of what 3 lacks: 0.25 + 0.5 * 2.75.
    torch.testing.assert_close(given.flatten(), torch.tensor([0.5, 1.625], dtype=torch.float64))
