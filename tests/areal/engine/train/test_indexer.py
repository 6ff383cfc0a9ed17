"""What chooses tokens is frozen while the rest is trained, and sampled log-probabilities are the trainer's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from areal.api import GenerationConfig, LossOutput, ModelRequest, PaddedBatch, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig, LoraConfig, TrainEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.packing import lay_out
from areal.engine.train.passes import predicted_tokens
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.indexer import TokenIndexer
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize

VOCAB = 31
ARGS = SimpleNamespace(
    vocab_size=VOCAB, hidden_size=24, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=6,
    max_position_embeddings=128, tie_word_embeddings=True, model_type="indexed",
)  # fmt: skip


def model_of():
    layers = []
    for number in range(2):
        indexer = TokenIndexer(24, 10, num_heads=8, head_dim=8, top_k=5, norm_eps=1e-6, rope_dim=4, interleaved=False)
        attention = LatentAttention(
            number, ARGS, query_rank=10, kv_rank=12, nope_dim=6, rope_dim=4, value_dim=6, scale=0.3,
            query_norm=RMSNorm(10, 1e-6), kv_norm=RMSNorm(12, 1e-6),
            indexer=None if number else indexer, shares_selection=bool(number),
        )  # fmt: skip
        block = PreNormBlock(
            input_layernorm=RMSNorm(24, 1e-6),
            self_attn=attention,
            post_attention_layernorm=RMSNorm(24, 1e-6),
            mlp=GatedMLP(24, 40),
        )
        layers.append(block)
    model = DecoderModel(ARGS, layers=layers, norm=RMSNorm(24, 1e-6), rotary=Rotary(RotaryArgs(), 4, interleaved=True))
    initialize(model, std=0.15, seed=3)
    return model


def sample(engine, groups):
    """Groups of (prompt length, members): a batch of what the engine sampled, with its log-probabilities."""
    requests = []
    for number, (length, members) in enumerate(groups):
        ids = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(number)).tolist()
        requests += [
            (number, ModelRequest(input_ids=ids, gconfig=GenerationConfig(max_new_tokens=9 + seed), seed=seed))
            for seed in range(members)
        ]

    async def main():
        return await asyncio.gather(*(engine.agenerate(request) for _, request in requests))

    responses = asyncio.run(main())
    rows = [response.input_tokens + response.output_tokens for response in responses]
    batch = {name: torch.zeros(len(rows), max(map(len, rows))) for name in ("loss_mask", "logp_behave")}
    tokens = torch.zeros(batch["loss_mask"].shape, dtype=torch.int64)
    for row, response in enumerate(responses):
        start, end = len(response.input_tokens), len(rows[row])
        tokens[row, :end] = torch.tensor(rows[row])
        batch["loss_mask"][row, start:end] = 1
        batch["logp_behave"][row, start:end] = torch.tensor(response.output_logprobs)
    return PaddedBatch(
        tokens=tokens,
        lengths=torch.tensor([len(row) for row in rows]),
        versions=torch.where(batch["loss_mask"] > 0, 0, -1),
        turn_ids=torch.where(batch["loss_mask"] > 0, 0, -1),
        rewards=torch.zeros(len(rows)),
        groups=torch.tensor([number for number, _ in requests]),
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        **batch,
    )


def push_up(scores, entropy, part):
    """Make what was sampled likelier."""
    return LossOutput(loss=-(scores * part.loss_mask[:, : scores.shape[1]]).sum() / 50, metrics={})


def difference(trainer, batch):
    """Largest one between what was recorded while sampling and what the trainer computes."""
    found = trainer.forward_logp(batch, only_masked=True)
    return float(((found - batch.logp_behave) * batch.loss_mask).abs().max())


def test_what_is_sampled_is_what_is_trained_before_and_after_an_update():
    trainer = TrainingEngine(model_of(), config=TrainEngineConfig(lr=3e-3, device="cpu", dtype="float32"))
    config = EmbeddedEngineConfig(max_batch_size=5)  # groups that do not fit at once
    engine = EmbeddedEngine(model_of(), config=config, eos_token_id=None)
    groups = [(12, 4), (20, 3), (1, 2), (33, 1)]
    batch = sample(engine, groups)
    layout = lay_out(batch, predicted_tokens(batch, only_masked=True))
    assert layout.attention is not None, "prompts are shared"
    assert difference(trainer, batch) < 1e-5
    before = trainer.forward_logp(batch, only_masked=True)
    trainer.train_batch(batch, push_up)
    assert trainer.forward_logp(batch, only_masked=True).sum() > before.sum() + 1
    engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=trainer.weights()))
    assert difference(trainer, sample(engine, groups)) < 1e-5
    assert difference(trainer, batch) > 1e-2


@pytest.mark.sample(2)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_indexer_is_frozen_and_all_else_is_trained(optimizer, dtype):
    model = model_of()
    config = TrainEngineConfig(lr=3e-2, weight_decay=0.5, optimizer=optimizer, device="cpu", dtype=dtype)
    trainer = TrainingEngine(model, config=config)
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    own = {name for name in before if ".indexer." in name}
    assert len(own) == 5
    assert own.isdisjoint(trainer.optimizer.parameters)
    batch = sample(EmbeddedEngine(model_of(), config=EmbeddedEngineConfig(), eos_token_id=None), [(12, 3), (20, 2)])
    trainer.train_batch(batch, push_up)
    kept = {name for name, tensor in trainer.weights().items() if torch.equal(tensor, before[name])}
    assert kept == own


@pytest.mark.exhaustive
def test_adapters_leave_an_indexer_alone():
    config = TrainEngineConfig(lr=3e-2, device="cpu", dtype="float32", lora=LoraConfig(rank=2))
    trainer = TrainingEngine(model_of(), config=config)
    assert trainer.optimizer.parameters
    assert not [name for name in trainer.optimizer.parameters if "indexer" in name]
