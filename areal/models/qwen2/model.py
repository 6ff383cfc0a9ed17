"""Qwen2: pre-norm blocks of biased grouped-query attention and SwiGLU; windowed layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.rotary import Rotary

if TYPE_CHECKING:
    from areal.models.qwen2.args import Qwen2Args


class Qwen2Model(DecoderModel):
    """A `CausalModel`."""

    args: Qwen2Args

    def __init__(self, args: Qwen2Args) -> None:
        super().__init__(
            args,
            layers=(_block(args, layer) for layer in range(args.num_layers)),
            norm=_norm(args),
            rotary=Rotary(args.rotary, args.head_dim),
        )


def _block(args: Qwen2Args, layer: int) -> PreNormBlock:
    return PreNormBlock(
        input_layernorm=_norm(args),
        self_attn=SelfAttention(layer, args, qkv_bias=True, window=args.window(layer)),
        post_attention_layernorm=_norm(args),
        mlp=GatedMLP(args.hidden_size, args.intermediate_size, activation=args.hidden_act),
    )


def _norm(args: Qwen2Args) -> RMSNorm:
    return RMSNorm(args.hidden_size, args.norm_eps)
