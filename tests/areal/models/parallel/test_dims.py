"""Which arrangements of ranks exist, what follows from them, and what is said of the others."""

import pytest

from areal.api import ConfigError, ModelError
from areal.models import from_config
from areal.models.parallel import ParallelDims, ParallelPlan
from areal.models.parallel.checks import check_model
from areal.models.parallel.plan import Shard

CONFIG = {
    "model_type": "qwen3_moe", "vocab_size": 30, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 1,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 9, "max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "world"),
    [({}, 1), ({"dp_shard": 4}, 4), ({"pp": 2, "dp_replicate": 2, "dp_shard": 3, "cp": 5, "tp": 7}, 420),
     ({"dp_shard": 4, "ep": 2}, 4), ({"dp_shard": 2, "tp": 2, "ep": 4}, 4)],
)  # fmt: skip
def test_experts_do_not_count_in_the_number_of_processes(sizes, world):
    dims = ParallelDims(**sizes)
    assert dims.world_size == world
    assert dims.is_single == (world == 1)


@pytest.mark.parametrize(
    ("sizes", "shards", "holders"),
    [({"dp_shard": 8, "ep": 4}, 4, 2), ({"dp_shard": 2, "cp": 2, "ep": 4}, 2, 1),
     ({"dp_shard": 4, "tp": 2, "ep": 4}, 2, 2), ({"dp_shard": 4, "tp": 2, "ep": 4, "etp": 2}, 4, 1)],
)  # fmt: skip
def test_experts_are_split_over_ranks_of_other_dimensions(sizes, shards, holders):
    dims = ParallelDims(**sizes)
    assert (dims.expert_data_ranks, dims.ranks_per_expert_shard) == (shards, holders)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 0}, "parallel.tp is 0, expected at least 1"),
        ({"dp_shard": -2}, "parallel.dp_shard is -2"),
        ({"tp": 4, "etp": 2}, "parallel.etp is 2, expected 1 or tp"),
        ({"tp": 2, "etp": 2}, "leave etp at 1"),
        ({"dp_shard": 2, "ep": 4}, "divisor of dp_shard"),
        ({"dp_shard": 4, "tp": 2, "ep": 3}, "multiple of cp \\* tp"),
    ],
)
def test_arrangements_that_do_not_exist_are_refused_with_the_reason(sizes, message):
    with pytest.raises(ConfigError, match=message):
        ParallelDims(**sizes)


def test_the_rest_of_the_processes_shard_data():
    assert ParallelDims(dp_shard=-1, tp=2).resolved(8) == ParallelDims(dp_shard=4, tp=2)
    with pytest.raises(ConfigError, match="need 6 processes and there are 8"):
        ParallelDims(dp_shard=-1, tp=3).resolved(8)
    with pytest.raises(ConfigError, match="dp_shard is -1"):
        _ = ParallelDims(dp_shard=-1).world_size


def test_a_plan_that_splits_nothing_changes_nothing():
    assert not ParallelPlan().changes_anything
    assert ParallelPlan(activation_checkpointing=True).changes_anything


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 4}, "layers.*.self_attn has 6 heads.*3 key-value heads.*gate_proj has 9 features"),
        ({"tp": 2}, "has 9 features to split"),
        ({"cp": 4}, "cp=4: layers.*.self_attn has 6 heads"),
        ({"dp_shard": 4, "ep": 4}, "has 6 experts; ep has to divide them"),
        ({"tp": 2, "dp_shard": 2, "ep": 2, "etp": 2}, "has 9 features"),
    ],
)
def test_a_model_that_does_not_divide_is_refused_naming_what_and_by_how_much(sizes, message):
    table = {
        "layers.*.self_attn.q_proj": Shard.COLUMN, "layers.*.mlp.experts.gate_proj": Shard.EXPERT_COLUMN,
    }  # fmt: skip
    with pytest.raises(ModelError, match=message):
        check_model(from_config(CONFIG), ParallelDims(**sizes), table)


def test_experts_that_are_split_by_number_need_no_divisible_width():
    table = {"layers.*.mlp.experts.gate_proj": Shard.EXPERT_COLUMN}
    check_model(from_config(CONFIG), ParallelDims(tp=3, ep=3), table)
    check_model(from_config(CONFIG), ParallelDims(dp_shard=2, cp=3, ep=6), table)


def test_an_expert_dimension_needs_experts():
    dense = {**CONFIG, "model_type": "qwen2"}
    for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "head_dim"):
        dense.pop(name)
    with pytest.raises(ModelError, match="the model has no experts"):
        check_model(from_config(dense), ParallelDims(dp_shard=2, ep=2), {})
