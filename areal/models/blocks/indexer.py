"""The token indexer of sparse attention (DeepSeek-V3.2, arXiv 2512.02556): a narrow attention that ranks the tokens
which a query may see, so that the real one attends to the best few only.

It is trained by a loss of its own, never by the gradient of logits: choosing has none. Its parameters are frozen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from areal.api import ModelError
from areal.models.blocks.linear import Linear
from areal.models.blocks.norms import LayerNorm
from areal.models.blocks.rotary import rotate
from areal.models.blocks.selection import with_selection

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend
    from areal.models.blocks.rotary import Rotation


MIN_HEADS: Final = 8
"""A token that no head matches has a score of exactly zero, one in 2^heads by chance. Reference implementations take
any of equal scores, so that with few heads a checkpoint does not say what is computed."""


class TokenIndexer(nn.Module):
    """Scores of a query and a key: sum over heads of weight_h * relu(q_h k), with one key for all heads.

    Parameters, all without a gradient: q_proj, k_proj, k_norm, weight_proj.
    """

    def __init__(
        self,
        hidden_size: int,
        query_rank: int,
        *,
        num_heads: int,
        head_dim: int,
        top_k: int,
        norm_eps: float,
        rope_dim: int,
        interleaved: bool,
    ) -> None:
        """query_rank: width of the compressed queries, out of which its own are made. top_k: how many tokens are
        attended to. norm_eps: of the LayerNorm of keys. rope_dim: the first dimensions of a head that positions turn,
        with the angles of the attention beside it; interleaved: in pairs of neighbours, whatever that one does.

        Raises ModelError where a head has fewer dimensions than are turned, for no tokens at all, and for fewer than
        `MIN_HEADS` heads.
        """
        super().__init__()
        if rope_dim > head_dim:
            raise ModelError(f"an indexer with heads of {head_dim} dimensions cannot turn {rope_dim} of them")
        if num_heads < MIN_HEADS:
            raise ModelError(
                f"an indexer of {num_heads} heads gives many tokens the same score of zero, and which of them are "
                f"chosen is not defined; expected at least {MIN_HEADS} heads"
            )
        if top_k < 1:
            raise ModelError(f"an indexer that chooses {top_k} tokens leaves none to attend to, expected at least 1")
        self.num_heads, self.head_dim, self.top_k = num_heads, head_dim, top_k
        self.interleaved = interleaved
        self.q_proj = Linear(query_rank, num_heads * head_dim, bias=False)
        self.k_proj = Linear(hidden_size, head_dim, bias=False)
        self.k_norm = LayerNorm(head_dim, norm_eps)
        self.weight_proj = Linear(hidden_size, num_heads, bias=False)
        self.requires_grad_(False)

    def forward(
        self, layer: int, hidden: Tensor, latent: Tensor, rotation: Rotation | None, attention: AttentionBackend
    ) -> None:
        """Let the backend choose for a layer, out of its input [T, hidden_size] and the compressed queries [T,
        query_rank]. rotation: of the attention; None where positions turn nothing. Raises ModelError where the backend
        cannot choose."""
        with torch.no_grad():
            turning = None if rotation is None else rotation.paired(interleaved=self.interleaved)
            query = rotate(self.q_proj(latent).unflatten(-1, (self.num_heads, self.head_dim)), turning)
            key = rotate(self.k_norm(self.k_proj(hidden)).unsqueeze(1), turning).squeeze(1)
            weight = self.weight_proj(hidden)
        with_selection(attention, layer).select(layer, query, key, weight, count=self.top_k)
