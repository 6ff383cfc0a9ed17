"""Slots of specs, and back."""

import math
from dataclasses import replace

import pytest

from areal.porting.bind.expressions import EvaluationError
from areal.porting.bind.layering import last_layers, mask
from areal.porting.bind.slots import ABSENT, predict, slots_of
from areal.porting.family import AtLeast, Constant, Field, First, FromEnd, Length, PerLayer, Range
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    HeadTransformSpec,
    LatentAttentionSpec,
    LayerSpec,
    Mamba2Spec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RouterSpec,
)

RMS = NormSpec(kind="rms", eps=1e-5)
PLAIN = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=8, scale=0.3)
NORMED = replace(PLAIN, query_norm=RMS, key_norm=RMS, norm_scope="each_head", norm_after_rotary=True)


def spec(attention):
    layer = LayerSpec(
        block="pre",
        norms={"input_layernorm": RMS, "post_attention_layernorm": RMS},
        attention=attention,
        feed_forward=MlpSpec(gated=True, activation="silu", intermediate_size=24),
    )
    return ArchitectureSpec(vocab_size=32, hidden_size=32, layers=(layer, layer), final_norm=RMS, tied=True)


@pytest.mark.parametrize("attention", [PLAIN, NORMED], ids=["plain", "normed"])
def test_the_slots_of_a_spec_give_it_back(attention):
    slots = {
        slot: Constant(values[0] if isinstance(values, tuple) else values)
        for slot, values in slots_of(spec(attention)).items()
    }
    assert predict(slots, {}) == spec(attention)


def test_parts_that_some_layers_or_models_lack_are_slots():
    plain = spec(PLAIN)
    bare = replace(plain.layers[0], norms={"post_attention_layernorm": RMS})
    transform = HeadTransformSpec(activation="gelu", norm=RMS, bias=True)
    whole = replace(plain, layers=(bare, plain.layers[1]), head_transform=transform)
    found = slots_of(whole)
    assert found["layer.norms.input_layernorm"] == (False, True)
    assert (found["head_transform"], found["head_transform.norm.eps"]) == (True, 1e-5)
    slots = {slot: Constant(values[1] if isinstance(values, tuple) else values) for slot, values in found.items()}
    slots["layer.norms.input_layernorm"] = PerLayer(First(), Constant(False), Constant(True))
    assert predict(slots, {}) == whole


def test_layers_of_one_part_have_no_slots_of_the_other():
    mamba = Mamba2Spec(
        num_heads=4, head_dim=8, num_groups=2, state_size=6, kernel_size=4, norm_eps=1e-5, norm_groups=2,
        step_limits=(0.25, math.inf),
    )  # fmt: skip
    pre = spec(PLAIN)
    fed = pre.layers[0].feed_forward
    layers = tuple(
        LayerSpec(block="one_part", norms={"input_layernorm": RMS}, attention=mixer, feed_forward=part)
        for mixer, part in ((mamba, None), (None, fed), (PLAIN, None))
    )
    whole = replace(pre, layers=layers)
    found = slots_of(whole)
    assert found["layer.attention"] == ("mamba", "none", "attention")
    assert found["layer.feed_forward"] == ("none", "mlp", "none")
    assert found["layer.window"] == (ABSENT, ABSENT, None)
    assert found["layer.feed_forward.intermediate_size"] == (ABSENT, 24, ABSENT)
    slots = {
        slot: Constant(next(value for value in values if value is not ABSENT) if isinstance(values, tuple) else values)
        for slot, values in found.items()
    }
    last = PerLayer(AtLeast("last"), Constant("attention"), Constant("none"))
    slots["layer.attention"] = PerLayer(First(), Constant("mamba"), last)
    middle = PerLayer(AtLeast("last"), Constant("none"), Constant("mlp"))
    slots["layer.feed_forward"] = PerLayer(First(), Constant("none"), middle)
    slots["num_layers"] = Length("kinds")
    slots["layer.mamba.step_limits"] = Range(Field("low"), Constant(math.inf))
    assert predict(slots, {"last": 2, "low": 0.25, "kinds": ["a", "b", "c"]}) == whole
    with pytest.raises(EvaluationError, match="expected a list"):
        predict(slots, {"last": 2, "low": 0.25, "kinds": None})
    slots["layer.mamba.step_limits"] = Field("limits")
    with pytest.raises(EvaluationError, match="step_limits is"):
        predict(slots, {"last": 2, "limits": [0.0, 1.0, 2.0], "kinds": ["a", "b", "c"]})


def test_what_says_how_to_norm_is_no_slot_without_norms():
    normed, plain = slots_of(spec(NORMED)), slots_of(spec(PLAIN))
    assert normed["layer.attention.norm_scope"] == ("each_head", "each_head")
    assert {"layer.attention.norm_scope", "layer.attention.norm_after_rotary"}.isdisjoint(plain)


def test_what_shared_experts_are_multiplied_by_is_no_slot_without_them():
    plain = spec(PLAIN)
    experts = MlpSpec(gated=True, activation="silu", intermediate_size=8)
    router = RouterSpec(num_experts=4, top_k=2, score="softmax", order="score_first")
    shared = MoeSpec(router=router, experts=experts, shared=experts, shared_scale=0.5)
    alone = MoeSpec(router=router, experts=experts)
    layers = tuple(replace(layer, feed_forward=each) for layer, each in zip(plain.layers, (shared, alone), strict=True))
    found = slots_of(replace(plain, layers=layers))
    assert found["layer.feed_forward.shared_scale"] == (0.5, ABSENT)
    slots = {slot: Constant(values[1] if isinstance(values, tuple) else values) for slot, values in found.items()}
    del slots["layer.feed_forward.shared_scale"]
    assert predict(slots, {}).layers[0].feed_forward == alone


def test_a_norm_of_compressed_queries_is_no_slot_where_none_are_compressed():
    sizes = {"num_heads": 2, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "value_dim": 8, "scale": 0.3, "kv_norm": RMS}
    compressed = LatentAttentionSpec(query_rank=8, query_norm=RMS, **sizes)
    whole = LatentAttentionSpec(query_rank=None, query_norm=None, **sizes)
    found, plain = slots_of(spec(compressed)), slots_of(spec(whole))
    assert found["layer.attention.query_norm"] == (True, True)
    assert not any(name.startswith("layer.attention.query_norm") for name in plain)
    slots = {name: Constant(values[0] if isinstance(values, tuple) else values) for name, values in found.items()}
    assert predict(slots | {"layer.attention.query_rank": Constant(None)}, {}) == spec(whole)


def test_the_last_so_many_layers_are_a_condition_where_a_field_counts_them():
    configs = [{"depth_layers": 4, "shared_layers": 2, "heads": 1}, {"depth_layers": 5, "shared_layers": 1, "heads": 2}]
    names = ["depth_layers", "heads", "shared_layers"]
    assert list(last_layers(configs, [4, 5], names)) == [FromEnd("shared_layers", "depth_layers")]
    assert mask(FromEnd("shared_layers", "depth_layers"), configs, [4, 5]) == 0b10000_1100
    assert list(last_layers([{**configs[0], "shared_layers": 6}], [4], names)) == []


def test_the_last_layer_is_a_condition_beside_lists_over_layers():
    kinds = {"kinds": ["a", "b", "a", "b"], "depth_layers": 4}
    assert list(last_layers([kinds], [4], ["kinds"])) == [FromEnd(1, "depth_layers")]
    assert mask(FromEnd(1, "depth_layers"), [kinds, {"depth_layers": 2}], [4, 2]) == 0b10_1000
    assert list(last_layers([{"depth_layers": 4}], [4], ["depth_layers"])) == []
