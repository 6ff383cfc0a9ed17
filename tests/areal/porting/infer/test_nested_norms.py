"""Norms that are modules inside another module, one for each head."""

import pytest

from areal.porting.infer.infer import infer
from areal.porting.probe.instance import build
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete


@pytest.mark.exhaustive
def test_a_module_around_norms_is_no_norm_itself():
    subject = resolve("stablelm")
    config = complete(subject, {"qk_layernorm": True}) | {"num_attention_heads": 8}
    found = infer(build(subject, config, attention="eager"))
    assert {layer.attention.norm_scope for layer in found.spec.layers} == {"each_head"}
    assert found.parity <= found.tolerance
