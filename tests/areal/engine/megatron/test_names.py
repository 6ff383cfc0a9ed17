"""The table from megatron's parameters to ours, and the rows of each rank, without megatron."""

import itertools

import pytest
import torch

from areal.api import ModelError
from areal.engine.megatron.names import TABLE, held, padded_vocabulary, split_dimensions
from areal.models.loading import blank_model

LOCAL = ("input_layernorm.weight", "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias",
         "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight", "self_attention.linear_proj.weight",
         "pre_mlp_layernorm.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight")  # fmt: skip


def only(name, **options):
    (found,) = held([name], **{"first_layer": 0, "is_tied": False, **options})
    return found


def parts_of_rank(ours, dimension, rank, tp):
    """What torch's own sharding gives a rank of each parameter of ours."""
    chunked = [tensor.chunk(tp, dimension) for tensor in ours]
    return [pieces[rank] if rank < len(pieces) else tensor[:0] for pieces, tensor in zip(chunked, ours, strict=True)]


@pytest.mark.parametrize(("heads", "groups", "tp"), [(4, 2, 1), (4, 2, 2), (8, 8, 4), (12, 4, 2), (6, 1, 1)])
def test_queries_keys_and_values_are_interleaved_by_group_on_every_rank(heads, groups, tp):
    size, hidden = 3, 5
    query = torch.arange(heads * size * hidden).reshape(-1, hidden).double()
    key = 1e4 + torch.arange(groups * size * hidden).reshape(-1, hidden).double()
    value = 2e4 + torch.arange(groups * size * hidden).reshape(-1, hidden).double()
    # megatron: for each group its query heads, its key, its value; ranks take runs of groups.
    share = heads // groups
    rows = []
    for group in range(groups):
        rows += [*query[group * share * size : (group + 1) * share * size]]
        rows += [*key[group * size : (group + 1) * size], *value[group * size : (group + 1) * size]]
    whole = torch.stack(rows)
    item = only("decoder.layers.1.self_attention.linear_qkv.weight", first_layer=3)
    assert item.ours == tuple(f"layers.4.self_attn.{name}_proj.weight" for name in "qkv")
    for rank in range(tp):
        parts = parts_of_rank([query, key, value], 0, rank, tp)
        fused = torch.full_like(whole.chunk(tp)[rank], -1)
        item.write(parts, fused, size)
        assert torch.equal(fused, whole.chunk(tp)[rank])
        back = item.read(fused, [part.shape for part in parts], size)
        assert all(map(torch.equal, back, parts))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_gate_lies_above_up_on_every_rank(tp):
    gate, up = torch.arange(48.0).reshape(8, 6), -torch.arange(48.0).reshape(8, 6)
    item = only("decoder.layers.0.mlp.linear_fc1.weight")
    for rank in range(tp):
        parts = parts_of_rank([gate, up], 0, rank, tp)
        fused = torch.empty(16 // tp, 6)
        item.write(parts, fused, 3)
        assert torch.equal(fused, torch.cat([gate.chunk(tp)[rank], up.chunk(tp)[rank]]))
        back = item.read(fused, [part.shape for part in parts], 3)
        assert all(map(torch.equal, back, parts))
        # No copies: what is written to ours is megatron's.
        assert {part.untyped_storage().data_ptr() for part in back} == {fused.untyped_storage().data_ptr()}


@pytest.mark.parametrize(("vocab_size", "tp"), list(itertools.product((5, 6, 8), (1, 2, 4))))
def test_shares_of_a_vocabulary_are_padded_with_zeros_that_nobody_reads(vocab_size, tp):
    table = torch.arange(1.0, 1 + 3 * vocab_size).reshape(vocab_size, 3)
    rows = padded_vocabulary(vocab_size, tp)
    assert rows % tp == 0
    assert vocab_size <= rows < vocab_size + tp
    padded = torch.zeros(rows, 3)
    padded[:vocab_size] = table
    item = only("embedding.word_embeddings.weight")
    for rank in range(tp):
        parts = parts_of_rank([table], 0, rank, tp)
        share = torch.full((rows // tp, 3), torch.nan)
        item.write(parts, share, 3)
        assert torch.equal(share, padded.chunk(tp)[rank])
        assert torch.equal(item.read(share, [parts[0].shape], 3)[0], parts[0])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("model_type", "absent"), [("qwen3", "linear_qkv.bias"), ("qwen2", "layernorm.weight")])
def test_all_parameters_of_dense_families_have_one_place(model_type, absent, tied):
    content = {"model_type": model_type, "vocab_size": 10, "hidden_size": 8, "intermediate_size": 12,
               "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
               "max_position_embeddings": 8, "tie_word_embeddings": tied}  # fmt: skip
    if model_type == "qwen2":
        del content["head_dim"]
        layer = [name for name in LOCAL if "q_layernorm" not in name and "k_layernorm" not in name]
    else:
        layer = [name for name in LOCAL if absent not in name]
    stages = [["embedding.word_embeddings.weight"], ["decoder.final_layernorm.weight", "output_layer.weight"]]
    ours = []
    for stage, names in enumerate(stages):
        names += [f"decoder.layers.{number}.{name}" for number in range(2) for name in layer]
        ours += [name for item in held(names, first_layer=2 * stage, is_tied=tied) for name in item.ours]
    expected = [*blank_model(content).state_dict()]
    assert sorted(ours) == sorted([*expected, "embed_tokens.weight"] if tied else expected)


def test_transformer_engine_keeps_norms_in_the_matrices_that_they_feed():
    fused = ["decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
             "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"]  # fmt: skip
    found = held(fused, first_layer=5, is_tied=False)
    assert [item.ours for item in found] == [
        ("layers.5.input_layernorm.weight",),
        ("layers.5.post_attention_layernorm.weight",),
    ]


def test_splits_are_those_of_our_own_families():
    from areal.models.qwen3.parallelize import TENSOR_PARALLEL

    dimensions = {"COLUMN": 0, "ROW": 1}
    own = {f"{name}.weight": dimensions[split.name] for name, split in TENSOR_PARALLEL.items()}
    split = {name: dimension for name, dimension in split_dimensions().items() if dimension is not None}
    assert {name: dimension for name, dimension in split.items() if not name.endswith("bias")} == own
    assert len({placed.row.on_disk for placed in TABLE}) == len(TABLE)


def test_unknown_parameters_are_listed():
    names = ["decoder.layers.0.mlp.router.weight", "decoder.layers.0.mlp.linear_fc2.weight", "mtp.weight"]
    with pytest.raises(ModelError, match=r"does not know: decoder\.layers\.0\.mlp\.router\.weight, mtp\.weight;"):
        held(names, first_layer=0, is_tied=False)
