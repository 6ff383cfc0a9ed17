"""Whole instances: proven with the spec that their family has, or refused by the feature that is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from areal.porting import reference
from areal.porting.infer.infer import check_weights, infer
from areal.porting.probe.instance import build, logits, make_tokens
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete, tiny_config
from areal.porting.records import UnsupportedError

DATA = Path(__file__).parents[5] / "shared/data/dev_models.json"

PROVEN = (
    "llama",  # the core
    *("qwen2", "qwen3"),  # biases, norms of queries and keys
    *("mixtral", "qwen2_moe", "ernie4_5_moe"),  # experts
    *("minimax_m2", "smollm3", "codegen", "cohere2"),  # positions
    *("olmo", "olmo2", "exaone4", "vaultgemma", "flex_olmo"),  # norms and where they stand
    *("granite", "granitemoeshared", "gemma2", "cohere", "hyperclovax"),  # multipliers and bounds
    *("phi", "phi3", "starcoder2", "gpt_bigcode", "arcee", "helium"),  # layouts and activations
    *("afmoe", "gpt_oss", "granite_swa"),  # sinks, gates, clamps
    *("beam", "bitnet", "phimoe", "axk1", "llama4_text", "mimo_v2_flash", "gpt_neox_japanese"),  # single switches
    *("ministral3", "apertus", "modernbert-decoder"),  # growing queries, learned activations, transformed heads
    *("lfm2", "lfm2_moe", "lfm3"),  # short convolutions beside attention
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),  # delta rules
    *("bamba", "granitemoehybrid", "falcon_h1"),  # Mamba-2, alone and beside attention
    "gemma4_text",  # embeddings of the layers, shared keys, heads of several sizes
    "minimax_m3_vl_text",  # clamps and experts, with all layers attending to everything
    "minimax",  # lightning attention, and norms in the residual stream
    "recurrent_gemma",  # gated linear recurrent units
    "diffllama",  # heads that are taken from each other
    *("bloom", "gpt2", "opt", "biogpt", "ctrl", "xglm", "mpt", "openai-gpt", "nanochat"),  # older positions and wirings
)
QUICK = ("gemma2", "bloom", "lfm2")
REFUSED = {
    "gemma3n_text": "several residual streams",
    "hrm_text": "a layer that runs several times",
    "jetmoe": "attention spread over its layer",
}


def sampled(cases, *quick: str) -> list[Any]:
    """The cases as parameters; all but the quick ones are exhaustive."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.exhaustive) for name in cases]


def instance_of(model_type: str, seed: int = 0, **fields: Any):
    subject = resolve(model_type)
    return build(subject, {**tiny_config(subject), **fields}, seed=seed, attention="eager")


def agrees_elsewhere(found, instance) -> bool:
    """Whether the spec holds on tokens that took no part in finding it, with the fused attention of another build."""
    other = build(instance.subject, instance.config, seed=0, attention="sdpa")
    for rows, length in ((1, 1), (1, 7), (2, 33), (1, 61)):
        tokens = make_tokens(other, batch=rows, length=length, seed=100 + length)
        expected = logits(other, tokens)
        difference = (reference.logits(found.spec, found.weights, tokens) - expected).abs().max()
        if float(difference) > 5e-5 * max(1.0, float(expected.std())):
            return False
    return True


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", sampled(PROVEN, *QUICK))
def test_families_of_every_tier_are_proven(model_type: str) -> None:
    instance = instance_of(model_type)

    found = infer(instance)

    assert found.parity <= found.tolerance
    assert agrees_elsewhere(found, instance)
    assert set(found.weights) == set(reference.load(found.spec, found.weights).state_dict())


@pytest.mark.parametrize("model_type", sampled(REFUSED, "jetmoe"))
def test_what_no_spec_says_is_refused_by_name(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[model_type]) as refusal:
        infer(instance_of(model_type))

    assert refusal.value.where
    assert refusal.value.detail


@pytest.mark.exhaustive
@pytest.mark.skipif(not DATA.is_file(), reason="the data of the project's design is not here")
def test_settings_that_other_families_were_measured_with_are_proven() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    settings = {model["model_type"]: model["tiny_kwargs"] for model in data["models"]}
    cases = [(name, kwargs) for name, kwargs in settings.items() if name not in PROVEN]
    cases += [(case["base"], {**settings[case["base"]], **case["overrides"]}) for case in data["synthetic"]]

    for model_type, kwargs in cases:
        subject = resolve(model_type)
        instance = build(subject, complete(subject, kwargs), attention="eager")
        assert agrees_elsewhere(infer(instance), instance), model_type


@pytest.mark.exhaustive
def test_vocabularies_smaller_than_a_sequence_are_judged(installed) -> None:
    assert infer(installed("llama", vocab_size=8)).spec.vocab_size == 8


@pytest.mark.exhaustive
def test_the_spec_depends_on_no_weights_and_its_layers_share_equal_rotations(inferred) -> None:
    instance, found = inferred("llama")
    assert infer(build(instance.subject, instance.config, seed=11, attention="eager")).spec == found.spec
    assert len(found.spec.rotaries) == 1
    assert {layer.rotary for layer in found.spec.layers} == {0}


@pytest.mark.exhaustive
def test_the_fused_attention_is_believed_where_eager_attention_is_wrong() -> None:
    """transformers 5.23.0 adds Falcon's ALiBi twice in eager attention."""
    instance = instance_of("falcon", alibi=True, multi_query=False, num_kv_heads=4)

    found = infer(instance)

    assert found.spec.layers[0].attention.alibi
    assert agrees_elsewhere(found, instance)


def test_a_parameter_that_no_part_explains_is_refused_by_name(foreign) -> None:
    instance = foreign()
    weights = dict(infer(instance).weights)
    del weights["layers.1.mlp.down_proj.weight"]

    with pytest.raises(UnsupportedError, match=r"a parameter of unknown use at trunk\.blocks\.b1\.think\.outward"):
        check_weights(instance, weights, torch.arange(20).reshape(2, 10))


def test_a_parameter_without_influence_is_noted_and_left_alone(foreign) -> None:
    """The block of this wiring has norms that it never applies."""
    instance = foreign(wiring="parallel")
    before = {name: value.clone() for name, value in instance.model.state_dict().items()}

    found = infer(instance)

    assert "trunk.blocks.b0.s.3.g" in found.notes[0]
    assert all(bool((value == before[name]).all()) for name, value in instance.model.state_dict().items())


def test_a_wrong_spec_never_passes(foreign, monkeypatch) -> None:
    """Whatever a step believes, the logits decide."""
    from areal.porting.infer import infer as module

    def mistaken(*arguments: Any):
        found = original(*arguments)
        return replace(found, spec=replace(found.spec, layer=replace(found.spec.layer, window=5)))

    original = module.infer_layer
    monkeypatch.setattr(module, "infer_layer", mistaken)

    with pytest.raises(UnsupportedError, match=r"no spec reproduces at trunk\.blocks\.b0"):
        infer(foreign())
