"""The decoder that families assemble: embedding, blocks, final norm and vocabulary projection over packed tokens.

A family passes its blocks, norm and positions to `DecoderModel`; what happens inside a block is the family's. No loop
over documents, mask or cache is here: those belong to the attention backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from areal.api import ModelError
from areal.models.blocks.linear import linear
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.rotary import shortest_limit
from areal.models.blocks.routing import call_routed, number_routers
from areal.models.blocks.shared_keys import connect
from areal.models.saving import save_pretrained
from areal.models.wrapping import check_text, refused_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

    from areal.api import AttentionBackend, ExpertRoutes
    from areal.models.blocks.rotary import QueryGrowth, Rotary


class VocabularyHead(nn.Module):
    """Weight and bias of the projection to the vocabulary, as far as they are not the embedding's."""

    def __init__(self, hidden_size: int, vocab_size: int, *, weight: bool, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size)) if weight else None
        self.bias = nn.Parameter(torch.empty(vocab_size)) if bias else None

    def forward(self, hidden: Tensor, embedding: Tensor | None) -> Tensor:
        """[..., hidden_size] -> [..., vocab_size]; embedding: used when the head has no weight."""
        weight = embedding if self.weight is None else self.weight
        assert weight is not None, "a head without a matrix needs the embedding"
        return linear(hidden, weight, self.bias)


class DecoderModel(nn.Module):
    """A `CausalModel`. With tied embeddings there is no lm_head: the projection uses the embedding's weight."""

    lm_head: VocabularyHead | None

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        args: Any,
        *,
        layers: Iterable[nn.Module],
        norm: nn.Module | None,
        rotary: Rotary | QueryGrowth | Sequence[Rotary | QueryGrowth | None] | None,
        embedding_multiplier: float = 1.0,
        embed_positions: nn.Module | None = None,
        embed_norm: nn.Module | None = None,
        layer_embeddings: nn.Module | None = None,
        head_transform: nn.Module | None = None,
        head_bias: bool = False,
        logit_multiplier: float = 1.0,
        logit_softcap: float | None = None,
    ) -> None:
        """args: a `BaseModelArgs`; used are vocab_size, hidden_size, num_layers and tie_word_embeddings.

        rotary: of all layers, or one entry per layer (None: no rotation), in which layers share objects. The embedding
        is multiplied, then positions (a module from positions [T] to [T, hidden_size]) are added, then it is normed.
        layer_embeddings: what each layer gets of the tokens beside the hidden states (`LayerEmbeddings`); then all
        blocks take it as one more argument.
        head_transform: applied to hidden states before they are projected to the vocabulary.
        Logits are multiplied, then bounded: softcap * tanh(logits / softcap). A head bias is "lm_head.bias", also
        where the head has no weight of its own. Raises ModelError where more dimensions are rotated than a head has.
        """
        super().__init__()
        self.args = args
        # Filled later: to draw numbers on the meta device, torch would import torch._dynamo, a second of CPU.
        weight = torch.empty(args.vocab_size, args.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(weight, freeze=False)
        self.embed_positions = embed_positions
        self.embed_norm = embed_norm
        self.layer_embeddings = layer_embeddings
        self.layers = nn.ModuleList(layers)
        self.router_numbers = number_routers(self.layers)
        """Of each layer, its routers, counted through the whole model."""
        self.norm = norm
        self.head_transform = head_transform
        self.rotaries = _per_layer(rotary, len(self.layers))
        _check_rotated(self.layers, self.rotaries)
        _check_selections(self.layers)
        connect(self.layers)
        self.embedding_multiplier = embedding_multiplier
        self.logit_multiplier = logit_multiplier
        self.logit_softcap = logit_softcap
        has_weight = not args.tie_word_embeddings
        self.lm_head = (
            VocabularyHead(args.hidden_size, args.vocab_size, weight=has_weight, bias=head_bias)
            if has_weight or head_bias
            else None
        )
        self._gradient_checkpointing = False
        self._refused = refused_tokens(args)

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
        """Return the logits [T, vocab_size]; see `CausalModel.forward`."""
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
        routes: ExpertRoutes | None = None,
    ) -> Tensor:
        """Return the final-norm output [T, hidden_size]; see `CausalModel.hidden`.

        routes: settles which experts routers choose; None leaves it to them.
        """
        if tree_attn_meta is not None:
            raise ModelError("tree_attn_meta is set, but shared-prefix attention is not implemented; pass None")
        if attention is None:
            attention = PackedBackend(cu_seqlens, tokens.shape[0], tokens.device)
        # A cache must not see the same keys twice, so only attention that says it has no memory is recomputed.
        stateless = getattr(attention, "stateless", False)
        recompute = self._gradient_checkpointing and stateless and torch.is_grad_enabled()
        hidden = self._embed(tokens, positions)
        distinct = dict.fromkeys(rotary for rotary in self.rotaries if rotary is not None)
        rotations = {rotary: rotary(positions, hidden.dtype, cu_seqlens) for rotary in distinct}
        given = None if self.layer_embeddings is None else self.layer_embeddings(tokens, hidden)
        for number, (layer, rotary) in enumerate(zip(self.layers, self.rotaries, strict=True)):
            rotation = None if rotary is None else rotations[rotary]
            more = () if given is None else (given[:, number],)
            routers = self.router_numbers[number]
            call = partial(call_routed, layer, routers, routes) if routes is not None and routers else layer
            if recompute:
                hidden = checkpoint(call, hidden, rotation, attention, *more, use_reentrant=False)
            else:
                hidden = call(hidden, rotation, attention, *more)
        return hidden if self.norm is None else self.norm(hidden)

    def project(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits, [..., hidden_size] -> [..., vocab_size]; includes logit scaling and softcap."""
        # A piece of a pipeline has no embedding, and a head with a matrix of its own.
        embedding = None if self.embed_tokens is None else self.embed_tokens.weight
        if self.head_transform is not None:
            hidden = self.head_transform(hidden)
        if self.lm_head is None:
            assert embedding is not None, "without a head there is an embedding"
            logits = linear(hidden, embedding)
        else:
            logits = self.lm_head(hidden, embedding)
        if self.logit_multiplier != 1.0:
            logits = logits * self.logit_multiplier
        if self.logit_softcap is not None:
            logits = (logits / self.logit_softcap).tanh() * self.logit_softcap
        return logits

    @property
    def length_limit(self) -> int | None:
        """See `CausalModel.length_limit`."""
        return shortest_limit(self.rotaries)

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Set whether blocks drop their activations and recompute them in the backward pass."""
        self._gradient_checkpointing = enabled

    def save_pretrained(self, path: str | Path, *, max_shard_bytes: int | None = None) -> None:
        """Write a checkpoint folder that `transformers` loads; see `areal.models.saving.save_pretrained`."""
        save_pretrained(self, path, max_shard_bytes=max_shard_bytes)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if self._refused:
            check_text(tokens, positions, self._refused)
        hidden: Tensor = self.embed_tokens(tokens)
        if self.embedding_multiplier != 1.0:
            # In the dtype of the hidden states: Gemma rounds its multiplier to bfloat16, and so did its training.
            hidden = hidden * torch.tensor(self.embedding_multiplier, dtype=hidden.dtype)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions(positions).to(hidden.dtype)
        return hidden if self.embed_norm is None else self.embed_norm(hidden)


def _per_layer(
    rotary: Rotary | QueryGrowth | Sequence[Rotary | QueryGrowth | None] | None, num_layers: int
) -> tuple[Rotary | QueryGrowth | None, ...]:
    if isinstance(rotary, Sequence):
        assert len(rotary) == num_layers, f"{len(rotary)} rotaries for {num_layers} layers"
        return tuple(rotary)
    return (rotary,) * num_layers


def _check_selections(layers: Iterable[nn.Module]) -> None:
    """Raise ModelError for a layer that takes over what no layer before it chose."""
    chosen = False
    for number, layer in enumerate(layers):
        attention = getattr(layer, "self_attn", None)
        chosen = chosen or getattr(attention, "indexer", None) is not None
        if getattr(attention, "shares_selection", False) and not chosen:
            raise ModelError(
                f"layer {number} attends to the tokens that an earlier layer chose, but no layer before it has an "
                f"indexer; expected a first layer with its own"
            )


def _check_rotated(layers: Iterable[nn.Module], rotaries: Iterable[Rotary | QueryGrowth | None]) -> None:
    """Check the size of heads: an odd number of rotated dimensions is rounded up, which a head may be too small for:
    one of a single dimension would silently become two, by broadcasting."""
    for layer, rotary in zip(layers, rotaries, strict=True):
        attention = getattr(layer, "self_attn", None)
        size = getattr(attention, "rope_dim", getattr(attention, "head_dim", None))
        size = None if hasattr(attention, "place") else size  # layers with a state are not rotated
        if rotary is not None and size is not None and rotary.dim > size:
            raise ModelError(f"rotary positions turn {rotary.dim} dimensions in pairs, but a head has {size}")
