"""Qwen3: pre-norm blocks of grouped-query attention with query and key norms and SwiGLU; windowed layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.mlp import GatedMLP
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
            norm=_norm(args),
            rotary=Rotary(args.rotary, args.head_dim),
        )


def _block(args: Qwen3Args, layer: int) -> PreNormBlock:
    return PreNormBlock(
        input_layernorm=_norm(args),
        self_attn=_attention(args, layer),
        post_attention_layernorm=_norm(args),
        mlp=GatedMLP(args.hidden_size, args.intermediate_size, activation=args.hidden_act),
    )


def _attention(args: Qwen3Args, layer: int) -> SelfAttention:
    return SelfAttention(
        layer,
        args,
        qkv_bias=args.attention_bias,
        output_bias=args.attention_bias,
        query_norm=RMSNorm(args.head_dim, args.norm_eps),
        key_norm=RMSNorm(args.head_dim, args.norm_eps),
        window=args.window(layer),
    )


def _norm(args: Qwen3Args) -> RMSNorm:
    return RMSNorm(args.hidden_size, args.norm_eps)
