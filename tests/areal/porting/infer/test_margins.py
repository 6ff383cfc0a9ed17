"""Lines of the checklist say by how much the next best explanation was worse, in units of the tolerance."""

from __future__ import annotations

import pytest
import torch

from areal.porting.infer.infer import infer
from areal.porting.infer.scores import explain_scores
from areal.porting.probe.instance import build
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete


def margins(model_type, **fields):
    subject = resolve(model_type)
    found = infer(build(subject, complete(subject, fields), attention="eager"))
    return {line.feature.removeprefix("layers.0."): line for line in found.evidence if "layers.0." in line.feature}


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", ["qwen3", pytest.param("deepseek_v3", marks=pytest.mark.exhaustive)])
def test_facts_that_were_chosen_between_alternatives_have_a_margin(model_type):
    lines = margins(model_type)
    for feature in ("attention.scale", "attention.rotary", "attention.rotary_pairs", "feed_forward"):
        assert lines[feature].margin > 100, lines[feature]
    assert "next best: default, theta" in lines["attention.rotary"].detail
    assert "next best: " in lines["feed_forward"].detail
    if model_type == "qwen3":
        assert lines["attention.query_norm"].margin > 100


@pytest.mark.exhaustive
def test_a_close_call_shows():
    close = margins("llama", hidden_act="gelu")["feed_forward"]
    assert "next best: gelu_" in close.detail
    assert 1 < close.margin < 100
    near = margins("granite", attention_multiplier=0.25003)["attention.scale"]
    assert near.detail.endswith("next best: 0.25")
    assert 1 < near.margin < 10


def test_the_runner_up_of_a_scale_is_off_by_what_it_changes():
    torch.manual_seed(0)
    product = torch.randn(2, 3, 8, 8)
    visible = torch.ones(8, 8, dtype=torch.bool).tril().expand(2, 3, 8, 8)
    rule = explain_scores(product, 0.5 * product, visible, hints=[0.5, 0.6], where="x")
    assert rule.other is not None
    assert (rule.scale, rule.other[0]) == (0.5, 0.6)
    differences = torch.where(visible, product - product.diagonal(dim1=-2, dim2=-1)[..., None], 0.0)
    expected = 0.1 * float(differences.abs().max()) / (5e-5 * 0.5 * float(product[visible].abs().max()))
    assert rule.other[1] == pytest.approx(expected, rel=1e-3)
