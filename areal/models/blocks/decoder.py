"""The decoder that families assemble: embedding, blocks, final norm and vocabulary projection over packed tokens.

A family passes its blocks, norm and rotary embedding to `DecoderModel`; what happens inside a block is the family's. No
loop over documents, mask or cache is here: those belong to the attention backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from areal.api import ModelError
from areal.models.blocks.attention import PackedAttention
from areal.models.saving import save_pretrained

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

    from areal.api import AttentionBackend
    from areal.models.blocks.rotary import Rotary, Rotation
    from areal.models.decoder_args import DecoderArgs


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        *,
        input_layernorm: nn.Module,
        self_attn: nn.Module,
        post_attention_layernorm: nn.Module,
        mlp: nn.Module,
    ) -> None:
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp

    def forward(self, hidden: Tensor, rotation: Rotation, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, attention)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DecoderModel(nn.Module):
    """A `CausalModel`. With tied embeddings there is no lm_head: the projection uses the embedding's weight."""

    def __init__(self, args: DecoderArgs, *, layers: Iterable[nn.Module], norm: nn.Module, rotary: Rotary) -> None:
        super().__init__()
        self.args = args
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary = rotary
        self.lm_head = None if args.tie_word_embeddings else nn.Linear(args.hidden_size, args.vocab_size, bias=False)
        self._gradient_checkpointing = False

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend | None = None,
    ) -> Tensor:
        """Logits [T, vocab_size]; see `CausalModel.forward`."""
        hidden = self.hidden(tokens, positions, cu_seqlens, max_seqlen, tree_attn_meta, attention=attention)
        return self.project(hidden)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend | None = None,
    ) -> Tensor:
        """Final-norm output [T, hidden_size]; see `CausalModel.hidden`."""
        if tree_attn_meta is not None:
            raise ModelError("tree_attn_meta is set, but shared-prefix attention is not implemented; pass None")
        if attention is None:
            attention = PackedAttention(cu_seqlens, tokens.shape[0], tokens.device)
        # A cache must not see the same keys twice, so only attention that says it has no memory is recomputed.
        stateless = getattr(attention, "stateless", False)
        recompute = self._gradient_checkpointing and stateless and torch.is_grad_enabled()
        hidden = self.embed_tokens(tokens)
        rotation = self.rotary(positions, hidden.dtype)
        for layer in self.layers:
            if recompute:
                hidden = checkpoint(layer, hidden, rotation, attention, use_reentrant=False)
            else:
                hidden = layer(hidden, rotation, attention)
        return self.norm(hidden)

    def project(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits, [..., hidden_size] -> [..., vocab_size]."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(hidden, head.weight)

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Whether blocks drop their activations and recompute them in the backward pass."""
        self._gradient_checkpointing = enabled

    def save_pretrained(self, path: str | Path, *, max_shard_bytes: int | None = None) -> None:
        """Write a checkpoint folder that `transformers` loads; see `areal.models.saving.save_pretrained`."""
        save_pretrained(self, path, max_shard_bytes=max_shard_bytes)
