"""Norms that are modules inside another module, one for each head."""

from areal.models.analysis.inference.infer import infer
from areal.models.analysis.oracle.instance import build
from areal.models.analysis.oracle.subject import resolve
from areal.models.analysis.oracle.tiny import complete


def test_a_module_around_norms_is_no_norm_itself():
    subject = resolve("stablelm")
    config = complete(subject, {"qk_layernorm": True}) | {"num_attention_heads": 8}
    found = infer(build(subject, config, attention="eager"))
    assert {layer.attention.norm_scope for layer in found.spec.layers} == {"each_head"}
    assert found.parity <= found.tolerance
