"""Indexers of tiny models of the installed transformers are found by what they choose; what is left open is refused."""

from __future__ import annotations

import pytest

from areal.porting.infer.infer import infer
from areal.porting.probe.instance import build
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import tiny_config
from areal.porting.records import UnsupportedError


def spec_of(model_type, **changes):
    """What `infer` has shown to give the logits of a tiny model."""
    subject = resolve(model_type)
    found = infer(build(subject, {**tiny_config(subject), **changes}, attention="eager"))
    assert found.parity <= found.tolerance
    return found.spec


@pytest.mark.exhaustive
def test_an_indexer_turns_halves_beside_attention_that_turns_pairs():
    spec = spec_of("deepseek_v32", num_hidden_layers=2, mlp_layer_types=["dense"] * 2, layer_types=None)
    assert {table.interleaved for table in spec.rotaries} == {True}
    for layer in spec.layers:
        indexer = layer.attention.indexer
        assert (indexer.num_heads, indexer.head_dim, indexer.top_k) == (16, 12, 8)
        assert (indexer.norm_eps, indexer.interleaved) == (1e-6, False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("top_k", [8, 5])
def test_layers_without_an_indexer_take_over_the_last_choice(top_k):
    kinds = ["full", "shared", "full", "shared"]
    spec = spec_of("glm_moe_dsa", indexer_types=kinds, index_topk=top_k)
    assert [layer.attention.shares_selection for layer in spec.layers] == [kind == "shared" for kind in kinds]
    found = [layer.attention.indexer for layer in spec.layers]
    assert [indexer is None for indexer in found] == [kind == "shared" for kind in kinds]
    assert {(indexer.top_k, indexer.interleaved) for indexer in found if indexer} == {(top_k, True)}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"index_topk": 60}, "a choice of tokens that leaves none out"),
        ({"index_n_heads": 4}, "visibility that depends"),
    ],
)
def test_a_choice_that_cannot_be_seen_or_is_not_defined_is_refused(changes, feature):
    with pytest.raises(UnsupportedError, match=feature):
        spec_of("deepseek_v32", **changes)
