"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values come from one narrow vector per token.

Backends get whole keys and values, as of any other attention; no cache of the narrow vectors is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from areal.api import ModelError
from areal.models.blocks.linear import Linear
from areal.models.blocks.rotary import rotate, scale_query

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend, BaseModelArgs
    from areal.models.blocks.indexer import TokenIndexer
    from areal.models.blocks.rotary import Rotation


class LatentAttention(nn.Module):
    """Each head has `nope_dim` dimensions without and then `rope_dim` dimensions with positions; all heads of a token
    share the key's latter ones.

    Parameters: q_proj, or q_a_proj, q_a_norm and q_b_proj; kv_a_proj, kv_a_norm, kv_b_proj; o_proj; gate_proj and
    indexer, if asked for.
    """

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        query_rank: int | None,
        kv_rank: int,
        nope_dim: int,
        rope_dim: int,
        value_dim: int,
        query_norm: nn.Module | None,
        kv_norm: nn.Module,
        scale: float,
        num_heads: int | None = None,
        query_bias: bool = False,
        kv_bias: bool = False,
        output_bias: bool = False,
        softcap: float | None = None,
        window: int | None = None,
        chunk: int | None = None,
        query_latent_scale: float = 1.0,
        kv_latent_scale: float = 1.0,
        gate: Literal["none", "elementwise", "headwise"] = "none",
        indexer: TokenIndexer | None = None,
        shares_selection: bool = False,
    ) -> None:
        """num_heads: that of args if None. query_rank: width of the compressed query, which `query_norm` norms; None
        for queries that are not compressed. kv_rank, kv_norm: the same of keys and values. query_bias, kv_bias: of
        q_a_proj (q_proj without compression) and kv_a_proj. query_latent_scale, kv_latent_scale: factors on the normed
        compressed vectors. scale, softcap, window, chunk: see `AttentionBackend`. gate: see `SelfAttention`.
        indexer: chooses the tokens that are attended to, by the normed compressed query. shares_selection: those are
        attended to that the last layer with an indexer chose. Raises ModelError for an indexer of queries that are not
        compressed, and for both."""
        super().__init__()
        self.layer = layer
        num_heads = args.num_heads if num_heads is None else num_heads
        self.kv_rank, self.nope_dim, self.rope_dim, self.value_dim = kv_rank, nope_dim, rope_dim, value_dim
        self.scale, self.softcap, self.window, self.chunk = scale, softcap, window, chunk
        self.query_latent_scale, self.kv_latent_scale = query_latent_scale, kv_latent_scale
        query_size = num_heads * (nope_dim + rope_dim)
        self.q_proj: nn.Linear | None = None
        self.q_a_proj: nn.Linear | None = None
        if query_rank is None:
            self.q_proj = Linear(args.hidden_size, query_size, bias=query_bias)
        else:
            self.q_a_proj = Linear(args.hidden_size, query_rank, bias=query_bias)
            self.q_a_norm = query_norm
            self.q_b_proj = Linear(query_rank, query_size, bias=False)
        self.kv_a_proj = Linear(args.hidden_size, kv_rank + rope_dim, bias=kv_bias)
        self.kv_a_norm = kv_norm
        self.kv_b_proj = Linear(kv_rank, num_heads * (nope_dim + value_dim), bias=False)
        self.o_proj = Linear(num_heads * value_dim, args.hidden_size, bias=output_bias)
        self.gate_proj: nn.Linear | None = None
        if gate != "none":
            gates = num_heads * value_dim if gate == "elementwise" else num_heads
            self.gate_proj = Linear(args.hidden_size, gates, bias=False)
        self._headwise = gate == "headwise"
        if indexer is not None and (query_rank is None or shares_selection):
            problem = "another layer's choice beside it" if shares_selection else "queries that are not compressed"
            raise ModelError(f"layer {layer} has an indexer and {problem}")
        self.indexer = indexer
        self.shares_selection = shares_selection
        self.selected = shares_selection or indexer is not None

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: None where positions do not turn queries and keys."""
        narrow = self._query_latent(hidden)
        if self.indexer is not None:
            self.indexer(self.layer, hidden, narrow, rotation, attention)
        # -1: under tensor parallelism a rank holds only some of the heads.
        expand = self.q_proj if self.q_a_proj is None else self.q_b_proj
        assert expand is not None, "queries are compressed or not"
        query = expand(narrow).unflatten(-1, (-1, self.nope_dim + self.rope_dim))
        query_nope, query_rope = query.split((self.nope_dim, self.rope_dim), -1)
        latent, key_rope = self.kv_a_proj(hidden).split((self.kv_rank, self.rope_dim), -1)
        latent = self.kv_a_norm(latent)
        if self.kv_latent_scale != 1.0:
            latent = latent * self.kv_latent_scale
        heads = self.kv_b_proj(latent).unflatten(-1, (-1, self.nope_dim + self.value_dim))
        key_nope, value = heads.split((self.nope_dim, self.value_dim), -1)
        key_rope = rotate(key_rope.unsqueeze(1), rotation).expand(-1, key_nope.shape[1], -1)
        attended = attention(
            self.layer,
            scale_query(torch.cat((query_nope, rotate(query_rope, rotation)), -1), rotation),
            torch.cat((key_nope, key_rope), -1),
            value,
            scale=self.scale,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            selected=self.selected,
        )
        if self.gate_proj is None:
            return self.o_proj(attended.flatten(1))
        gates = self.gate_proj(hidden).sigmoid()
        return self.o_proj((attended * gates[:, :, None]).flatten(1) if self._headwise else attended.flatten(1) * gates)

    def _query_latent(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, query_rank], normed and scaled; the same where queries are not compressed."""
        if self.q_a_proj is None:
            return hidden
        latent = self.q_a_proj(hidden)
        if self.q_a_norm is not None:
            latent = self.q_a_norm(latent)
        if self.query_latent_scale != 1.0:
            latent = latent * self.query_latent_scale
        return latent
