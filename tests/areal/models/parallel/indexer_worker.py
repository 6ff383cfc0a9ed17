"""One rank of the tests of token indexers: a small model, split and not, compared over two optimizer steps."""

import argparse
import json
import sys
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from areal.api import BaseModelArgs, ModelSpec
from areal.engine.archon.equality.cases import EqualityCase
from areal.engine.archon.equality.comparison import compare
from areal.engine.config import LoraConfig
from areal.engine.train.processes import connected
from areal.models.adapter import TableAdapter
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.indexer import TokenIndexer
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.moe import Experts, MixtureOfExperts, Router
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize
from areal.models.parallel import ParallelDims, shard_model
from areal.models.parallel.plan import Shard
from areal.models.qwen3_moe.parallelize import TENSOR_PARALLEL as MIXTURE
from areal.models.registry import MODELS

TABLE = {
    **MIXTURE,
    "layers.*.self_attn.gate_proj": Shard.COLUMN,
    "layers.*.self_attn.kv_b_proj": Shard.COLUMN,
    "layers.*.self_attn.q_b_proj": Shard.COLUMN,
    "layers.*.mlp.down_proj": Shard.ROW,
    "layers.*.mlp.gate_proj": Shard.COLUMN,
    "layers.*.mlp.up_proj": Shard.COLUMN,
}
NAME = "indexed"


@dataclass(kw_only=True)
class Args(BaseModelArgs):
    initializer_range: float = 0.25

    @classmethod
    def from_hf_config(cls, config):
        raise NotImplementedError

    def to_hf_config(self):
        return {"model_type": self.model_type}


LORA = LoraConfig(rank=3, alpha=7)
WAYS = {
    2: [
        {"dp_shard": 2},
        {"dp_shard": 2, "ep": 2},
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "lora": LORA},
        {"cp": 2},
        {"cp": 2, "gradient_checkpointing": True},
        {"pp": 2},
        {"dp_replicate": 2, "gradient_checkpointing": True},
    ],
    4: [
        {"tp": 2, "cp": 2, "sequence_parallel": True},
        {"dp_shard": 2, "tp": 2, "gradient_checkpointing": True},
        {"cp": 4},
        {"dp_shard": 2, "ep": 2, "pp": 2},
    ],
}


def build(_):
    """Layers with an indexer, each followed by one that takes its choice over."""
    args = Args(
        model_type=NAME, vocab_size=64, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=8,
        max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    layers = []
    for number in range(4):
        indexer = TokenIndexer(
            32, 12, num_heads=9, head_dim=10, top_k=3, norm_eps=1e-6, rope_dim=4, interleaved=number == 2
        )
        attention = LatentAttention(
            number, args, query_rank=12, kv_rank=16, nope_dim=6, rope_dim=4, value_dim=8, scale=0.4,
            query_norm=RMSNorm(12, 1e-3), kv_norm=RMSNorm(16, 1e-3), gate="headwise",
            indexer=None if number % 2 else indexer, shares_selection=bool(number % 2),
        )  # fmt: skip
        mixture = MixtureOfExperts(router=Router(32, 4, 2), experts=Experts(32, 24, 4))
        block = PreNormBlock(
            input_layernorm=RMSNorm(32, 1e-3),
            self_attn=attention,
            post_attention_layernorm=RMSNorm(32, 1e-3),
            mlp=mixture if number % 2 else GatedMLP(32, 48),
        )
        layers.append(block)
    model = DecoderModel(args, layers=layers, norm=RMSNorm(32, 1e-3), rotary=Rotary(RotaryArgs(), 4, interleaved=True))
    initialize(model, std=0.25, seed=5)
    return model.to(torch.float64)


def register():
    """Let `parallelize` find the family."""
    module = types.ModuleType("indexed_family")
    module.SPEC = ModelSpec(
        name=NAME,
        model_class=build,
        args_class=Args,
        state_dict_adapter=TableAdapter,
        parallelize=lambda model, plan: shard_model(model, plan, TABLE),
        model_types=frozenset({NAME}),
    )
    sys.modules[module.__name__] = module
    MODELS[NAME] = f"{module.__name__}:SPEC"


def run(way):
    options = {
        key: value for key, value in way.items() if key in ("lora", "sequence_parallel", "gradient_checkpointing")
    }
    sizes = {key: value for key, value in way.items() if key not in options}
    case = EqualityCase(kind="dense", dims=ParallelDims(**sizes), options=options)
    found = {"case": case.name}
    try:
        return compare(case, make_model=build) | found
    except Exception:  # noqa: BLE001 - a case that fails is a result, and the others still run
        return found | {"equal": False, "error": traceback.format_exc()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    register()
    with connected("cpu", timeout_seconds=60):
        for way in WAYS[dist.get_world_size()]:
            result = run(way)
            if dist.get_rank() == 0:
                with arguments.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
