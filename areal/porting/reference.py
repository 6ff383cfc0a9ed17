"""The model that a spec describes, put together from `areal.models.blocks`: what parity judges.

Parameter names are the canonical ones that `spec.py` writes beside each part. Nothing here knows a family or a config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from areal.models.blocks import block as blocks
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.experts_beside import ExpertsBeside
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.indexer import TokenIndexer
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.layer_embeddings import LayerEmbeddings, LayerInput
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.mlp import MLP, GatedMLP, HeadTransform
from areal.models.blocks.moe import Experts, MixtureOfExperts, Router
from areal.models.blocks.norms import LayerNorm, RMSNorm
from areal.models.blocks.positions import LearnedPositions, SinusoidalPositions
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.rotary import QueryGrowth, Rotary
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.decoder_args import RotaryArgs
from areal.porting.outlines import outlined
from areal.porting.records import UnsupportedError
from areal.porting.spec import (
    BLOCK_NORMS,
    BLOCKS,
    EXTRA_NORMS,
    OPTIONAL_NORMS,
    STATEFUL,
    GatedDeltaSpec,
    LatentAttentionSpec,
    LightningSpec,
    Mamba1Spec,
    Mamba2Spec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RGLRUSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal.porting.spec import (
        ArchitectureSpec,
        AttentionSpec,
        ExpertsBesideSpec,
        HeadTransformSpec,
        LayerEmbeddingsSpec,
        LayerInputSpec,
        LayerSpec,
        PositionSpec,
        RotarySpec,
        Stateful,
    )


@dataclass(frozen=True, kw_only=True)
class ReferenceArgs:
    """What blocks read from a family's arguments. Attention always gets its own shape beside them."""

    vocab_size: int = 0
    hidden_size: int
    num_layers: int = 0
    tie_word_embeddings: bool = False
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0


def build(spec: ArchitectureSpec) -> DecoderModel:
    """Return the model with memory for its parameters but no values in them; under `torch.device("meta")` without
    memory.

    Raises UnsupportedError for a combination that the blocks lack.
    """
    args = ReferenceArgs(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_layers=len(spec.layers),
        tie_word_embeddings=spec.tied,
    )
    # Layers share a table by being given the same object.
    rotaries = [rotary(each) for each in spec.rotaries]
    return DecoderModel(
        args,
        layers=[block(layer, spec.hidden_size, number) for number, layer in enumerate(spec.layers)],
        norm=None if spec.final_norm is None else norm(spec.final_norm, spec.hidden_size),
        rotary=[None if layer.rotary is None else rotaries[layer.rotary] for layer in spec.layers],
        embedding_multiplier=spec.embedding_multiplier,
        embed_positions=None if spec.positions is None else positions(spec.positions, spec.hidden_size),
        embed_norm=None if spec.embedding_norm is None else norm(spec.embedding_norm, spec.hidden_size),
        layer_embeddings=None if spec.layer_embeddings is None else layer_embeddings(spec.layer_embeddings, args),
        head_transform=None if spec.head_transform is None else head_transform(spec.head_transform, spec.hidden_size),
        head_bias=spec.head_bias,
        logit_multiplier=spec.logit_multiplier,
        logit_softcap=spec.logit_softcap,
    )


def outline(spec: ArchitectureSpec) -> DecoderModel:
    """Return the model without memory: names and shapes."""
    with outlined():
        return build(spec)


def load(
    spec: ArchitectureSpec, weights: Mapping[str, Tensor], *, outlined_model: DecoderModel | None = None
) -> DecoderModel:
    """Return the model with these weights (canonical names; not copied), in evaluation mode.

    outlined_model: an outline of the spec that nobody needs any more; it becomes the model. Raises ValueError naming
    what is missing, unknown or of another shape.
    """
    model = outlined_model or outline(spec)
    expected = model.state_dict()
    missing = sorted(expected.keys() - weights.keys())
    unknown = sorted(weights.keys() - expected.keys())
    misshapen = [
        f"{name} {list(weights[name].shape)} (expected {list(tensor.shape)})"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if missing or unknown or misshapen:
        raise ValueError(
            f"weights do not fit the spec: missing {missing}; unknown {unknown}; of other shapes {misshapen}"
        )
    model.load_state_dict(dict(weights), strict=True, assign=True)
    return model.eval().requires_grad_(False)


def logits(spec: ArchitectureSpec, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return what `logits_of` does for the model with these weights."""
    return logits_of(load(spec, weights), tokens)


@torch.no_grad()
def logits_of(model: DecoderModel, tokens: Tensor) -> Tensor:
    """Return the logits [B, T, vocab_size] of tokens [B, T]: the rows are packed as B documents into one forward."""
    batch, length = tokens.shape
    bounds = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
    flat: Tensor = model(tokens.flatten(), torch.arange(length).repeat(batch), bounds, length)
    return flat.unflatten(0, (batch, length))


def norm(spec: NormSpec, shape: int | tuple[int, ...]) -> RMSNorm | LayerNorm:
    """Return a norm with weights of `shape`."""
    if spec.kind == "layer":
        return LayerNorm(shape, spec.eps, offset=spec.offset, weight=spec.weight, bias=spec.bias)
    if spec.bias:
        raise UnsupportedError("bias of an RMSNorm", where="norm", detail="the norm adds a vector after scaling")
    return RMSNorm(shape, spec.eps, offset=spec.offset, weight=spec.weight)


def rotary(spec: RotarySpec) -> Rotary | QueryGrowth:
    """Return a table of rotations, or what only lets queries grow."""
    if not spec.dim:
        return QueryGrowth(spec.query_growth, spec.growth_length, spec.growth_shift, growth_power=spec.growth_power)
    return Rotary(
        RotaryArgs(theta=spec.theta, rotary_type=spec.type, parameters=dict(spec.parameters)),
        spec.dim,
        interleaved=spec.interleaved,
        query_growth=spec.query_growth,
        growth_length=spec.growth_length,
        growth_shift=spec.growth_shift,
        growth_power=spec.growth_power,
    )


def positions(spec: PositionSpec, hidden_size: int) -> nn.Module:
    """Return the absolute positions, from positions [T] to [T, hidden_size]."""
    if spec.kind == "learned":
        return LearnedPositions(spec.num_positions, hidden_size, offset=spec.offset)
    return SinusoidalPositions(
        spec.num_positions, hidden_size, offset=spec.offset, interleaved=spec.interleaved, endpoint=spec.endpoint
    )


def layer_embeddings(spec: LayerEmbeddingsSpec, args: ReferenceArgs) -> LayerEmbeddings:
    """Return what gives each layer its embeddings of the tokens."""
    options: dict[str, Any] = {**vars(spec), "norm": norm(spec.norm, spec.size)}
    return LayerEmbeddings(args.hidden_size, args.num_layers, **options)


def layer_input(spec: LayerInputSpec, hidden_size: int) -> LayerInput:
    """Return what adds them in a layer."""
    return LayerInput(hidden_size, spec.size, activation=spec.activation, norm=norm(spec.norm, hidden_size))


def head_transform(spec: HeadTransformSpec, hidden_size: int) -> HeadTransform:
    """Return what stands between the final norm and the head."""
    return HeadTransform(hidden_size, activation=spec.activation, bias=spec.bias, norm=norm(spec.norm, hidden_size))


def mixer(spec: LayerSpec, hidden_size: int, layer: int) -> nn.Module | None:
    """Return what mixes the tokens of a layer, if anything does."""
    if spec.attention is None:
        return None
    if isinstance(spec.attention, STATEFUL):
        return stateful(spec.attention, hidden_size, layer)
    return attention(spec.attention, hidden_size, layer, window=spec.window, chunk=spec.chunk)


def stateful(spec: Stateful, hidden_size: int, layer: int) -> nn.Module:
    """Return a mixer that keeps a state."""
    args: Any = ReferenceArgs(hidden_size=hidden_size)
    if isinstance(spec, GatedDeltaSpec):
        return GatedDelta(layer, args, **vars(spec))
    if isinstance(spec, LightningSpec):
        return LightningAttention(layer, args, **vars(spec))
    if isinstance(spec, Mamba1Spec):
        return Mamba1(layer, args, **vars(spec))
    if isinstance(spec, Mamba2Spec):
        return Mamba2(layer, args, **vars(spec))
    if isinstance(spec, RGLRUSpec):
        return RGLRU(layer, args, **vars(spec))
    return ShortConvolution(layer, args, kernel_size=spec.kernel_size, bias=spec.bias)


def attention(
    spec: AttentionSpec | LatentAttentionSpec,
    hidden_size: int,
    layer: int,
    *,
    window: int | None = None,
    chunk: int | None = None,
) -> SelfAttention | LatentAttention:
    """Return an attention layer; window and chunk as in `LayerSpec`."""
    if isinstance(spec, LatentAttentionSpec):
        return _latent_attention(spec, hidden_size, layer, window, chunk)
    heads = {"query": spec.num_heads, "key": spec.num_kv_heads}
    norms = {}
    for part, part_norm in (("query", spec.query_norm), ("key", spec.key_norm)):
        shapes: dict[str, int | tuple[int, int]] = {
            "head": spec.head_dim,
            "each_head": (heads[part], spec.head_dim),
            "full": heads[part] * spec.head_dim,
        }
        norms[part] = None if part_norm is None else norm(part_norm, shapes[spec.norm_scope])
    args: Any = ReferenceArgs(hidden_size=hidden_size)
    return SelfAttention(
        layer,
        args,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        value_dim=spec.value_dim,
        qkv_bias=spec.query_bias,
        key_bias=spec.key_bias,
        value_bias=spec.value_bias,
        output_bias=spec.output_bias,
        scale=spec.scale,
        query_norm=norms["query"],
        key_norm=norms["key"],
        value_norm=None if spec.value_norm is None else norm(spec.value_norm, spec.value_dim),
        keys_as_values=spec.keys_as_values,
        shares_keys=spec.shares_keys,
        full_width_norms=spec.norm_scope == "full",
        norm_after_rotary=spec.norm_after_rotary,
        window=window,
        chunk=chunk,
        softcap=spec.softcap,
        sinks=spec.sinks,
        clip=spec.clip,
        value_scale=spec.value_scale,
        gate=spec.gate,
        gate_function=spec.gate_function,
        gate_bias=spec.gate_bias,
        output_norm=None if spec.output_norm is None else norm(spec.output_norm, spec.num_heads * spec.value_dim),
        alibi=spec.alibi_scale if spec.alibi else None,
        differential_eps=spec.differential_eps,
    )


def _latent_attention(
    spec: LatentAttentionSpec, hidden_size: int, layer: int, window: int | None, chunk: int | None
) -> LatentAttention:
    args: Any = ReferenceArgs(hidden_size=hidden_size, num_heads=spec.num_heads)
    query_norm = None
    if spec.query_rank is not None and spec.query_norm is not None:
        query_norm = norm(spec.query_norm, spec.query_rank)
    return LatentAttention(
        layer,
        args,
        query_rank=spec.query_rank,
        kv_rank=spec.kv_rank,
        nope_dim=spec.nope_dim,
        rope_dim=spec.rope_dim,
        value_dim=spec.value_dim,
        query_norm=query_norm,
        kv_norm=norm(spec.kv_norm, spec.kv_rank),
        query_bias=spec.query_bias,
        kv_bias=spec.kv_bias,
        output_bias=spec.output_bias,
        scale=spec.scale,
        softcap=spec.softcap,
        window=window,
        chunk=chunk,
        query_latent_scale=spec.query_latent_scale,
        kv_latent_scale=spec.kv_latent_scale,
        gate=spec.gate,
        indexer=_indexer(spec, hidden_size),
        shares_selection=spec.shares_selection,
    )


def _indexer(spec: LatentAttentionSpec, hidden_size: int) -> TokenIndexer | None:
    if spec.indexer is None or spec.query_rank is None:
        return None
    return TokenIndexer(hidden_size, spec.query_rank, rope_dim=spec.rope_dim, **vars(spec.indexer))


def experts_beside(spec: ExpertsBesideSpec, hidden_size: int) -> ExpertsBeside:
    """Return the experts beside a feed-forward layer."""
    mixture: Any = feed_forward(MoeSpec(router=spec.router, experts=spec.experts), hidden_size)
    norms = {name: norm(value, hidden_size) for name, value in vars(spec).items() if isinstance(value, NormSpec)}
    return ExpertsBeside(
        router=mixture.router, experts=mixture.experts, router_multiplier=spec.router_multiplier, **norms
    )


def feed_forward(spec: MlpSpec | MoeSpec, hidden_size: int) -> GatedMLP | MLP | MixtureOfExperts:
    """Return a feed-forward layer, or a mixture of experts."""
    if isinstance(spec, MlpSpec):
        return _mlp(spec, hidden_size)
    experts = spec.experts
    if experts.multipliers != (1.0, 1.0):
        raise UnsupportedError("multipliers of experts", where="experts", detail=repr(experts.multipliers))
    if experts.inner_norm is not None:
        raise UnsupportedError("norms inside experts", where="experts", detail=repr(experts.inner_norm))
    if experts.bias != experts.output_bias:
        raise UnsupportedError("experts with biases on some matrices only", where="experts", detail=repr(experts))
    if spec.shared is None and spec.shared_gate:
        raise UnsupportedError("a gate of shared experts that are not there", where="experts", detail=repr(spec))
    options: dict[str, Any] = {
        name: value for name, value in vars(spec.router).items() if name not in ("num_experts", "top_k")
    }
    return MixtureOfExperts(
        router=Router(hidden_size, spec.router.num_experts, spec.router.top_k, **options),
        experts=Experts(
            hidden_size,
            experts.intermediate_size,
            spec.router.num_experts,
            activation=experts.activation,
            gated=experts.gated,
            bias=experts.bias,
            clamp=experts.clamp,
            up_offset=experts.up_offset,
            weigh_inputs=spec.weigh_inputs,
        ),
        shared_experts=None if spec.shared is None else _mlp(spec.shared, hidden_size),
        shared_gate=spec.shared_gate,
        shared_scale=spec.shared_scale,
    )


def _mlp(spec: MlpSpec, hidden_size: int) -> GatedMLP | MLP:
    inner_norm = None if spec.inner_norm is None else norm(spec.inner_norm, spec.intermediate_size)
    if spec.gated:
        return GatedMLP(
            hidden_size,
            spec.intermediate_size,
            activation=spec.activation,
            bias=spec.bias,
            output_bias=spec.output_bias,
            clamp=spec.clamp,
            up_offset=spec.up_offset,
            inner_norm=inner_norm,
            learned_activation=True,
            multipliers=spec.multipliers,
        )
    if spec.clamp is not None or spec.up_offset or spec.multipliers != (1.0, 1.0):
        raise UnsupportedError("clamp, offset or multipliers without a gate", where="feed-forward", detail=repr(spec))
    return MLP(
        hidden_size,
        spec.intermediate_size,
        activation=spec.activation,
        bias=spec.bias,
        output_bias=spec.output_bias,
        inner_norm=inner_norm,
        learned_activation=True,
    )


def block(spec: LayerSpec, hidden_size: int, layer: int) -> nn.Module:
    """Return a decoder block; `spec.rotary` is the model's business."""
    extra = EXTRA_NORMS.get(spec.block, ())
    names = (*BLOCK_NORMS[spec.block], *(name for name in extra if name in spec.norms))
    optional = OPTIONAL_NORMS.get(spec.block, frozenset())
    if not set(names) - optional <= set(spec.norms) <= set(names):
        raise ValueError(f"block {spec.block!r} has the norms {names}, the spec names {tuple(spec.norms)}")
    children = {name: norm(spec.norms[name], hidden_size) if name in spec.norms else None for name in names}
    of_sandwiches = {
        "a factor on what a block gives": spec.output_scale,
        "sums weighted by their number": spec.counted_sums,
        "embeddings of the tokens in each layer": spec.layer_input is not None,
        "experts beside a feed-forward layer": spec.experts_beside is not None,
    }
    feature = next((name for name, there in of_sandwiches.items() if there), None)
    if feature is not None and spec.block != "sandwich":
        raise UnsupportedError(feature, where="block", detail=f"in a block {spec.block!r}")
    block: type[nn.Module] = getattr(blocks, BLOCKS[spec.block].name)
    factors = spec.factors
    multipliers: dict[str, Any] = {"residual_multiplier": spec.residual_multiplier}
    if factors is not None:
        multipliers = {
            "attention_factors": (factors.attention_stream, factors.attention_branch),
            "mlp_factors": (factors.mlp_stream, factors.mlp_branch),
        }
    return block(
        self_attn=mixer(spec, hidden_size, layer),
        mlp=None if spec.feed_forward is None else feed_forward(spec.feed_forward, hidden_size),
        **multipliers,
        **({"output_scale": True} if spec.output_scale else {}),
        **({"first_sum": 2 * layer + 2} if spec.counted_sums else {}),
        **({} if spec.experts_beside is None else {"experts_beside": experts_beside(spec.experts_beside, hidden_size)}),
        **({} if spec.layer_input is None else {"layer_input": layer_input(spec.layer_input, hidden_size)}),
        **children,
        **beside_keywords(spec, hidden_size, layer),
    )


def beside_keywords(spec: LayerSpec, hidden_size: int, layer: int) -> dict[str, Any]:
    """Return what a block gets of a second mixer, if it has one."""
    found = spec.beside
    if found is None:
        return {}
    if spec.block != "pre":
        raise UnsupportedError("two mixers in a block of an unknown kind", where="block", detail=spec.block)
    return {
        "beside": stateful(found.mixer, hidden_size, layer),
        "attention_multipliers": (found.attention_input_multiplier, found.attention_output_multiplier),
        "beside_multipliers": (found.input_multiplier, found.output_multiplier),
    }
