"""One rank of the tests of mixers with a state: small hybrids, split and not, compared over two optimizer steps."""

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
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import OnePartBlock, PreNormBlock
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
from areal.models.parallel import ParallelDims, shard_model
from areal.models.qwen3.parallelize import TENSOR_PARALLEL
from areal.models.registry import MODELS


@dataclass(kw_only=True)
class Args(BaseModelArgs):
    initializer_range: float = 0.25

    @classmethod
    def from_hf_config(cls, config):
        raise NotImplementedError

    def to_hf_config(self):
        return {"model_type": self.model_type}


def args_of(name, layers):
    return Args(
        model_type=name, vocab_size=64, hidden_size=32, num_layers=layers, num_heads=4, num_kv_heads=2, head_dim=8,
        max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip


DELTA = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 6, "value_dim": 8, "kernel_size": 4, "norm_eps": 1e-3}
BESIDE = "mamba beside attention"
MIXERS = {
    "short convolution": lambda layer, args: ShortConvolution(layer, args, kernel_size=3, bias=True),
    "delta": lambda layer, args: GatedDelta(layer, args, **DELTA, chunk=4),
    "delta by channel": lambda layer, args: GatedDelta(
        layer, args, **DELTA, by_channel=True, decay_rank=6, gate_rank=5, gate="sigmoid", chunk=4
    ),
    "mamba-1": lambda layer, args: Mamba1(
        layer, args, inner_size=40, state_size=6, step_rank=5, kernel_size=4, norm_eps=1e-3, norm_weights=True,
        bias=True, chunk=4,
    ),
    "mamba": lambda layer, args: Mamba2(
        layer, args, num_heads=8, head_dim=4, num_groups=2, state_size=6, kernel_size=4, norm_eps=1e-3, bias=True,
        chunk=4,
    ),
    "lightning": lambda layer, args: LightningAttention(
        layer, args, num_heads=4, head_dim=6, num_layers=5, table_size=7, norm_eps=1e-3, chunk=4
    ),
    "rg-lru": lambda layer, args: RGLRU(
        layer, args, width=24, num_blocks=4, kernel_size=4, activation="gelu_pytorch_tanh", chunk=4
    ),
    BESIDE: SelfAttention,
}  # fmt: skip
LORA = LoraConfig(rank=3, alpha=7)
WAYS = {
    2: [
        {"dp_shard": 2},
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "lora": LORA},
        {"cp": 2},
        {"cp": 2, "gradient_checkpointing": True},
        {"pp": 2},
        {"pp": 2, "pp_schedule": "ZBVZeroBubble", "layers": 5},
        {"dp_replicate": 2, "gradient_checkpointing": True},
    ],
    4: [
        {"tp": 2, "cp": 2, "sequence_parallel": True},
        {"dp_shard": 2, "tp": 2, "gradient_checkpointing": True},
        {"cp": 4},
    ],
}


def beside(layer, args):
    """A second mixer of a block, with factors around both, as in Falcon-H1."""
    mixer = Mamba2(
        layer, args, num_heads=8, head_dim=4, num_groups=2, state_size=6, kernel_size=4, norm_eps=None, bias=True,
        output_bias=False, multipliers=(0.7, 1.2, 0.9, 1.1, 0.6), chunk=4,
    )  # fmt: skip
    return {"beside": mixer, "attention_multipliers": (0.9, 1.2), "beside_multipliers": (1.3, 0.7)}


def register(name):
    """A family that `parallelize` finds; returns what makes its model: the mixer and attention in turn."""

    def build(case):
        depth = max(case.layers, 3)
        args = args_of(name, depth)
        mixers = [(SelfAttention if layer % 2 else MIXERS[name])(layer, args) for layer in range(depth)]
        layers = [
            PreNormBlock(
                input_layernorm=RMSNorm(32, 1e-3),
                self_attn=mixer,
                post_attention_layernorm=RMSNorm(32, 1e-3),
                mlp=GatedMLP(32, 48, multipliers=(0.8, 1.3)),
                **(beside(layer, args) if name == BESIDE and layer != 1 else {}),
            )
            for layer, mixer in enumerate(mixers)
        ]
        if name == "mamba":  # as in Nemotron-H, where a layer is one of both
            layers[0] = OnePartBlock(input_layernorm=RMSNorm(32, 1e-3), self_attn=None, mlp=GatedMLP(32, 48))
            layers[2] = OnePartBlock(input_layernorm=RMSNorm(32, 1e-3), self_attn=mixers[2], mlp=None)
        rotary = Rotary(RotaryArgs(), 8)
        rotaries = [rotary if layer % 2 or name == BESIDE else None for layer in range(depth)]
        model = DecoderModel(args, layers=layers, norm=RMSNorm(32, 1e-3), rotary=rotaries)
        initialize(model, std=0.25, seed=5)
        return model.to(torch.float64)

    module = types.ModuleType(f"hybrid_{len(MODELS)}")
    module.SPEC = ModelSpec(
        name=name,
        model_class=build,
        args_class=Args,
        state_dict_adapter=TableAdapter,
        parallelize=lambda model, plan: shard_model(model, plan, TENSOR_PARALLEL),
        model_types=frozenset({name}),
    )
    sys.modules[module.__name__] = module
    MODELS[name] = f"{module.__name__}:SPEC"
    return build


def run(name, build, way):
    options = {
        key: value
        for key, value in way.items()
        if key in ("lora", "sequence_parallel", "gradient_checkpointing", "pp_schedule")
    }
    sizes = {key: value for key, value in way.items() if key not in (*options, "layers")}
    case = EqualityCase(kind="dense", dims=ParallelDims(**sizes), options=options, layers=way.get("layers", 2))
    found = {"case": f"{name}: {case.name}"}
    try:
        return compare(case, make_model=build) | found
    except Exception:  # noqa: BLE001 - a case that fails is a result, and the others still run
        return found | {"equal": False, "error": traceback.format_exc()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with connected("cpu", timeout_seconds=60):
        for name in MIXERS:
            build = register(name)
            for way in WAYS[dist.get_world_size()]:
                result = run(name, build, way)
                if dist.get_rank() == 0:
                    with arguments.out.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
