"""Kinds of blocks told apart, with norms as modules and as formulas in the block's own forward."""

from __future__ import annotations

import itertools

import pytest

from areal.porting.infer.infer import infer
from areal.porting.records import UnsupportedError

KINDS = ("pre", "post", "sandwich", "parallel", "parallel_two_norms", "post_residual")
COMBINATIONS = list(itertools.product(KINDS, ("rms", "layer"), ("module", "functional")))
QUICK = {(wiring, *COMBINATIONS[place % 4][1:]) for place, wiring in enumerate(KINDS)}


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
