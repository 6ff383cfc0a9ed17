"""Qwen3: pre-norm blocks of grouped-query attention with per-head query and key norms, and SwiGLU or experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.moe import Experts, MixtureOfExperts, Router
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.rotary import Rotary

if TYPE_CHECKING:
    from areal.models.qwen3.args import Qwen3Args


class Qwen3Model(DecoderModel):
    """A `CausalModel`."""

    args: Qwen3Args

    def __init__(self, args: Qwen3Args) -> None:
        super().__init__(
            args,
            layers=(_block(args, layer) for layer in range(args.num_layers)),
            norm=RMSNorm(args.hidden_size, args.norm_eps),
            rotary=Rotary(args.rotary, args.head_dim),
        )


def _block(args: Qwen3Args, layer: int) -> PreNormBlock:
    return PreNormBlock(
        input_layernorm=RMSNorm(args.hidden_size, args.norm_eps),
        self_attn=SelfAttention(
            layer,
            args,
            qkv_bias=args.attention_bias,
            output_bias=args.attention_bias,
            window=args.windows[layer],
            query_norm=RMSNorm(args.head_dim, args.norm_eps),
            key_norm=RMSNorm(args.head_dim, args.norm_eps),
        ),
        post_attention_layernorm=RMSNorm(args.hidden_size, args.norm_eps),
        mlp=_feed_forward(args, layer),
    )


def _feed_forward(args: Qwen3Args, layer: int) -> GatedMLP | MixtureOfExperts:
    moe = args.moe
    if moe is None or not moe.has_experts(layer):
        return GatedMLP(args.hidden_size, args.intermediate_size)
    return MixtureOfExperts(
        router=Router(args.hidden_size, moe.num_experts, moe.top_k, normalize=moe.normalize),
        experts=Experts(args.hidden_size, moe.intermediate_size, moe.num_experts),
    )
