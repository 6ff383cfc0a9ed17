"""Qwen3Moe: pre-norm blocks of grouped-query attention with query and key norms and SwiGLU or a mixture of
experts; windowed layers."""

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
    from areal.models.qwen3_moe.args import Qwen3MoeArgs


class Qwen3MoeModel(DecoderModel):
    """A `CausalModel`."""

    args: Qwen3MoeArgs

    def __init__(self, args: Qwen3MoeArgs) -> None:
        super().__init__(
            args,
            layers=(_block(args, layer) for layer in range(args.num_layers)),
            norm=_norm(args),
            rotary=Rotary(args.rotary, args.head_dim),
        )


def _block(args: Qwen3MoeArgs, layer: int) -> PreNormBlock:
    return PreNormBlock(
        input_layernorm=_norm(args),
        self_attn=_attention(args, layer),
        post_attention_layernorm=_norm(args),
        mlp=_feed_forward(args, layer),
    )


def _attention(args: Qwen3MoeArgs, layer: int) -> SelfAttention:
    return SelfAttention(
        layer,
        args,
        qkv_bias=args.attention_bias,
        output_bias=args.attention_bias,
        query_norm=RMSNorm(args.head_dim, args.norm_eps),
        key_norm=RMSNorm(args.head_dim, args.norm_eps),
        window=args.window,
    )


def _feed_forward(args: Qwen3MoeArgs, layer: int) -> GatedMLP | MixtureOfExperts:
    if not args.has_experts(layer):
        return GatedMLP(args.hidden_size, args.intermediate_size, activation=args.hidden_act)
    return MixtureOfExperts(
        router=Router(
            args.hidden_size, args.num_local_experts, args.num_experts_per_tok, normalize=args.norm_topk_prob
        ),
        experts=Experts(
            args.hidden_size, args.moe_intermediate_size, args.num_local_experts, activation=args.hidden_act
        ),
    )


def _norm(args: Qwen3MoeArgs) -> RMSNorm:
    return RMSNorm(args.hidden_size, args.norm_eps)
