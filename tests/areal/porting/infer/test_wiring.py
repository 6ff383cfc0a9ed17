"""Kinds of blocks told apart, with norms as modules and as formulas in the block's own forward."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from areal.models.blocks.norms import RMSNorm
from areal.porting.infer.infer import infer
from areal.porting.infer.wiring import BlockTensors, infer_one_part, infer_wiring
from areal.porting.records import ModuleCall, UnsupportedError

KINDS = ("pre", "post", "sandwich", "parallel", "parallel_two_norms", "post_residual")
COMBINATIONS = list(itertools.product(KINDS, ("rms", "layer"), ("module", "functional")))
QUICK = {(wiring, *COMBINATIONS[place % 4][1:]) for place, wiring in enumerate(KINDS)}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("wiring", "kind", "norms"),
    [each if each in QUICK else pytest.param(*each, marks=pytest.mark.exhaustive) for each in COMBINATIONS],
)
def test_every_kind_of_block_is_found(foreign, wiring: str, kind: str, norms: str) -> None:
    found = infer(foreign(wiring=wiring, kind=kind, norms=norms))

    for layer in found.spec.layers:
        assert layer.block == wiring
        assert {(norm.kind, norm.eps, norm.bias) for norm in layer.norms.values()} == {(kind, 3e-3, kind == "layer")}
    assert found.parity <= found.tolerance


def test_a_layer_may_lack_the_norm_before_attention(foreign) -> None:
    found = infer(foreign(spoiled="bare"))

    assert [layer.block for layer in found.spec.layers] == ["pre", "pre"]
    names = {"input_layernorm", "post_attention_layernorm"}
    assert [set(layer.norms) for layer in found.spec.layers] == [names - {"input_layernorm"}, names]


def test_norms_inside_the_modules_of_the_parts_are_the_blocks(foreign) -> None:
    found = infer(foreign(norms="wrapped"))

    assert found.spec.layers[0].block == "pre"
    assert [name.rpartition(".")[2] for name in found.roles.layers[0].norms] == ["scaler", "scaler"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "norms"),
    [
        ("rms", "functional"),
        ("layer", "module"),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in (("rms", "module"), ("layer", "functional"))),
    ],
)
def test_one_plus_weight_is_found(foreign, kind: str, norms: str) -> None:
    found = infer(foreign(kind=kind, norms=norms, shift=1.0))

    assert {norm.offset for norm in found.spec.layers[1].norms.values()} == {1.0}


@pytest.mark.parametrize(
    "wiring", ["sandwich", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("pre", "parallel"))]
)
def test_residual_multipliers_are_measured(foreign, wiring: str) -> None:
    assert [layer.residual_multiplier for layer in infer(foreign(wiring=wiring, step=0.37)).spec.layers] == [0.37] * 2


def test_a_multiplier_of_each_layer_is_each_layers(foreign) -> None:
    assert [layer.residual_multiplier for layer in infer(foreign(spoiled="depth")).spec.layers] == [1.0, 0.5]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("spoiled", "feature"),
    [
        ("uneven", "different residual multipliers"),
        ("vector", "unknown residual wiring"),
        ("stream", "unknown residual wiring"),
        ("scaled", "scaled residual stream"),
    ],
)
def test_other_sums_are_refused_by_what_they_differ_in(foreign, spoiled: str, feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature) as refusal:
        infer(foreign(spoiled=spoiled))

    assert refusal.value.where == "trunk.blocks.b0"


def counted(number: int) -> BlockTensors:
    """Block `number` of a model whose sums are weighted by how many there were, with the norms of its own forward."""
    generator = torch.Generator().manual_seed(0)
    names = ("first", "second", "third", "fourth")
    weights = {name: 1 + 0.3 * torch.randn(16, generator=generator) for name in names}

    def norm(hidden, name):
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 3e-3) * weights[name]

    def part(hidden):
        return hidden @ torch.randn(16, 16, generator=generator)

    hidden, count = torch.randn(2, 40, 16, generator=generator), 2 * number + 2
    calls, read = [], {}
    middle = hidden
    for place, (before, after) in enumerate((("first", "second"), ("third", "fourth"))):
        read[place] = norm(middle, before)
        given = part(read[place])
        added, total = norm(given, after), count + place
        module = RMSNorm(16, 3e-3)
        module.weight.data = weights[after]
        calls.append((ModuleCall(name=after, order=place, input=given, output=added), module))
        middle = (1 - 1 / total) ** 0.5 * middle + total**-0.5 * added
    return BlockTensors(
        name=f"b{number}", input=hidden, attention_input=read[0], attention_output=calls[0][0].input,
        feed_forward_input=read[1], feed_forward_output=calls[1][0].input, output=middle, norms=calls,
        epsilons=(3e-3,), parameters=weights, number=number,
    )  # fmt: skip


@pytest.mark.parametrize("number", [0, 3])
def test_sums_that_are_weighted_by_their_number_are_found(number: int) -> None:
    found = infer_wiring(counted(number))
    assert (found.spec.block, found.spec.counted_sums, found.spec.residual_multiplier) == ("sandwich", True, 1.0)
    assert {name: norm.eps for name, norm in found.spec.norms.items()} == dict.fromkeys(found.spec.norms, 3e-3)


def test_sums_that_are_weighted_by_another_number_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a scaled residual stream"):
        infer_wiring(replace(counted(3), number=2))


def one_part(part_factor: float = 0.4, stream: float = 1.0) -> BlockTensors:
    """A block of one part that norms its input by itself."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(2, 7, 16, generator=generator), torch.randn(16, generator=generator)
    normed = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 3e-3) * weight
    given = normed @ torch.randn(16, 16, generator=generator)
    return BlockTensors(
        name="b0", input=hidden, attention_input=normed, attention_output=given, feed_forward_input=normed,
        feed_forward_output=given, output=stream * hidden + part_factor * given, norms=(), epsilons=(3e-3,),
        parameters={"norm.weight": weight}, multipliers=(0.4,),
    )  # fmt: skip


def test_a_block_of_one_part_is_its_norm_and_what_it_adds() -> None:
    found = infer_one_part(one_part())
    assert found.spec.block == "one_part"
    assert found.spec.residual_multiplier == 0.4
    assert [(name, norm.kind, norm.eps) for name, norm in found.spec.norms.items()] == [
        ("input_layernorm", "rms", 3e-3)
    ]
    assert torch.equal(found.tensors["input_layernorm.weight"], one_part().parameters["norm.weight"])


def test_a_block_of_one_part_that_adds_something_else_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="scaled residual stream"):
        infer_one_part(one_part(stream=0.9))
    with pytest.raises(UnsupportedError, match="an unknown residual wiring"):
        infer_one_part(replace(one_part(), output=one_part().output.tanh()))
    with pytest.raises(UnsupportedError, match="an unknown input of the only part"):
        infer_one_part(replace(one_part(), attention_input=one_part().attention_input.tanh()))
