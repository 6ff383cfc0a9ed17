"""Decoder blocks: how norms, attention and feed-forward layer are wired. All map [T, hidden_size] to the same shape.

Children are keyword-only and keep the names that checkpoints of the Llama line use. `residual_multiplier` scales what a
branch adds to the residual stream.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from areal.api import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend
    from areal.models.blocks.rotary import Rotation


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Without input_layernorm, attention reads x itself; with a
    post_feedforward_layernorm, what the mlp gives is normed before it is added (A.X K1). With a mixer `beside`, both
    mixers read the same norm, and what they give is added (Falcon-H1)."""

    def __init__(
        self,
        *,
        input_layernorm: nn.Module | None,
        self_attn: nn.Module,
        post_attention_layernorm: nn.Module,
        mlp: nn.Module,
        post_feedforward_layernorm: nn.Module | None = None,
        beside: nn.Module | None = None,
        attention_multipliers: tuple[float, float] = (1.0, 1.0),
        beside_multipliers: tuple[float, float] = (1.0, 1.0),
        residual_multiplier: float = 1.0,
    ) -> None:
        """attention_multipliers, beside_multipliers: of what self_attn, or `beside`, reads and of what it gives; only
        where there are both."""
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp
        self.post_feedforward_layernorm = post_feedforward_layernorm
        self.beside = beside
        self.attention_multipliers, self.beside_multipliers = attention_multipliers, beside_multipliers
        self.residual_multiplier = residual_multiplier

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        normed = hidden if self.input_layernorm is None else self.input_layernorm(hidden)
        if self.beside is None:
            mixed = self.self_attn(normed, rotation, attention)
        else:
            (before, after), (beside_before, beside_after) = self.attention_multipliers, self.beside_multipliers
            mixed = _times(self.self_attn(_times(normed, before), rotation, attention), after)
            mixed = mixed + _times(self.beside(_times(normed, beside_before), rotation, attention), beside_after)
        hidden = _add(hidden, mixed, self.residual_multiplier)
        fed = self.mlp(self.post_attention_layernorm(hidden))
        if self.post_feedforward_layernorm is not None:
            fed = self.post_feedforward_layernorm(fed)
        return _add(hidden, fed, self.residual_multiplier)


class NormedStreamBlock(nn.Module):
    """n = norm(x); h = a n + b attention(n); m = norm(h); c m + d mlp(m): norms are part of the residual stream
    (MiniMax-01)."""

    def __init__(
        self,
        *,
        input_layernorm: nn.Module,
        self_attn: nn.Module,
        post_attention_layernorm: nn.Module,
        mlp: nn.Module,
        attention_factors: tuple[float, float] = (1.0, 1.0),
        mlp_factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """attention_factors, mlp_factors: a and b, c and d."""
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp
        self.attention_factors, self.mlp_factors = attention_factors, mlp_factors

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        normed = self.input_layernorm(hidden)
        stream, branch = self.attention_factors
        hidden = _times(normed, stream) + _times(self.self_attn(normed, rotation, attention), branch)
        normed = self.post_attention_layernorm(hidden)
        stream, branch = self.mlp_factors
        return _times(normed, stream) + _times(self.mlp(normed), branch)


class PostNormBlock(nn.Module):
    """x + norm(attention(x)), then x + norm(mlp(x)): what branches add is normed, what they read is not (OLMo 2)."""

    def __init__(
        self,
        *,
        self_attn: nn.Module,
        post_attention_layernorm: nn.Module,
        mlp: nn.Module,
        post_feedforward_layernorm: nn.Module,
        residual_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp
        self.post_feedforward_layernorm = post_feedforward_layernorm
        self.residual_multiplier = residual_multiplier

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        attended = self.post_attention_layernorm(self.self_attn(hidden, rotation, attention))
        hidden = _add(hidden, attended, self.residual_multiplier)
        return _add(hidden, self.post_feedforward_layernorm(self.mlp(hidden)), self.residual_multiplier)


class SandwichBlock(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))) (Gemma 2), times a number that is stored beside the
    weights and not trained, where there is an output_scale [1] (Gemma 4). Where sums are counted, sum k of the model
    is sqrt((k - 1) / k) of the stream and sqrt(1 / k) of the branch, so that no depth makes the stream longer
    (Beam). `experts_beside` the feed-forward layer (`areal.models.blocks.experts_beside`) read the same stream, and
    give the sum. A `layer_input` (`areal.models.blocks.layer_embeddings`) adds what a layer gets of its tokens, before
    the output is scaled."""

    output_scale: Tensor | None

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        *,
        input_layernorm: nn.Module,
        self_attn: nn.Module,
        post_attention_layernorm: nn.Module,
        pre_feedforward_layernorm: nn.Module,
        mlp: nn.Module,
        post_feedforward_layernorm: nn.Module,
        residual_multiplier: float = 1.0,
        experts_beside: nn.Module | None = None,
        layer_input: nn.Module | None = None,
        output_scale: bool = False,
        first_sum: int | None = None,
    ) -> None:
        """first_sum: the k of the sum behind attention, that of the other one is k + 1; None: sums are not counted."""
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.pre_feedforward_layernorm = pre_feedforward_layernorm
        self.mlp = mlp
        self.post_feedforward_layernorm = post_feedforward_layernorm
        self.residual_multiplier = residual_multiplier
        self.experts_beside = experts_beside
        self.layer_input = layer_input
        self.register_buffer("output_scale", torch.ones(1) if output_scale else None)
        self.first_sum = first_sum

    def forward(
        self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend, given: Tensor | None = None
    ) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. given: [T, size], what the layer gets of its tokens; only with a
        layer_input."""
        attended = self.self_attn(self.input_layernorm(hidden), rotation, attention)
        hidden = self._sum(hidden, self.post_attention_layernorm(attended), 0)
        fed = self.mlp(self.pre_feedforward_layernorm(hidden))
        if self.experts_beside is not None:
            fed = self.experts_beside(hidden, fed)
        hidden = self._sum(hidden, self.post_feedforward_layernorm(fed), 1)
        if self.layer_input is not None:
            hidden = self.layer_input(hidden, given)
        return hidden if self.output_scale is None else hidden * self.output_scale.to(hidden.dtype)

    def _sum(self, hidden: Tensor, branch: Tensor, number: int) -> Tensor:
        branch = _times(branch, self.residual_multiplier)
        if self.first_sum is None:
            return hidden + branch
        count = self.first_sum + number
        return branch * (1 / math.sqrt(count)) + hidden * math.sqrt((count - 1) / count)


class ParallelBlock(nn.Module):
    """x + attention(norm(x)) + mlp(norm(x)): both branches read the block's input (GPT-J).

    With a `post_attention_layernorm` the feed-forward layer reads through that norm, else through the attention's.
    """

    def __init__(
        self,
        *,
        input_layernorm: nn.Module,
        self_attn: nn.Module,
        mlp: nn.Module,
        post_attention_layernorm: nn.Module | None = None,
        residual_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp
        self.residual_multiplier = residual_multiplier

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        normed = self.input_layernorm(hidden)
        attended = self.self_attn(normed, rotation, attention)
        if self.post_attention_layernorm is not None:
            normed = self.post_attention_layernorm(hidden)
        return _add(hidden, attended + self.mlp(normed), self.residual_multiplier)


class PostResidualBlock(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)): the residual stream itself is normed (GPT, Transformer 2017)."""

    def __init__(
        self,
        *,
        self_attn: nn.Module,
        input_layernorm: nn.Module,
        mlp: nn.Module,
        post_attention_layernorm: nn.Module,
        residual_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.input_layernorm = input_layernorm
        self.mlp = mlp
        self.post_attention_layernorm = post_attention_layernorm
        self.residual_multiplier = residual_multiplier

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        attended = self.self_attn(hidden, rotation, attention)
        hidden = self.input_layernorm(_add(hidden, attended, self.residual_multiplier))
        return self.post_attention_layernorm(_add(hidden, self.mlp(hidden), self.residual_multiplier))


class OnePartBlock(nn.Module):
    """x + part(norm(x)), where the part is a mixer or a feed-forward layer, never both (Mamba-2, Nemotron-H)."""

    def __init__(
        self,
        *,
        input_layernorm: nn.Module,
        self_attn: nn.Module | None,
        mlp: nn.Module | None,
        residual_multiplier: float = 1.0,
    ) -> None:
        """Raise ModelError unless exactly one of self_attn and mlp is there."""
        super().__init__()
        if (self_attn is None) == (mlp is None):
            given = "neither" if mlp is None else "both"
            raise ModelError(f"a block of one part has a mixer or a feed-forward layer, but {given} of them was given")
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.mlp = mlp
        self.residual_multiplier = residual_multiplier

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        normed = self.input_layernorm(hidden)
        if self.self_attn is not None:
            return _add(hidden, self.self_attn(normed, rotation, attention), self.residual_multiplier)
        assert self.mlp is not None, "a block has a part"
        return _add(hidden, self.mlp(normed), self.residual_multiplier)


def _add(hidden: Tensor, branch: Tensor, multiplier: float) -> Tensor:
    return hidden + _times(branch, multiplier)


def _times(hidden: Tensor, multiplier: float) -> Tensor:
    return hidden if multiplier == 1.0 else hidden * multiplier
