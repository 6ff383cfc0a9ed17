"""A hybrid is trained on what it sampled: log-probabilities agree, also where prompts are shared, and rewards rise."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from areal.api import GenerationConfig, LossOutput, ModelRequest, PaddedBatch, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.optimizer import is_matrix, is_turned, token_parameters
from areal.engine.train.packing import lay_out
from areal.engine.train.passes import predicted_tokens
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.rotary import Rotary
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize

VOCAB = 31
ARGS = SimpleNamespace(
    vocab_size=VOCAB, hidden_size=24, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=6,
    max_position_embeddings=128, tie_word_embeddings=True, model_type="hybrid",
)  # fmt: skip
DELTA = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 6, "value_dim": 6, "kernel_size": 4, "norm_eps": 1e-6}
MIXERS = {
    "short convolution": lambda layer: ShortConvolution(layer, ARGS, kernel_size=3, bias=True),
    "delta": lambda layer: GatedDelta(layer, ARGS, **DELTA, chunk=16),
    "delta by channel": lambda layer: GatedDelta(layer, ARGS, **DELTA, by_channel=True, chunk=16),
    "mamba-1": lambda layer: Mamba1(
        layer, ARGS, inner_size=40, state_size=6, step_rank=3, kernel_size=4, norm_eps=1e-6, norm_weights=True, chunk=16
    ),
    "mamba": lambda layer: Mamba2(
        layer, ARGS, num_heads=4, head_dim=6, num_groups=2, state_size=6, kernel_size=4, norm_eps=1e-6, chunk=16
    ),
    "lightning": lambda layer: LightningAttention(
        layer, ARGS, num_heads=4, head_dim=6, num_layers=3, table_size=8, norm_eps=1e-6, chunk=16
    ),
    "rg-lru": lambda layer: RGLRU(
        layer, ARGS, width=30, num_blocks=3, kernel_size=4, activation="gelu_pytorch_tanh", chunk=16
    ),
    "mamba beside attention": lambda layer: SelfAttention(layer, ARGS),
}
MATRICES = ("z", "x", "step", "b", "c", "dt", "o")


def hybrid(name):
    mixers = MIXERS[name](0), SelfAttention(1, ARGS), MIXERS[name](2)
    layers = [
        PreNormBlock(
            input_layernorm=RMSNorm(24, 1e-6),
            self_attn=mixer,
            post_attention_layernorm=RMSNorm(24, 1e-6),
            mlp=GatedMLP(24, 40),
            **({"beside": MIXERS["mamba"](layer)} if name == "mamba beside attention" else {}),
        )
        for layer, mixer in enumerate(mixers)
    ]
    rotary = Rotary(RotaryArgs(), 6)
    model = DecoderModel(ARGS, layers=layers, norm=RMSNorm(24, 1e-6), rotary=(None, rotary, None))
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
    width = max(map(len, rows))
    batch = {name: torch.zeros(len(rows), width) for name in ("loss_mask", "logp_behave")}
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
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


def difference(trainer, batch):
    """Largest one between what was recorded while sampling and what the trainer computes."""
    found = trainer.forward_logp(batch, only_masked=True)
    return float(((found - batch.logp_behave) * batch.loss_mask).abs().max())


def push_up(scores, entropy, part):
    """Make what was sampled likelier."""
    return LossOutput(loss=-(scores * part.loss_mask[:, : scores.shape[1]]).sum() / 50, metrics={})


@pytest.mark.parametrize(
    "name", [name if name == "delta" else pytest.param(name, marks=pytest.mark.exhaustive) for name in MIXERS]
)
def test_what_is_sampled_is_what_is_trained_before_and_after_an_update(name):
    trainer = TrainingEngine(hybrid(name), config=TrainEngineConfig(lr=3e-3, device="cpu", dtype="float32"))
    config = EmbeddedEngineConfig(max_batch_size=5)  # groups that do not fit at once
    engine = EmbeddedEngine(hybrid(name), config=config, eos_token_id=None)
    groups = [(12, 4), (20, 3), (1, 2), (33, 1)]
    batch = sample(engine, groups)
    layout = lay_out(batch, predicted_tokens(batch, only_masked=True))
    assert layout.attention is not None, "prompts are shared"
    assert difference(trainer, batch) < 1e-5
    before = trainer.forward_logp(batch, only_masked=True)
    trainer.train_batch(batch, push_up)
    after = trainer.forward_logp(batch, only_masked=True)
    assert after.sum() > before.sum() + 1
    engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=trainer.weights()))
    newer = sample(engine, groups)
    assert difference(trainer, newer) < 1e-5
    assert difference(trainer, batch) > 1e-2


@pytest.mark.parametrize(("name", "parts"), [("mamba", ("z", "x", "b", "c", "dt", "o")), ("mamba-1", MATRICES)])
def test_muon_leaves_filters_and_nothing_decays_the_parameters_of_decays(name, parts):
    model = hybrid(name)
    tokens = token_parameters(model)
    named = {name: parameter for name, parameter in model.named_parameters() if "layers.0.self_attn" in name}
    turned = {name.split(".", 3)[3] for name, parameter in named.items() if is_turned(name, parameter, tokens)}
    assert turned == {f"{part}_proj.weight" for part in parts}
    kept = {name.split(".", 3)[3] for name, parameter in named.items() if not is_matrix(name, parameter)}
    assert {"A_log", "dt_bias", "D"} < kept
    assert any(each.endswith("norm.weight") for each in kept)
