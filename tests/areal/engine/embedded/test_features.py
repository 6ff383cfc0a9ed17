"""What the engine records is what a full forward says, whatever a family's attention and positions are made of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from areal.api import ModelError
from areal.engine.config import EmbeddedEngineConfig
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import LayerNorm, RMSNorm
from areal.models.blocks.positions import LearnedPositions, SinusoidalPositions
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LENGTH = 32, 6, 2, 8, 160
ARGS = SimpleNamespace(
    vocab_size=32,
    hidden_size=HIDDEN,
    num_layers=2,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=LENGTH,
    tie_word_embeddings=True,
)


def attention(**options):
    return lambda layer: SelfAttention(layer, ARGS, **options)


def latent(layer):
    return LatentAttention(
        layer,
        ARGS,
        query_rank=12,
        kv_rank=10,
        nope_dim=6,
        rope_dim=4,
        value_dim=7,
        query_norm=RMSNorm(12, 1e-6),
        kv_norm=RMSNorm(10, 1e-6),
        scale=10**-0.5,
        window=9 if layer else None,
    )


def norms(**options):
    return {"query_norm": RMSNorm(HEAD_DIM, 1e-3), "key_norm": RMSNorm(HEAD_DIM, 1e-3), **options}


PLAIN = Rotary(RotaryArgs(), HEAD_DIM)
# Attention of a layer; rotations of both layers; absolute positions.
FEATURES = {
    "linear biases": (attention(alibi=0.7), (None, None), None),
    "linear biases, softcap": (attention(alibi=0.7, softcap=2.0), (None, None), None),
    "chunks": (attention(chunk=6), (PLAIN, PLAIN), None),
    "chunks and a layer without rotation": (
        lambda layer: SelfAttention(layer, ARGS, chunk=None if layer else 6),
        (PLAIN, None),
        None,
    ),
    "window, sinks, softcap, clip": (
        attention(window=7, sinks=True, softcap=3.0, clip=0.9, scale=0.5),
        (PLAIN, PLAIN),
        None,
    ),
    "gate per head, wide values": (attention(gate="headwise", value_dim=11), (PLAIN, PLAIN), None),
    "gate per element, narrow values": (attention(gate="elementwise", value_dim=5), (PLAIN, PLAIN), None),
    "heads taken from each other": (attention(differential_eps=1e-3), (PLAIN, PLAIN), None),
    "norms after rotation": (
        lambda layer: SelfAttention(layer, ARGS, **norms(norm_after_rotary=True)),
        (PLAIN,) * 2,
        None,
    ),
    "norm of each head": (
        lambda layer: SelfAttention(
            layer, ARGS, query_norm=LayerNorm((HEADS, HEAD_DIM), 1e-3), key_norm=LayerNorm((KV_HEADS, HEAD_DIM), 1e-3)
        ),
        (PLAIN, PLAIN),
        None,
    ),
    "two rotations, partial and interleaved": (
        attention(),
        (Rotary(RotaryArgs(), 4), Rotary(RotaryArgs(theta=50.0), HEAD_DIM, interleaved=True)),
        None,
    ),
    "latent": (latent, (Rotary(RotaryArgs(), 4, interleaved=True),) * 2, None),
    "learned positions": (attention(), (None, None), lambda: LearnedPositions(LENGTH, HIDDEN, offset=2)),
    "sinusoidal positions": (attention(), (None, None), lambda: SinusoidalPositions(LENGTH, HIDDEN, offset=2)),
}


def model_of(layer_attention, rotaries, positions):
    layers = [
        PreNormBlock(
            input_layernorm=RMSNorm(HIDDEN, 1e-6),
            self_attn=layer_attention(layer),
            post_attention_layernorm=RMSNorm(HIDDEN, 1e-6),
            mlp=GatedMLP(HIDDEN, 48),
        )
        for layer in range(2)
    ]
    model = DecoderModel(
        ARGS,
        layers=layers,
        norm=RMSNorm(HIDDEN, 1e-6),
        rotary=rotaries,
        embed_positions=None if positions is None else positions(),
    )
    # Far from uniform predictions, so that a wrong mask, position or weight shows.
    initialize(model, std=0.3, seed=0)
    return model


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FEATURES)
def test_step_by_step_equals_a_full_forward(world, name):
    model = model_of(*FEATURES[name])
    engine = world.build_engine(model, eos=None, batch=4)  # fewer slots than requests: late joiners and compaction
    lengths = (1, 2, 7, 30, 3, 64, 5, 5)
    requests = [world.request(length, seed=seed, new=20) for seed, length in enumerate(lengths)]
    # A group, one of which comes while another runs: its prompt is copied, or its last token decoded.
    requests += [world.request(12, prompt_seed=3, seed=seed, new=9 + seed) for seed in range(6)]
    for response in world.generate(engine, requests):
        assert world.deviation(model, response) < 1e-5


LONGROPE = RotaryArgs(
    rotary_type="longrope",
    parameters={
        "short_factor": [1.0, 1.2, 1.5, 2.0],
        "long_factor": [2.0, 3.0, 5.0, 8.0],
        "original_max_position_embeddings": 40,
        "factor": 4.0,
    },
)


def test_no_sequence_may_outgrow_the_length_that_its_cached_keys_are_good_for(world):
    model = model_of(attention(), (Rotary(LONGROPE, HEAD_DIM), None), None)
    assert model.length_limit == 40
    with pytest.raises(
        ModelError, match=r"sequences of more than 40 tokens anew.*max_seq_len is 41, set it to at most 40"
    ):
        world.build_engine(model, config=EmbeddedEngineConfig(max_batch_size=4, max_seq_len=41))
    engine = world.build_engine(model, eos=None, config=EmbeddedEngineConfig(max_batch_size=4, max_seq_len=40))
    requests = [world.request(length, seed=length, new=60) for length in (1, 20, 33, 38)]
    responses = world.generate(engine, requests)
    assert {len(response.input_tokens + response.output_tokens) for response in responses} == {40}
    assert max(world.deviation(model, response) for response in responses) < 1e-5


def test_absolute_positions_end_where_the_model_does():
    model = model_of(*FEATURES["learned positions"])
    bounds = torch.tensor([0, LENGTH + 1])
    with pytest.raises(ModelError, match=f"position {LENGTH} is beyond"):
        model(torch.zeros(LENGTH + 1, dtype=torch.int64), torch.arange(LENGTH + 1), bounds, LENGTH + 1)
