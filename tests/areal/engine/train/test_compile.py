"""Compiled blocks of a process that is alone compute what they compute as they are."""

from __future__ import annotations

import pytest
import torch

from areal.api import ConfigError, ModelError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config

MIXTURE = {
    "model_type": "qwen3_moe", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_steps_and_scores_are_equal(make_engine, make_batch, policy_loss, checkpointing):
    from torch._dynamo.utils import counters  # an import of seconds

    def run(**options):
        engine = make_engine(dtype="float32", max_tokens_per_micro_batch=16, **options)
        batches = [make_batch(seed=seed, lengths=(7, 9, 12, 5 + seed, 9)) for seed in range(3)]
        batches[1].tokens[:2, :3] = batches[1].tokens[0, :3].clone()
        stats = [engine.train_batch(batch, policy_loss(batch), with_entropy=True) for batch in batches]
        return engine, stats, engine.forward_logp(batches[0])

    plain, expected, scores = run(gradient_checkpointing=checkpointing)
    torch._dynamo.reset()
    counters.clear()
    compiled, found, compiled_scores = run(gradient_checkpointing=checkpointing, compile=True)
    # Not for every length anew: one graph for training and one for scoring, of each part of a block.
    assert 2 <= counters["frames"]["ok"] <= 16
    for one, other in zip(found, expected, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
    torch.testing.assert_close(compiled_scores, scores, rtol=0, atol=1e-5)
    # A first step of AdamW has the size of the rate wherever a gradient is not zero, so that signs of tiny ones show.
    for name, value in compiled.weights().items():
        torch.testing.assert_close(value, plain.weights()[name], rtol=0, atol=1e-4)


def test_blocks_whose_routers_are_given_their_choices_are_not_compiled():
    config = TrainEngineConfig(device="cpu", dtype="float32", compile=True, router_replay=True)
    with pytest.raises(ConfigError, match="router_replay changes what compiled blocks compute") as found:
        TrainingEngine(from_config(MIXTURE, seed=0), config=config)
    assert found.value.fix == "set actor.compile to false"


def test_models_of_transformers_are_not_compiled():
    from areal.engine.hf import loading

    llama = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 29, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    }  # fmt: skip
    model = loading.from_config(llama, dtype=torch.float32, seed=0)
    with pytest.raises(ModelError, match="blocks of a model of transformers are not compiled"):
        TrainingEngine(model, config=TrainEngineConfig(device="cpu", dtype="float32", compile=True))
