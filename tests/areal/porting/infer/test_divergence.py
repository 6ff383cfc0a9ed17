"""The first module that differs is the one that was changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from areal.porting.infer.infer import first_divergence


@pytest.fixture
def known(inferred):
    return inferred("llama")


def test_a_right_spec_diverges_nowhere(known) -> None:
    instance, found = known

    assert first_divergence(instance, found.spec, found.weights) is None


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("embed_tokens.weight", "input of model.layers.0"),
        ("layers.0.input_layernorm.weight", "model.layers.0"),
        ("layers.2.mlp.up_proj.weight", "model.layers.2"),
        ("norm.weight", "model.norm"),
        ("lm_head.weight", "logits"),
    ],
)
def test_wrong_weights_are_located(known, name: str, module: str) -> None:
    instance, found = known
    weights = {**found.weights, name: found.weights[name] * 1.01}

    divergence = first_divergence(instance, found.spec, weights)

    assert divergence.module == module
    assert f"{module} is off by" in str(divergence)


def test_a_wrong_window_in_one_layer_is_located(known) -> None:
    instance, found = known
    layers = list(found.spec.layers)
    layers[3] = replace(layers[3], window=4)

    assert (
        first_divergence(instance, replace(found.spec, layers=tuple(layers)), found.weights).module == "model.layers.3"
    )
