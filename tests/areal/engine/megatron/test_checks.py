"""What is refused before anything starts: settings, models, machines without megatron or without its devices."""

import importlib.util

import pytest
import torch

from areal.api import ConfigError, EngineError, ModelError
from areal.engine.config import ArchonConfig, LoraConfig, MegatronConfig, TrainEngineConfig
from areal.engine.megatron.checks import check_config, check_model, config_problems
from areal.engine.registry import TRAINING_ENGINES, training_engine
from areal.models.blocks.mlp import gelu_tanh
from areal.models.blocks.norms import LayerNorm, RMSNorm
from areal.models.loading import blank_model
from areal.models.parallel.dims import ParallelDims
from areal.trainer.config import ModelConfig, SFTConfig
from areal.trainer.configuration.validation import find_problems

QWEN3 = {
    "model_type": "qwen3", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "max_position_embeddings": 8,
}  # fmt: skip


def problems(config=None, **changes):
    found = config_problems(config or TrainEngineConfig(), ArchonConfig(engine="megatron", **changes))
    return {key: message for key, message in found.items() if key != "archon.engine"}


def test_tensor_pipeline_and_copies_for_data_are_not_refused():
    assert problems(parallel=ParallelDims(tp=2, pp=4, dp_replicate=8)) == {}
    config = TrainEngineConfig(optimizer="muon", offload_optimizer=True, gradient_checkpointing=True, dtype="bfloat16")
    assert problems(config) == {}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("archon.parallel.cp", {"parallel": ParallelDims(cp=2)}),
        ("archon.parallel.ep", {"parallel": ParallelDims(dp_shard=2, ep=2)}),
        ("archon.parallel.etp", {"parallel": ParallelDims(dp_shard=2, tp=2, ep=2, etp=2)}),
        ("archon.parallel.dp_shard", {"parallel": ParallelDims(dp_shard=2)}),
        ("archon.parallel.dp_shard", {"parallel": ParallelDims(dp_shard=-1)}),
        ("archon.sequence_parallel", {"sequence_parallel": True}),
        ("archon.offload_parameters", {"offload_parameters": True}),
        ("archon.pp_schedule", {"pp_schedule": "GPipe"}),
        ("archon.megatron.transformer_engine", {"megatron": MegatronConfig(transformer_engine=True)}),
        ("actor.compile", {"config": TrainEngineConfig(compile=True)}),
        ("actor.lora", {"config": TrainEngineConfig(lora=LoraConfig())}),
    ],
)
def test_each_setting_that_is_not_there_is_refused_by_name(key, changes):
    message, fix = problems(**changes)[key]
    assert message.startswith("is ")
    assert fix


def test_all_contradictions_are_listed_together_with_ways_out():
    archon = ArchonConfig(engine="megatron", parallel=ParallelDims(cp=2), sequence_parallel=True)
    with pytest.raises(
        ConfigError, match=r"archon\.parallel\.cp is 2;.*archon\.sequence_parallel is true;.*critic is a"
    ) as found:
        check_config(TrainEngineConfig(), archon, is_critic=True)
    assert "set archon.engine to native" in found.value.fix


@pytest.mark.skipif(importlib.util.find_spec("megatron") is not None, reason="megatron-core is installed here")
def test_a_run_is_refused_with_the_command_that_installs_megatron():
    config = SFTConfig(
        model=ModelConfig(init=QWEN3, implementation="transformers"),
        archon=ArchonConfig(engine="megatron", parallel=ParallelDims(cp=2)),
    )
    found = {problem.key: problem.message for problem in find_problems(config)}
    assert "pip install 'areal[megatron]'" in found["archon.engine"]
    assert "context parallelism" in found["archon.parallel.cp"]
    assert "write native" in found["model.implementation"]


def test_the_engine_is_an_entry_of_a_table():
    assert {name: training_engine(ArchonConfig(engine=name)).__name__ for name in TRAINING_ENGINES} == {
        "megatron": "MegatronEngine",
        "native": "TrainingEngine",
    }
    assert training_engine(None).__name__ == "TrainingEngine"


def said_of(change, dims=None, **content):
    model = blank_model({**QWEN3, **content})
    change(model)
    try:
        check_model(model, dims or ParallelDims())
    except ModelError as error:
        return str(error)
    return ""


def setting(path, value):
    def change(model):
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, value)

    return change


def test_dense_decoders_are_recognised_by_their_layers():
    for content in ({}, {"tie_word_embeddings": True}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear",
                                                                            "factor": 2.0}}):  # fmt: skip
        assert said_of(lambda model: None, **content) == ""
    assert said_of(lambda model: None, dims=ParallelDims(tp=2, pp=2)) == ""


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("layers.1.self_attn.window", 4, "attention with window"),
        ("layers.1.self_attn.softcap", 30.0, "attention with softcap"),
        ("layers.1.self_attn.sinks", torch.zeros(4), "attention with sinks"),
        ("layers.0.self_attn.scale", 1.0, "a scale or a value size"),
        ("layers.0.self_attn.norm_after_rotary", True, "after the rotation"),
        ("layers.0.self_attn.k_norm", None, "queries or keys alone"),
        ("layers.0.self_attn.o_proj", torch.nn.Linear(8, 8), "bias of the attention's output"),
        ("layers.0.self_attn.q_proj", torch.nn.Linear(8, 8), "some of query, key and value"),
        ("layers.1.mlp.activation", gelu_tanh, "activation other than silu"),
        ("layers.0.self_attn.value_scale", 0.7, "a factor on values"),
        ("layers.0.self_attn.output_norm", RMSNorm(8, 1e-6), "attention with output_norm"),
        ("layers.1.post_feedforward_layernorm", RMSNorm(8, 1e-6), "norm of what feed-forward layers give"),
        ("layers.1.mlp.inner_norm", RMSNorm(8, 1e-6), "a clamp, an offset or a norm"),
        ("layers.1.mlp.up_offset", 1.0, "a clamp, an offset or a norm"),
        ("layers.1.mlp", torch.nn.Identity(), "feed-forward layers of type Identity"),
        ("layers.1.residual_multiplier", 0.5, "wired differently"),
        ("layers.0.input_layernorm", RMSNorm(8, 1e-6, offset=1.0), "other than a plain RMS norm"),
        ("norm", LayerNorm(8, 1e-6), "norm other than a plain RMS norm"),
        ("norm", RMSNorm(8, 1e-3), "different eps"),
        ("embedding_multiplier", 2.0, "multipliers of embedding"),
        ("logit_softcap", 30.0, "logit_softcap"),
        ("rotaries", (None, None), "positions that differ by layer"),
    ],
)
def test_what_megatron_would_compute_otherwise_is_refused_by_name(path, value, expected):
    assert expected in said_of(setting(path, value))


def test_longrope_and_yarn_are_refused_for_what_they_do():
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4}
    assert "scale queries or keys" in said_of(lambda model: None, rope_parameters=yarn)
    long = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0], "long_factor": [2.0],
            "original_max_position_embeddings": 4}  # fmt: skip
    assert "length of a document" in said_of(lambda model: None, rope_parameters=long)


def test_sizes_that_do_not_divide_are_listed_together():
    said = said_of(lambda model: None, dims=ParallelDims(tp=4, pp=3), intermediate_size=10)
    for part in ("tp=4 does not divide 2 key-value heads", "intermediate_size 10", "pp=3 does not divide 2 layers"):
        assert part in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_process_without_a_cuda_device_is_told_so():
    from areal.engine.megatron.building import device_of_megatron

    with pytest.raises(EngineError, match="megatron-core computes on CUDA devices") as found:
        device_of_megatron()
    assert "native" in found.value.fix
