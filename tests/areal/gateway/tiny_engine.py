"""A tiny model that writes in the plain template, and the embedded engine around it, for tests of sessions."""

from __future__ import annotations

import templates
from serving import renderer_of

from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.models import from_config

CONTEXT = 2048
KEPT = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


def make_model():
    tokenizer = renderer_of(templates.PLAIN)[1]
    return from_config(
        {
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "initializer_range": 0.3,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "eos_token_id": tokenizer.eos_token_id,
        },
        seed=1,
    )


def embedded(model, **options):
    tokenizer = renderer_of(templates.PLAIN)[1]
    config = EmbeddedEngineConfig(max_batch_size=16, max_seq_len=CONTEXT)
    return EmbeddedEngine(model, config=config, eos_token_id=tokenizer.eos_token_id, tokenizer=tokenizer, **options)
