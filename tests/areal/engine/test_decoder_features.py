"""Both engines see the logits that a model means: scaled, bounded, biased, and routed by a buffer no step moves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from areal.api import GenerationConfig, LossOutput, ModelRequest, PaddedBatch, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.train.engine import TrainingEngine
from areal.models.loading import initialize
from areal.porting import reference
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
    RouterSpec,
)

VOCAB = 32
RMS = NormSpec(kind="rms", eps=1e-5)
HEADS = AttentionSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    value_dim=8,
    scale=0.3,
    query_norm=RMS,
    key_norm=RMS,
    norm_scope="each_head",
)
NORMS = dict.fromkeys(reference.BLOCK_NORMS["pre"], RMS)
AROUND = dict.fromkeys(reference.BLOCK_NORMS["sandwich"], RMS)
EXPERT = MlpSpec(gated=True, activation="silu", intermediate_size=24, bias=True, output_bias=True)
MIXTURE = MoeSpec(
    router=RouterSpec(
        num_experts=8, top_k=2, score="sigmoid", order="score_first", selection_bias=True, normalize=True
    ),
    experts=EXPERT,
)
SPEC = ArchitectureSpec(
    vocab_size=VOCAB,
    hidden_size=32,
    layers=(
        LayerSpec(block="pre", norms=NORMS, attention=HEADS, feed_forward=MIXTURE, rotary=0, window=6),
        LayerSpec(block="pre", norms=NORMS, attention=HEADS, feed_forward=EXPERT, rotary=1, residual_multiplier=0.7),
        LayerSpec(block="sandwich", norms=AROUND, attention=HEADS, feed_forward=MIXTURE, rotary=2, counted_sums=True),
    ),
    final_norm=RMS,
    tied=True,
    rotaries=(
        RotarySpec(dim=8, theta=100.0),
        RotarySpec(dim=4, theta=50.0, interleaved=True, query_growth=0.4, growth_length=3),
        RotarySpec(dim=0, theta=1.0, query_growth=0.7, growth_length=3, growth_shift=1, growth_power=True),
    ),
    embedding_multiplier=2.0,
    positions=PositionSpec(kind="learned", num_positions=64),
    embedding_norm=RMS,
    head_bias=True,
    logit_multiplier=0.5,
    logit_softcap=2.0,
)


@pytest.fixture
def model():
    model = reference.build(SPEC)
    initialize(model, std=0.3, seed=0)
    model.args = SimpleNamespace(vocab_size=VOCAB, max_position_embeddings=64)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if name.endswith("bias"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


def logp(model, tokens):
    """Log-probabilities [T, vocab] by the definition of the model's head, not by its `project`."""
    length = len(tokens)
    with torch.no_grad():
        hidden = model.hidden(tokens, torch.arange(length), torch.tensor([0, length]), length)
        raw = (hidden @ model.embed_tokens.weight.T + model.lm_head.bias) * 0.5
        return (2.0 * torch.tanh(raw / 2.0)).log_softmax(-1)


def make_batch(rows=3, width=12):
    tokens = torch.randint(0, VOCAB, (rows, width), generator=torch.Generator().manual_seed(3))
    zeros = torch.zeros(rows, width)
    mask = (torch.arange(width) > 2).float().expand(rows, width).clone()
    return PaddedBatch(
        tokens=tokens,
        lengths=torch.full((rows,), width),
        loss_mask=mask,
        logp_behave=zeros,
        versions=torch.where(mask > 0, 0, -1),
        turn_ids=torch.where(mask > 0, 0, -1),
        rewards=torch.zeros(rows),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
        advantages=zeros,
        returns=zeros,
    )


def negative_logp(logp_SL, _, batch):
    return LossOutput(loss=-(logp_SL * batch.loss_mask).sum() / batch.loss_mask.sum(), metrics={})


def generate(engine, requests):
    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(engine.agenerate, requests)), timeout=60)

    return asyncio.run(main())


def assert_generates_what_the_model_says(engine, model):
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in (1, 9, 4)]
    config = GenerationConfig(max_new_tokens=12)
    requests = [ModelRequest(input_ids=ids, gconfig=config, seed=i) for i, ids in enumerate(prompts)]
    for response in generate(engine, requests):
        tokens = torch.tensor(response.input_tokens + response.output_tokens)
        expected = logp(model, tokens)[len(response.input_tokens) - 1 : -1]
        chosen = expected.gather(1, torch.tensor(response.output_tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(response.output_logprobs), chosen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [2, 1000])
def test_training_scores_tokens_under_the_scaled_and_bounded_logits(model, chunk):
    engine = TrainingEngine(
        model, config=TrainEngineConfig(lr=1e-2, dtype="float32", device="cpu", logprob_chunk_size=chunk)
    )
    batch = make_batch()
    found = engine.forward_logp(batch)
    for row, tokens in enumerate(batch.tokens):
        expected = logp(model, tokens)[:-1].gather(1, tokens[1:, None])[:, 0]
        torch.testing.assert_close(found[row, 1:], expected, rtol=1e-4, atol=1e-5)


def test_generation_records_the_scaled_and_bounded_logits(model):
    engine = EmbeddedEngine(model, config=EmbeddedEngineConfig(max_batch_size=4), eos_token_id=None)
    assert_generates_what_the_model_says(engine, model)


def test_a_step_trains_every_parameter_but_not_the_selection_bias_and_the_other_engine_follows(model):
    actor = TrainingEngine(model, config=TrainEngineConfig(lr=1e-2, dtype="float32", device="cpu", weight_decay=0.0))
    rollout = EmbeddedEngine(model, config=EmbeddedEngineConfig(max_batch_size=4), eos_token_id=None)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(3):
        stats = actor.train_batch(make_batch(), negative_logp)
        assert stats.stepped
    after = actor.weights()
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert before.keys() - moved == {f"layers.{layer}.mlp.router.selection_bias" for layer in (0, 2)}

    # Who balances experts between steps writes the buffer; the update carries it.
    after["layers.0.mlp.router.selection_bias"].copy_(torch.linspace(-2, 2, 8))
    rollout.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=after))
    assert_generates_what_the_model_says(rollout, model)


def test_the_state_of_training_holds_the_selection_bias(model):
    engine = TrainingEngine(model, config=TrainEngineConfig(lr=1e-2, dtype="bfloat16", device="cpu"))
    name = "layers.0.mlp.router.selection_bias"
    assert engine.weights()[name].dtype == torch.float32
    state = engine.state_dict()
    expected = engine.weights()[name].clone()
    engine.weights()[name].zero_()
    engine.load_state_dict(state)
    assert torch.equal(engine.weights()[name], expected)


def test_only_matrices_decay(model):
    """Norms with a weight per head and biases of stacked experts have two dimensions, but are no matrices."""
    engine = TrainingEngine(model, config=TrainEngineConfig(lr=1e-2, dtype="float32", device="cpu", weight_decay=0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def no_gradient(logp_SL, _, batch):
        return LossOutput(loss=0.0 * logp_SL.sum(), metrics={})

    engine.train_batch(make_batch(), no_gradient)
    decayed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert decayed
    assert not {name for name in decayed if name.endswith("bias") or "norm" in name}
    assert {"layers.0.mlp.experts.gate_proj", "layers.0.mlp.router.weight", "embed_tokens.weight"} <= decayed
