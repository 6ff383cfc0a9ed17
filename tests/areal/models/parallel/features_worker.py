"""One rank of the feature tests: decoders of every block, split by the table that `areal-new` writes, and not.

Each architecture is a family of its own in this process; nothing of it is in the repository.
"""

import argparse
import json
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from areal.api import BaseModelArgs, ModelSpec
from areal.engine.archon.equality.cases import EqualityCase
from areal.engine.archon.equality.comparison import compare
from areal.engine.config import LoraConfig
from areal.engine.train.processes import connected
from areal.models.adapter import TableAdapter
from areal.models.parallel import ParallelDims, shard_model
from areal.models.parallel.plan import Shard
from areal.models.registry import MODELS
from areal.porting import reference
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    HeadTransformSpec,
    LatentAttentionSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
    RouterSpec,
)
from areal.porting.write.pieces import tensor_parallel

RMS, GEMMA = NormSpec(kind="rms", eps=1e-5), NormSpec(kind="rms", eps=1e-5, offset=1.0)
LAYER_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
HEADS = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6, scale=0.3)
BIASES = {"query_bias": True, "key_bias": True, "value_bias": True, "output_bias": True}
LATENT = LatentAttentionSpec(
    num_heads=4, query_rank=None, kv_rank=10, nope_dim=6, rope_dim=4, value_dim=6, scale=0.3, query_norm=None,
    kv_norm=RMS, kv_bias=True, output_bias=True,
)  # fmt: skip
BIASED = MlpSpec(gated=True, activation="quick_gelu", intermediate_size=16, bias=True, output_bias=True, clamp=2.0)
PLAIN = MlpSpec(gated=False, activation="gelu", intermediate_size=16, bias=True, output_bias=True)
MIXTURE = MoeSpec(
    router=RouterSpec(num_experts=4, top_k=2, score="sigmoid", order="score_first", selection_bias=True, bias=True),
    experts=BIASED,
    shared=replace(BIASED, intermediate_size=8),
    shared_gate=True,
    shared_scale=0.5,
)
UNBIASED = MlpSpec(gated=True, activation="silu", intermediate_size=16)
ROTARY = RotarySpec(dim=8, theta=100.0)


def layer(block, norm, attention, feed_forward, **changes):
    norms = dict.fromkeys(reference.BLOCK_NORMS[block], norm)
    return LayerSpec(block=block, norms=norms, attention=attention, feed_forward=feed_forward, **changes)


def architecture(*layers, **changes):
    plain = {"vocab_size": 64, "hidden_size": 32, "final_norm": RMS, "tied": False, "rotaries": (ROTARY,)}
    return ArchitectureSpec(layers=layers, **plain | changes)


EACH_HEAD = {"query_norm": LAYER_NORM, "key_norm": LAYER_NORM, "norm_scope": "each_head"}
VALUES = {"value_dim": 8, "keys_as_values": True, "key_norm": RMS, "value_norm": GEMMA}
FULL = {"query_norm": RMS, "key_norm": RMS, "norm_scope": "full"}
ARCHITECTURES = {
    "sinks, windows, biases, gates": architecture(
        layer("pre", RMS, replace(HEADS, sinks=True, **BIASES), BIASED, rotary=0, window=5),
        layer("sandwich", GEMMA, replace(HEADS, gate="headwise", query_norm=RMS, key_norm=GEMMA), PLAIN, rotary=0),
        layer("post", LAYER_NORM, replace(HEADS, gate="elementwise", softcap=3.0), PLAIN, residual_multiplier=0.5),
        logit_multiplier=3.0,
        logit_softcap=4.0,
        embedding_multiplier=2.0,
    ),
    "norms over all heads and of each": architecture(
        layer("pre", RMS, replace(HEADS, **FULL), BIASED, rotary=0),
        layer("pre", RMS, replace(HEADS, **FULL, norm_after_rotary=True), BIASED, rotary=0),
        layer("parallel", RMS, replace(HEADS, **EACH_HEAD), PLAIN, rotary=0, chunk=7),
    ),
    "shared head, linear biases, head transform": architecture(
        layer("parallel_two_norms", LAYER_NORM, replace(HEADS, num_kv_heads=1, alibi=True, **EACH_HEAD), PLAIN),
        layer("post_residual", LAYER_NORM, replace(HEADS, num_kv_heads=1, alibi=True, clip=1.0), PLAIN),
        rotaries=(),
        positions=PositionSpec(kind="learned", num_positions=64),
        embedding_norm=LAYER_NORM,
        head_transform=HeadTransformSpec(activation="gelu", norm=LAYER_NORM, bias=True),
        head_bias=True,
        tied=True,
    ),
    "mixtures with biases, latent attention": architecture(
        layer("pre", RMS, HEADS, MIXTURE, rotary=0),
        layer("post", RMS, LATENT, replace(MIXTURE, shared=None, shared_gate=False, shared_scale=1.0), rotary=1),
        rotaries=(ROTARY, RotarySpec(dim=4, theta=100.0, interleaved=True)),
    ),
    "norms before last matrices, gates with biases, growth": architecture(
        layer("pre", RMS, replace(HEADS, output_norm=RMS), replace(PLAIN, inner_norm=LAYER_NORM), rotary=0),
        layer("post", RMS, replace(HEADS, value_scale=0.7, gate="elementwise", gate_bias=True), PLAIN, rotary=1),
        layer("pre", RMS, replace(HEADS, gate="headwise", gate_function="softplus", gate_bias=True), PLAIN, rotary=0),
        layer("sandwich", RMS, HEADS, PLAIN, rotary=2, counted_sums=True),
        rotaries=(
            ROTARY,
            RotarySpec(dim=0, theta=1.0, query_growth=0.4, growth_length=3, growth_shift=1),
            RotarySpec(dim=0, theta=1.0, query_growth=0.7, growth_length=3, growth_shift=1, growth_power=True),
        ),
    ),
    "keys as values, norms of values": architecture(
        layer("pre", RMS, replace(HEADS, **VALUES), BIASED, rotary=0, window=5),
        layer("pre", RMS, replace(HEADS, **VALUES, num_kv_heads=1), BIASED, rotary=0),
    ),
    "mixtures whose inputs are weighted": architecture(
        layer("pre", RMS, HEADS, replace(MIXTURE, experts=UNBIASED, weigh_inputs=True), rotary=0)
    ),
    "vocabulary that does not divide": architecture(
        layer("pre", RMS, HEADS, BIASED, rotary=0), vocab_size=65, head_bias=True
    ),
}
LORA = LoraConfig(rank=3, alpha=7)
WAYS = {
    2: [{"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"cp": 2}, {"tp": 2, "lora": LORA}],
    4: [{"tp": 2, "cp": 2, "sequence_parallel": True}, {"dp_shard": 2, "tp": 2}],
}
MIXTURE_WAYS = {
    2: [{"dp_shard": 2, "ep": 2}, {"tp": 2, "ep": 2}, {"tp": 2, "ep": 2, "lora": LORA}],
    4: [{"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}, {"cp": 2, "tp": 2, "ep": 4}],
}


@dataclass(kw_only=True)
class Args(BaseModelArgs):
    initializer_range: float = 0.25

    @classmethod
    def from_hf_config(cls, config):
        raise NotImplementedError

    def to_hf_config(self):
        return {"model_type": self.model_type}


def table_of(model):
    layout = [{"ours": [".".join(["layers", "*", *name.split(".")[2:]]) if name.startswith("layers.") else name]}
              for name in model.state_dict()]  # fmt: skip
    return {name: Shard[split] for name, split in tensor_parallel(layout, {}, untied=model.lm_head is not None).items()}


def register(name, spec):
    """A family that `parallelize` finds; returns what makes its model, with values in every parameter."""

    def build(_):
        model = reference.build(spec).to(torch.float64)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.copy_(torch.normal(0.0, 0.3, tensor.shape, generator=generator, dtype=torch.float64))
        model.args = Args(
            model_type=name, vocab_size=spec.vocab_size, hidden_size=32, num_layers=len(spec.layers), num_heads=4,
            num_kv_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=spec.tied,
        )  # fmt: skip
        return model

    module = types.ModuleType(f"family_{len(MODELS)}")
    table = table_of(build(None))
    module.SPEC = ModelSpec(
        name=name,
        model_class=build,
        args_class=Args,
        state_dict_adapter=TableAdapter,
        parallelize=lambda model, plan: shard_model(model, plan, table),
        model_types=frozenset({name}),
    )
    sys.modules[module.__name__] = module
    MODELS[name] = f"{module.__name__}:SPEC"
    return build


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with connected("cpu", timeout_seconds=60):
        size = dist.get_world_size()
        for name, spec in ARCHITECTURES.items():
            if arguments.only not in name:
                continue
            build = register(name, spec)
            for way in WAYS[size] + (MIXTURE_WAYS[size] if "mixtures" in name else []):
                options = {key: value for key, value in way.items() if key in ("lora", "sequence_parallel")}
                sizes = {key: value for key, value in way.items() if key not in options}
                case = EqualityCase(kind="dense", dims=ParallelDims(**sizes), options=options)
                result = compare(case, make_model=build)
                result["case"] = f"{name}: {case.name}"
                if dist.get_rank() == 0:
                    with arguments.out.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
