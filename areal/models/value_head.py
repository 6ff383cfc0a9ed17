"""A critic: a decoder whose final hidden states are mapped to one number per token instead of to the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend
    from areal.models.blocks.decoder import DecoderModel


class ValueModel(nn.Module):
    """Estimates the return from each token on.

    The head starts at zero, so the first estimates are 0 whatever the backbone, and no seed is needed. The backbone
    keeps its unused vocabulary projection, frozen, so that it saves as an ordinary checkpoint.
    """

    def __init__(self, backbone: DecoderModel, *, bias: bool = True) -> None:
        """bias: a constant of its own; scores of which only differences are learnt have none."""
        super().__init__()
        self.args = backbone.args
        self.backbone = backbone
        if backbone.lm_head is not None:
            backbone.lm_head.requires_grad_(False)
        if backbone.head_transform is not None:
            backbone.head_transform.requires_grad_(False)
        weight = backbone.embed_tokens.weight
        self.head = nn.Linear(backbone.args.hidden_size, 1, bias=bias, device=weight.device, dtype=weight.dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

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
        """Return the values, float32 [T]; arguments as in `CausalModel.forward`."""
        hidden = self.backbone.hidden(tokens, positions, cu_seqlens, max_seqlen, tree_attn_meta, attention=attention)
        return self.values(hidden)

    def values(self, hidden: Tensor) -> Tensor:
        """Return the values, float32 [T], of hidden states [T, hidden_size]."""
        return self.head(hidden).squeeze(-1).to(torch.float32)

    @property
    def length_limit(self) -> int | None:
        """See `CausalModel.length_limit`."""
        return self.backbone.length_limit

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """See `DecoderModel.set_gradient_checkpointing`."""
        self.backbone.set_gradient_checkpointing(enabled)
