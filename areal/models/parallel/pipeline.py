"""Pipeline parallelism: a decoder cut into pieces of consecutive layers, each a decoder that gets hidden states.

A piece keeps the names that its parameters have in the whole model. What is computed in which order is the engine's.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from areal.api import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend


def pieces_of(num_layers: int, number: int) -> list[range]:
    """Layers of each piece, equal up to one."""
    bounds = [round(piece * num_layers / number) for piece in range(number + 1)]
    return [range(bounds[piece], bounds[piece + 1]) for piece in range(number)]


def take_piece(model: nn.Module, index: int, number: int) -> nn.Module:
    """Piece `index` of `number` of a DecoderModel, sharing its modules; the first embeds, the last norms and projects.

    Raises ModelError when a piece would have no layer, or the ends of the pipeline would have to share a matrix.
    """
    whole: Any = model
    if whole.args.num_layers < number:
        raise ModelError(f"{whole.args.num_layers} layers cannot be cut into {number} pieces; lower parallel.pp")
    if whole.lm_head is None or whole.lm_head.weight is None:
        raise ModelError(
            "the first and the last piece of a pipeline would share the tied embedding, which is not implemented; "
            "set parallel.pp to 1"
        )
    piece: Any = copy.copy(whole)
    piece._modules = dict(whole._modules)
    piece.layers = nn.ModuleDict(
        {str(layer): whole.layers[layer] for layer in pieces_of(len(whole.layers), number)[index]}
    )
    dropped = [] if index == 0 else ["embed_tokens", "embed_positions", "embed_norm"]
    dropped += [] if index == number - 1 else ["norm", "head_transform", "lm_head"]
    for name in dropped:
        piece._modules[name] = None
    piece.__class__ = type(f"Piece{type(whole).__name__}", (_Piece, type(whole)), {})
    return piece


class _Piece:
    """Takes the place of `DecoderModel.hidden`."""

    def hidden(
        self: Any,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend,
        received: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the piece's layers; received: those of the piece before, None for the first."""
        hidden = self._embed(tokens, positions) if received is None else received
        rotaries = {name: self.rotaries[int(name)] for name in self.layers}
        distinct = dict.fromkeys(rotary for rotary in rotaries.values() if rotary is not None)
        rotations = {rotary: rotary(positions, hidden.dtype, cu_seqlens) for rotary in distinct}
        recompute = self._gradient_checkpointing and torch.is_grad_enabled()
        for name, layer in self.layers.items():
            rotation = None if rotaries[name] is None else rotations[rotaries[name]]
            if recompute:
                hidden = checkpoint(layer, hidden, rotation, attention, use_reentrant=False)
            else:
                hidden = layer(hidden, rotation, attention)
        return hidden if self.norm is None else self.norm(hidden)

    def project(self: Any, hidden: Tensor) -> Tensor:
        """See `DecoderModel.project`; of the last piece only, whose head has a matrix of its own."""
        head = self.lm_head
        transformed = hidden if self.head_transform is None else self.head_transform(hidden)
        logits = head(transformed, head.weight)
        if self.logit_multiplier != 1.0:
            logits = logits * self.logit_multiplier
        if self.logit_softcap is not None:
            logits = (logits / self.logit_softcap).tanh() * self.logit_softcap
        return logits
