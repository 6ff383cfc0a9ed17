"""Embedding, positions, final norm, head and their scalars."""

from __future__ import annotations

import pytest

from areal.porting.infer.infer import infer
from areal.porting.records import UnsupportedError
from areal.porting.spec import PositionSpec


def test_any_embedding_multiplier_is_measured(foreign) -> None:
    assert infer(foreign(louder=3.7)).spec.embedding_multiplier == 3.7


@pytest.mark.exhaustive
def test_the_square_root_of_the_width_is_exact(installed) -> None:
    spec = infer(installed("gemma", hidden_size=48, head_dim=12)).spec

    assert spec.embedding_multiplier == 48**0.5
    assert spec.tied


def test_learned_positions_keep_their_unused_rows(foreign) -> None:
    found = infer(foreign(places="learned", louder=2.5))

    assert found.spec.positions == PositionSpec(kind="learned", num_positions=67, offset=3)
    assert found.weights["embed_positions.weight"].shape == (70, 48)


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        pytest.param(
            "xglm",
            {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4},
            ("halves", True, 2),
            marks=pytest.mark.exhaustive,
        ),
        ("ctrl", {"n_embd": 64, "dff": 96, "n_layer": 2, "n_head": 4, "n_positions": 64}, ("halves", False, 0)),
    ],
)
def test_sinusoids_of_both_conventions_are_found(installed, model_type: str, fields: dict, expected: tuple) -> None:
    positions = infer(installed(model_type, **fields)).spec.positions

    assert positions.kind == "sinusoidal"
    assert (positions.interleaved, positions.endpoint, positions.offset) == (expected[0] != "halves", *expected[1:])


def test_sinusoids_in_turn_are_found(foreign) -> None:
    assert infer(foreign(places="waves")).spec.positions.interleaved


@pytest.mark.exhaustive
def test_embedding_norms_are_found(installed) -> None:
    spec = infer(installed("bloom", n_layer=2, n_head=4, layer_norm_epsilon=2e-3)).spec

    assert spec.embedding_norm.kind == "layer"
    assert spec.embedding_norm.eps == 2e-3


@pytest.mark.exhaustive
def test_a_head_bias_is_found(installed) -> None:
    found = infer(installed("gptj", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_inner=96, n_positions=64))

    assert found.spec.head_bias
    assert not found.spec.tied
    assert found.weights["lm_head.bias"].shape == (128,)


@pytest.mark.parametrize(
    ("quieter", "bound"),
    [(3.0, 2.5), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((0.21, None), (1.0, 2.5)))],
)
def test_logit_multipliers_and_bounds_are_measured(foreign, quieter: float, bound: float | None) -> None:
    spec = infer(foreign(quieter=quieter, bound=bound)).spec

    assert (spec.logit_multiplier, spec.logit_softcap) == (quieter, bound)


def test_tying_is_a_shared_tensor(foreign) -> None:
    found = infer(foreign(tied=True))

    assert found.spec.tied
    assert "lm_head.weight" not in found.weights


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("turned", "kind"),
    [
        ("plain", "rms"),
        ("biased", "layer"),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in (("plain", "layer"), ("biased", "rms"))),
    ],
)
def test_a_matrix_and_a_norm_before_the_head_are_found(foreign, turned: str, kind: str) -> None:
    found = infer(foreign(turned=turned, kind=kind, tied=True))

    transform = found.spec.head_transform
    assert (transform.activation, transform.bias) == ("gelu", turned == "biased")
    assert (transform.norm.kind, transform.norm.eps) == (kind, 3e-3)
    assert found.spec.final_norm == transform.norm
    assert found.weights["head_transform.dense.weight"].shape == (48, 48)


@pytest.mark.parametrize(
    ("turned", "feature"), [("bent", "transform of an unknown form"), ("loose", "matrices between the last layer")]
)
def test_other_matrices_before_the_head_are_refused(foreign, turned: str, feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature):
        infer(foreign(turned=turned))


@pytest.mark.parametrize(
    ("spoiled", "feature"),
    [("bigrams", "unknown input of the layers"), ("first token", "something between layers and final norm")],
)
def test_further_inputs_of_the_layers_and_of_the_head_are_refused(foreign, spoiled: str, feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature):
        infer(foreign(spoiled=spoiled))
