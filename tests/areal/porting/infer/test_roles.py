"""Parts of models found by what runs, whatever they are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from areal.porting.infer.roles import find_roles
from areal.porting.probe.instance import build, make_tokens
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import tiny_config
from areal.porting.probe.trace import record
from areal.porting.records import LayerRoles, UnsupportedError


def roles_of(instance):
    return find_roles(instance.model, record(instance, make_tokens(instance, batch=2, length=12, seed=0)))


def test_parts_of_a_usual_decoder(installed) -> None:
    roles = roles_of(installed("llama"))

    assert (roles.embedding, roles.final_norm, roles.head) == ("model.embed_tokens", "model.norm", "lm_head")
    assert len(roles.layers) == 4
    assert roles.layers[1] == LayerRoles(
        block="model.layers.1",
        attention="model.layers.1.self_attn",
        feed_forward="model.layers.1.mlp",
        norms=("model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"),
    )


def test_parts_with_names_of_nobody(foreign) -> None:
    roles = roles_of(foreign(depth=3))

    assert (roles.embedding, roles.final_norm, roles.head) == ("trunk.table", "trunk.last", "out")
    assert [layer.block for layer in roles.layers] == ["trunk.blocks.b0", "trunk.blocks.b1", "trunk.blocks.b2"]
    assert roles.layers[2].attention == "trunk.blocks.b2.look"
    assert roles.layers[2].feed_forward == "trunk.blocks.b2.think"


def test_a_single_layer_is_a_layer(foreign) -> None:
    assert [layer.block for layer in roles_of(foreign(depth=1)).layers] == ["trunk.blocks.b0"]


def test_attention_and_its_norm_in_a_wrapper_are_told_apart(foreign) -> None:
    layer = roles_of(foreign(norms="wrapped")).layers[0]

    assert layer.attention == "trunk.blocks.b0.first.part"
    assert layer.feed_forward == "trunk.blocks.b0.second.part"
    assert layer.norms == ("trunk.blocks.b0.first.scaler", "trunk.blocks.b0.second.scaler")


def test_matrices_of_the_block_itself_are_its_feed_forward(foreign) -> None:
    assert roles_of(foreign(mixer="loose")).layers[0].feed_forward == ""


def test_shared_experts_beside_routed_ones_are_found(installed) -> None:
    fields = {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 40}
    layer = roles_of(installed("granitemoeshared", **fields)).layers[0]

    assert layer.feed_forward == "model.layers.0.block_sparse_moe"
    assert layer.shared_feed_forward == "model.layers.0.shared_mlp"


def test_norms_without_parameters_are_norms(installed) -> None:
    layer = roles_of(installed("olmo")).layers[0]

    assert layer.norms == ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")


def test_a_table_of_positions_that_gets_the_tokens_is_no_second_embedding(foreign) -> None:
    roles = roles_of(foreign(places="learned"))

    assert roles.embedding == "trunk.table"


@pytest.mark.exhaustive
def test_a_second_embedding_of_the_tokens_is_one_of_the_layers_where_each_gets_its_part() -> None:
    subject = resolve("gemma4_text")
    instance = build(subject, tiny_config(subject), attention="eager")
    trace = record(instance, make_tokens(instance, batch=2, length=12, seed=0))
    roles = find_roles(instance.model, trace)

    assert roles.layer_embedding == "model.embed_tokens_per_layer"
    assert roles.layers[1].layer_input == (
        "model.layers.1.per_layer_input_gate",
        "model.layers.1.per_layer_projection",
    )
    block = roles.layers[1].block
    calls = {**trace.calls, block: (replace(trace.calls[block][0], inputs={}),)}
    with pytest.raises(UnsupportedError, match="further embeddings of the tokens"):
        find_roles(instance.model, replace(trace, calls=calls))
