"""Decoders of every feature start from sensible random weights, keep their buffers, and can recompute activations."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, replace

import pytest
import torch

from areal.api import BaseModelArgs, ModelError, ModelSpec
from areal.models import from_config, from_pretrained
from areal.models.adapter import Renamed, TableAdapter
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.mlp import LEARNED_ACTIVATIONS, MLP
from areal.models.loading import initialize
from areal.models.registry import MODELS
from areal.models.value_head import ValueModel
from areal.porting import reference
from areal.porting.records import UnsupportedError
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    HeadTransformSpec,
    LatentAttentionSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
    RouterSpec,
)

RMS, GEMMA = NormSpec(kind="rms", eps=1e-5), NormSpec(kind="rms", eps=1e-5, offset=1.0)
LAYER_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
HEADS = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=8, scale=0.3)
LATENT = LatentAttentionSpec(
    num_heads=4, query_rank=12, kv_rank=10, nope_dim=6, rope_dim=4, value_dim=6, scale=0.3, query_norm=RMS, kv_norm=RMS
)
BIASED = MlpSpec(gated=True, activation="quick_gelu", intermediate_size=24, bias=True, output_bias=True, clamp=2.0)
MIXTURE = MoeSpec(
    router=RouterSpec(num_experts=8, top_k=3, score="sigmoid", order="score_first", selection_bias=True, bias=True),
    experts=BIASED,
    shared=BIASED,
    shared_gate=True,
)


def layer(block, norm, attention, feed_forward, **changes):
    norms = dict.fromkeys(reference.BLOCK_NORMS[block], norm)
    return LayerSpec(block=block, norms=norms, attention=attention, feed_forward=feed_forward, **changes)


EVERYTHING = ArchitectureSpec(
    vocab_size=32,
    hidden_size=32,
    layers=(
        layer("pre", RMS, replace(HEADS, sinks=True, query_bias=True, key_bias=True), MIXTURE, rotary=0, window=5),
        layer("sandwich", GEMMA, replace(HEADS, gate="headwise", query_norm=RMS, key_norm=GEMMA), BIASED, rotary=1),
        layer(
            "post",
            LAYER_NORM,
            replace(HEADS, query_norm=LAYER_NORM, key_norm=LAYER_NORM, norm_scope="each_head"),
            replace(MIXTURE, shared=None, shared_gate=False),
            residual_multiplier=0.5,
        ),
        layer(
            "parallel_two_norms", RMS, LATENT, MlpSpec(gated=False, activation="relu2", intermediate_size=24), rotary=2
        ),
    ),
    final_norm=LAYER_NORM,
    tied=False,
    rotaries=(
        RotarySpec(dim=8, theta=100.0),
        RotarySpec(dim=4, theta=50.0, interleaved=True),
        RotarySpec(dim=4, theta=100.0),
    ),
    embedding_multiplier=2.0,
    positions=PositionSpec(kind="learned", num_positions=64),
    embedding_norm=LAYER_NORM,
    head_bias=True,
    logit_multiplier=3.0,
    logit_softcap=4.0,
)


@dataclass(kw_only=True)
class Args(BaseModelArgs):
    """Arguments whose config.json says nothing but the type: the spec is `EVERYTHING`."""

    initializer_range: float = 0.25

    @classmethod
    def from_hf_config(cls, config):
        return cls(
            model_type=config["model_type"], vocab_size=32, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2,
            head_dim=8, max_position_embeddings=64, tie_word_embeddings=False,
        )  # fmt: skip

    def to_hf_config(self):
        return {"model_type": self.model_type}


class Adapter(TableAdapter):
    model_class = staticmethod(lambda _: reference.build(EVERYTHING))
    table = (Renamed("layers.*.mlp.router.selection_bias", "model.layers.*.mlp.gate.e_score_correction_bias"),)


def build(args):
    model = reference.build(EVERYTHING)
    model.args = args
    return model


@pytest.fixture
def family(monkeypatch):
    """A registered family with every feature at once; returns its config."""
    module = types.ModuleType("family_of_the_test")
    module.SPEC = ModelSpec(
        name="everything",
        model_class=build,
        args_class=Args,
        state_dict_adapter=Adapter,
        parallelize=lambda model, _: model,
        model_types=frozenset({"everything"}),
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(MODELS, "everything", "family_of_the_test:SPEC")
    return {"model_type": "everything"}


def test_every_tensor_of_every_block_is_initialised(family):
    state = from_config(family).state_dict()
    constant = {name: tensor.flatten()[0].item() for name, tensor in state.items() if tensor.std() == 0}
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    zeros = {name for name, value in constant.items() if value == 0}
    ones = {name for name, value in constant.items() if value == 1}
    assert zeros | ones == constant.keys()
    assert ones == {
        name for name in state if "norm" in name and name.endswith("weight") and not name.startswith("layers.1")
    } | {"layers.1.self_attn.q_norm.weight"}
    gemma = {f"layers.1.{name}.weight" for name in (*reference.BLOCK_NORMS["sandwich"], "self_attn.k_norm")}
    biases = {name for name in state if name.endswith("bias")}
    assert zeros == gemma | biases | {"layers.0.self_attn.sinks"}
    assert {"lm_head.bias", "layers.0.mlp.router.selection_bias", "layers.0.mlp.experts.gate_bias"} <= biases
    for name in state.keys() - constant.keys():
        assert state[name].std().item() == pytest.approx(0.25, rel=0.25), name


def test_activations_that_learn_start_as_new_ones():
    for name in LEARNED_ACTIVATIONS:
        layer, new = (MLP(4, 4, activation=name, learned_activation=True) for _ in range(2))
        for tensor in layer.activation.state_dict().values():
            tensor.fill_(9.0)
        initialize(layer, std=0.02, seed=0)
        assert all(
            torch.equal(tensor, new.activation.state_dict()[key])
            for key, tensor in layer.activation.state_dict().items()
        )


def test_a_buffer_without_a_rule_is_an_error():
    model = torch.nn.Module()
    model.register_buffer("counts", torch.zeros(2), persistent=False)
    initialize(model, std=0.02, seed=0)
    model.register_buffer("balance", torch.zeros(2))
    with pytest.raises(TypeError, match="no initialisation rule for balance of Module"):
        initialize(model, std=0.02, seed=0)


def test_weights_narrower_than_float32_leave_the_selection_bias_as_it_is(family, tmp_path):
    model = from_config(family, dtype=torch.bfloat16)
    bias = model.layers[0].mlp.router.selection_bias
    assert bias.dtype == torch.float32
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    bias.copy_(torch.linspace(0.1, 0.9, 8))
    model.save_pretrained(tmp_path / "model")
    again = from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    assert torch.equal(again.layers[0].mlp.router.selection_bias, bias)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())


def test_logits_are_scaled_and_bounded_wherever_they_are_computed(family, tokens, run):
    model = from_config(family)
    torch.nn.init.normal_(model.lm_head.bias)
    tokens = tokens % 32
    with torch.no_grad():
        hidden = model.hidden(tokens, torch.arange(40), torch.tensor([0, 40]), 40)
        raw = hidden @ model.lm_head.weight.T + model.lm_head.bias
        torch.testing.assert_close(run(model, tokens), 4.0 * torch.tanh(3.0 * raw / 4.0))
        torch.testing.assert_close(model.project(hidden[7:9]), run(model, tokens)[7:9])


def test_documents_of_a_pack_do_not_see_each_other(family, tokens, run):
    model, tokens = from_config(family), tokens % 32
    with torch.no_grad():
        packed = run(model, tokens[:7], tokens[7:29], tokens[29:])
        alone = torch.cat([run(model, part) for part in (tokens[:7], tokens[7:29], tokens[29:])])
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=2e-5)


def test_recomputed_activations_give_the_same_gradients(family, tokens, run):
    model, tokens = from_config(family), tokens % 32
    gradients = []
    for enabled in (False, True):
        model.set_gradient_checkpointing(enabled)
        model.zero_grad()
        run(model, tokens).square().sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name
        assert gradient.any(), name


def test_a_tied_head_with_a_bias_uses_the_embedding(run, tokens):
    spec = replace(EVERYTHING, tied=True)
    model = reference.build(spec)
    initialize(model, std=0.25, seed=0)
    assert [name for name in model.state_dict() if name.startswith("lm_head")] == ["lm_head.bias"]
    model.lm_head.bias.data.fill_(0.5)
    with torch.no_grad():
        hidden = torch.randn(3, 32)
        torch.testing.assert_close(
            model.project(hidden), 4.0 * torch.tanh(3.0 * (hidden @ model.embed_tokens.weight.T + 0.5) / 4.0)
        )


def test_a_transform_stands_between_the_hidden_states_and_the_head(run, tokens):
    spec = replace(EVERYTHING, head_transform=HeadTransformSpec(activation="gelu", norm=LAYER_NORM, bias=True))
    model = reference.build(spec)
    initialize(model, std=0.25, seed=0)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    dense, norm = model.head_transform.dense, model.head_transform.norm
    torch.nn.init.normal_(dense.bias)
    bent = torch.nn.functional.gelu(hidden @ dense.weight.T + dense.bias)
    turned = torch.nn.functional.layer_norm(bent, (32,), norm.weight, norm.bias, 1e-5)
    raw = turned @ model.lm_head.weight.T + model.lm_head.bias
    torch.testing.assert_close(model.project(hidden), 4.0 * torch.tanh(3.0 * raw / 4.0))
    frozen = {name for name, parameter in ValueModel(model).named_parameters() if not parameter.requires_grad}
    assert {name.removeprefix("backbone.").partition(".")[0] for name in frozen} == {"lm_head", "head_transform"}


def test_attention_without_a_norm_before_it_reads_the_residual_stream(run, tokens):
    block = reference.block(replace(EVERYTHING.layers[0], norms={"post_attention_layernorm": RMS}), 32, 0)
    initialize(block, std=0.25, seed=0)
    assert not any("input_layernorm" in name for name in block.state_dict())
    seen = []
    block.self_attn.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    rotation = reference.rotary(EVERYTHING.rotaries[0])(torch.arange(5), hidden.dtype)
    block(hidden, rotation, PackedAttention(torch.tensor([0, 5]), 5, hidden.device))
    assert torch.equal(seen[0], hidden)
    with pytest.raises(ValueError, match="has the norms"):
        reference.block(replace(EVERYTHING.layers[0], norms={"input_layernorm": RMS}), 32, 0)


def test_layers_share_a_table_of_rotations(tokens, run):
    model = reference.build(replace(EVERYTHING, layers=EVERYTHING.layers[:1] * 3))
    assert model.rotaries[0] is model.rotaries[1] is model.rotaries[2]
    assert reference.build(EVERYTHING).rotaries[2] is None


def test_positions_beyond_the_last_are_refused(family, run):
    with pytest.raises(ModelError, match=r"position 64 is beyond the model's 64 positions"):
        run(from_config(family), torch.zeros(65, dtype=torch.int64))


@pytest.mark.parametrize("head_dim", [1, 7])
def test_heads_that_rotated_pairs_do_not_fit_are_refused(head_dim):
    heads = replace(HEADS, head_dim=head_dim, value_dim=head_dim)
    narrow = replace(EVERYTHING.layers[0], attention=heads, rotary=0)
    spec = replace(EVERYTHING, layers=(narrow,), rotaries=(RotarySpec(dim=head_dim, theta=100.0),))
    with pytest.raises(ModelError, match=f"a head has {head_dim}"):
        reference.build(spec)
    reference.build(replace(spec, layers=(replace(narrow, rotary=None),)))


def test_a_factor_that_only_sandwiches_have_is_refused_elsewhere():
    scaled = layer("pre", RMS, HEADS, BIASED, output_scale=True)
    with pytest.raises(UnsupportedError, match="a factor on what a block gives"):
        reference.block(scaled, 32, 0)


def test_weights_that_do_not_fit_a_spec_are_all_named():
    weights = reference.build(EVERYTHING).state_dict()
    del weights["norm.bias"]
    weights["extra"] = torch.ones(1)
    weights["embed_norm.bias"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"missing \['norm.bias'\]; unknown \['extra'\]; .*embed_norm.bias \[3\]"):
        reference.load(EVERYTHING, weights)
