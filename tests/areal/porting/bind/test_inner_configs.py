"""A real type that keeps most of its fields in configs inside its config."""

from __future__ import annotations

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve

pytest.importorskip("transformers.models.dbrx")


@pytest.mark.exhaustive
def test_fields_of_inner_configs_are_fields_and_the_configs_themselves_are_none():
    report = as_json(analyse(resolve("dbrx")))
    assert report["status"] == "proven"
    uses = {use["name"]: use["status"] for use in report["fields"]}
    assert uses["attn_config.clip_qkv"] == uses["ffn_config.moe_top_k"] == "used"
    assert uses.keys().isdisjoint({"attn_config", "ffn_config"})
    overrides = [variant["overrides"] for variant in report["variants"]]
    assert not any("." in name for each in overrides for name in each), "objects are replaced as a whole"
    assert any(each.get("ffn_config", {}).get("moe_top_k") == 1 for each in overrides)
