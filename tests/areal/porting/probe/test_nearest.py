"""Which proven families an unknown type is said to be like, and that the list of them is that of the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from areal.porting.probe.catalog import installed_catalog
from areal.porting.probe.nearest import nearest_families, nearest_names, proven_types
from areal.porting.proven import PROVEN

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("qwen4", ["qwen3", "qwen2", "qwen3_moe"]),
        ("Qwen4-MoE", ["qwen3_moe", "qwen2_moe", "qwen3"]),
        ("llama5", ["llama"]),
        ("mistral4", ["mistral"]),
        ("deepseek_v9", ["deepseek_v3", "deepseek_v2"]),
        ("zzyzx", []),
    ],
)
def test_names_recommend_their_own_families_and_of_these_the_last(name: str, families: list[str]) -> None:
    assert [near.model_type for near in nearest_families(name)][: len(families) or None] == families


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen3_moe", "llama", "gpt_oss", "deepseek_v3", "olmoe"])
def test_a_config_recommends_the_family_that_it_is_a_copy_of(model_type: str) -> None:
    """Also in the spelling of published files, and under a name that says nothing."""
    config = {**installed_catalog().fields(model_type), "rope_theta": 10000.0, "architectures": ["X"], "own_field": 1}
    config.pop("rope_parameters", None)
    family = re.sub(r"[\d_].*", "", model_type)
    assert nearest_families(f"{family}99", config)[0].model_type == model_type
    best = nearest_families("novel", config)[0]
    assert best.model_type == model_type
    assert best.lacks == ("own_field",)
    assert {"field": "own_field", "theirs": 1, "ours": None} in best.differences
    assert "hidden_size" in best.shared or "n_embd" in best.shared
    assert "lacks own_field" in best.reason
    assert "a similar name" not in best.reason


@pytest.mark.exhaustive
def test_fields_that_compute_nothing_do_not_count() -> None:
    config = dict(installed_catalog().fields("qwen3"))
    scores = [
        nearest_families("novel", {**config, **more})[0].score
        for more in ({}, {"torch_dtype": "bfloat16", "use_cache": False, "eos_token_id": 5, "auto_map": {"A": "b"}})
    ]
    assert scores[0] == scores[1]


def test_similar_names_are_found_among_any() -> None:
    assert nearest_names("qwen4", ["mamba", "qwen4_exp", "bart"]) == ["qwen4_exp"]


def test_the_proven_families_are_those_of_the_documented_tables() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    table = text.partition("<!-- matrix -->")[2].partition("| not generated, because of")[0]
    rows = re.findall(r"^\| `([^` ]+)(?: \([^)]*\))?` \| (proven|[\d.]+) \|", table, re.MULTILINE)
    assert sorted({model_type for model_type, _ in rows}) == list(PROVEN)
    assert {*PROVEN} <= {*proven_types()}
