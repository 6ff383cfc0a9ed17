"""What megatron-core is asked for here and cannot do: every refusal names the setting or the module, and a way out.

`config_problems` needs the configuration alone and is asked before anything starts; `check_model` looks at the layers
of the model itself, of which it needs no weights, so that no family is known by its name.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.models.parallel.dims import ParallelDims

_NATIVE: Final = "set archon.engine to native"
_PARALLEL: Final = "archon.parallel"


def check_config(config: TrainEngineConfig, archon: ArchonConfig, *, is_critic: bool = False) -> None:
    """Raise ConfigError with everything that `config_problems` finds, and for a critic."""
    found = config_problems(config, archon)
    if is_critic:
        found["critic"] = ("is a value model, which this engine does not train", _NATIVE)
    if found:
        listed = "; ".join(f"{key} {message}" for key, (message, _) in found.items())
        raise ConfigError(
            f"archon.engine megatron cannot do what is asked: {listed}",
            where=next(iter(found)),
            fix="; or ".join(dict.fromkeys(fix for _, fix in found.values())),
        )


def config_problems(config: TrainEngineConfig, archon: ArchonConfig) -> dict[str, tuple[str, str]]:
    """Return the settings that this engine refuses, by key: what is wrong, and what to do. `config` is the actor's."""
    return dict([*_missing_packages(archon), *_config_problems(config, archon)])


def _missing_packages(archon: ArchonConfig) -> Iterator[tuple[str, tuple[str, str]]]:
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        yield (
            "archon.engine",
            (
                "is megatron, and megatron-core is not installed",
                f"pip install 'areal[megatron]', or {_NATIVE}",
            ),
        )
    if archon.megatron.transformer_engine and importlib.util.find_spec("transformer_engine") is None:
        yield (
            "archon.megatron.transformer_engine",
            (
                "is true, and Transformer Engine is not installed",
                "pip install 'transformer-engine[pytorch]' (GPUs only), or set it to false",
            ),
        )


def _config_problems(config: TrainEngineConfig, archon: ArchonConfig) -> Iterator[tuple[str, tuple[str, str]]]:
    parallel = archon.parallel
    for name, size, why in (
        ("cp", parallel.cp, "context parallelism needs the attention of Transformer Engine, which is not used here"),
        ("ep", parallel.ep, "this engine trains no mixtures of experts"),
        ("etp", parallel.etp, "this engine trains no mixtures of experts"),
    ):
        if size != 1:
            yield f"{_PARALLEL}.{name}", (f"is {size}; {why}", f"set it to 1, or {_NATIVE}")
    if parallel.dp_shard != 1:
        yield (
            f"{_PARALLEL}.dp_shard",
            (
                f"is {parallel.dp_shard}; every data rank keeps whole parameters and moments here, without megatron's "
                f"distributed optimizer",
                f"write archon.parallel.dp_replicate in its place, or {_NATIVE}",
            ),
        )
    if archon.pp_schedule != "1F1B":
        yield "archon.pp_schedule", (f"is {archon.pp_schedule}; stages run in megatron's order 1F1B", "write 1F1B")
    for name, is_on, why in (
        ("sequence_parallel", archon.sequence_parallel, "megatron's layers without Transformer Engine refuse it"),
        ("offload_parameters", archon.offload_parameters, "megatron keeps parameters on the device"),
    ):
        if is_on:
            yield f"archon.{name}", (f"is true; {why}", f"set it to false, or {_NATIVE}")
    if config.compile:
        yield "actor.compile", ("is true; megatron's layers are not compiled", f"set it to false, or {_NATIVE}")
    if config.lora is not None:
        yield "actor.lora", ("is set; this engine trains no adapters", f"set it to null, or {_NATIVE}")


def check_model(model: nn.Module, dims: ParallelDims) -> None:
    """Raise ModelError with everything that megatron's dense decoder does not have, or cannot split over `dims`."""
    found = list(dict.fromkeys([*_decoder_problems(model), *_size_problems(model, dims)]))
    if found:
        raise ModelError(
            f"archon.engine megatron cannot compute this model: {'; '.join(found)}",
            where="archon.engine",
            fix=f"{_NATIVE}, which trains every family",
        )


def _decoder_problems(model: nn.Module) -> Iterator[str]:
    from areal.models.blocks.decoder import DecoderModel

    if not isinstance(model, DecoderModel):
        yield f"a {type(model).__name__} is not a decoder of ours; model.implementation has to be native"
        return
    decoder: Any = model
    if decoder.embedding_multiplier != 1.0 or decoder.logit_multiplier != 1.0:
        yield "multipliers of embedding or logits"
    for name in ("embed_positions", "embed_norm", "layer_embeddings", "head_transform", "logit_softcap"):
        if getattr(decoder, name) is not None:
            yield name
    if decoder.lm_head is not None and (decoder.lm_head.bias is not None or decoder.lm_head.weight is None):
        yield "a bias of the head"
    yield from _norm_problems("norm", decoder.norm)
    yield from _rotary_problems(decoder)
    for layer in decoder.layers:
        yield from _layer_problems(layer)
    epsilons = {norm.eps for norm in _norms(decoder)}
    if len(epsilons) > 1:
        yield f"norms with different eps {sorted(epsilons)}"


def _rotary_problems(decoder: Any) -> Iterator[str]:
    import torch

    tables = dict.fromkeys(decoder.rotaries)
    if len(tables) != 1 or None in tables:
        yield "positions that differ by layer"
        return
    (rotary,) = tables
    if rotary.length_limit is not None:
        yield "rotations that depend on the length of a document"
        return
    rotation = rotary(torch.zeros(1, dtype=torch.int64), torch.float32)
    if rotation.interleaved or rotation.query_scale is not None or bool((rotation.cos != 1).any()):
        yield "rotary positions that pair neighbours, or scale queries or keys"
    if rotary.dim != decoder.args.head_dim:
        yield f"rotation of {rotary.dim} of {decoder.args.head_dim} dimensions of a head"


def _layer_problems(layer: Any) -> Iterator[str]:
    from areal.models.blocks.attention import SelfAttention
    from areal.models.blocks.block import PreNormBlock
    from areal.models.blocks.mlp import GatedMLP

    if type(layer) is not PreNormBlock or layer.input_layernorm is None or layer.residual_multiplier != 1.0:
        yield f"blocks that are wired differently ({type(layer).__name__})"
        return
    if layer.post_feedforward_layernorm is not None:
        yield "a norm of what feed-forward layers give"
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield from _norm_problems(name, getattr(layer, name))
    if type(layer.self_attn) is not SelfAttention:
        yield f"mixers of type {type(layer.self_attn).__name__}"
    else:
        yield from _attention_problems(layer.self_attn)
    if type(layer.mlp) is not GatedMLP:
        yield f"feed-forward layers of type {type(layer.mlp).__name__}"
    else:
        yield from _mlp_problems(layer.mlp)


def _attention_problems(attention: Any) -> Iterator[str]:
    parts = ("sinks", "gate_proj", "v_norm", "output_norm", "differential")
    for name in ("window", "chunk", "softcap", "clip", "alibi", *parts):
        if getattr(attention, name) is not None:
            yield f"attention with {name}"
    if attention.full_width_norms or attention.norm_after_rotary:
        yield "norms of all heads together, or after the rotation"
    if attention.scale != attention.head_dim**-0.5 or attention.value_dim != attention.head_dim:
        yield "attention with a scale or a value size of its own"
    if attention.value_scale != 1.0:
        yield "a factor on values"
    if attention.o_proj.bias is not None:
        yield "a bias of the attention's output"
    if attention.shares_keys or attention.is_shared:
        yield "keys and values shared between layers"
    if attention.v_proj is None:
        yield "keys as values"
        return
    biases = {getattr(attention, name).bias is not None for name in ("q_proj", "k_proj", "v_proj")}
    if len(biases) > 1:
        yield "biases of some of query, key and value"
    if (attention.q_norm is None) != (attention.k_norm is None):
        yield "a norm of queries or keys alone"
    elif attention.q_norm is not None:
        yield from _norm_problems("q_norm", attention.q_norm)
        yield from _norm_problems("k_norm", attention.k_norm)


def _mlp_problems(mlp: Any) -> Iterator[str]:
    from torch.nn import functional

    if mlp.activation is not functional.silu:
        yield "an activation other than silu"
    if mlp.clamp is not None or mlp.up_offset or mlp.inner_norm is not None:
        yield "a clamp, an offset or a norm in the feed-forward layer"
    if any(getattr(mlp, name).bias is not None for name in ("gate_proj", "up_proj", "down_proj")):
        yield "biases in the feed-forward layer"


def _norm_problems(name: str, norm: Any) -> Iterator[str]:
    from areal.models.blocks.norms import RMSNorm

    if type(norm) is not RMSNorm or norm.offset or norm.weight is None or len(norm.shape) > 1:
        yield f"{name} other than a plain RMS norm"


def _norms(decoder: Any) -> list[Any]:
    from areal.models.blocks.norms import RMSNorm

    return [module for module in decoder.modules() if isinstance(module, RMSNorm)]


def _size_problems(model: nn.Module, dims: ParallelDims) -> Iterator[str]:
    holder: Any = model
    args = holder.args
    if args.num_kv_heads % dims.tp:
        yield f"tp={dims.tp} does not divide {args.num_kv_heads} key-value heads"
    inner = getattr(args, "intermediate_size", None)
    if inner is not None and inner % dims.tp:
        yield f"tp={dims.tp} does not divide intermediate_size {inner}"
    if args.num_layers % dims.pp:
        yield f"pp={dims.pp} does not divide {args.num_layers} layers"
