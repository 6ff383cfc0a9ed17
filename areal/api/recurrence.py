"""Linear recurrences that a layer asks a `StateBackend` for: what is read, what is written, and in which order.

Every record has a row per packed token, but for fields marked as `OF_HEADS`. A state is a matrix [d_k, d_v] per value
head, or a vector, and zero before the first token of a document; S is the state, and all of it is computed at least in
float32. Shape letters: T tokens, G key heads, H value heads; key heads serve H / G consecutive value heads each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


OF_HEADS: Final = {"of_heads": True}
"""Metadata of a field of a record that has a row per value head in place of one per token."""


@dataclass(frozen=True, kw_only=True)
class DeltaRule:
    """Decay, then write what the decayed state lacks (arXiv 2412.06464; by channel: Kimi Linear, arXiv 2510.26692).

    S <- exp(log_decay) S; S <- S + key (rate (value - S^T key))^T; out = S^T query.
    """

    query: Tensor
    """[T, G, d_k], scaled."""
    key: Tensor
    """[T, G, d_k]."""
    value: Tensor
    """[T, H, d_v]."""
    log_decay: Tensor
    """At most 0: [T, H], or [T, H, d_k] where every channel of the key decays by itself."""
    rate: Tensor
    """[T, H]."""
    chunk: int = 64
    """Tokens computed together; changes results by rounding only."""


@dataclass(frozen=True, kw_only=True)
class DecayedSum:
    """Decay, then add: state space duality (Mamba-2, arXiv 2405.21060), and linear attention with decay.

    S <- exp(log_decay) S + key value^T; out = S^T query.
    """

    query: Tensor
    """[T, G, d_k]; C of Mamba-2."""
    key: Tensor
    """[T, G, d_k]; B of Mamba-2."""
    value: Tensor
    """[T, H, d_v]; the inputs of Mamba-2 times their step sizes."""
    log_decay: Tensor
    """[T, H], at most 0."""
    chunk: int = 64
    """Tokens computed together; changes results by rounding only."""


@dataclass(frozen=True, kw_only=True)
class Diagonal:
    """Every number of the state decays by itself, as in gated linear recurrent units (arXiv 2402.19427).

    S <- exp(log_decay) S + value; out = S.
    """

    value: Tensor
    """[T, H, D], what is added to a state [H, D]."""
    log_decay: Tensor
    """[T, H, D], at most 0."""
    first: Tensor | None = None
    """[T, H, D], what the first token of a document begins the state with; None for its value, as all others add."""
    chunk: int = 256
    """Tokens computed together; changes results by rounding only."""


@dataclass(frozen=True, kw_only=True)
class SelectiveScan:
    """A vector for each channel, whose numbers decay at rates of their own: Mamba-1 (arXiv 2312.00752).

    S <- exp(step rates) S + step value key^T; out = S query, with a channel as a head of its own. Decays of numbers,
    tokens and channels are never all in memory: they are made, and made again for gradients, chunk by chunk.
    """

    query: Tensor
    """[T, 1, N]; C of Mamba-1."""
    key: Tensor
    """[T, 1, N]; B of Mamba-1."""
    value: Tensor
    """[T, H]."""
    step: Tensor
    """[T, H], at least 0."""
    rates: Tensor = field(metadata=OF_HEADS)
    """[H, N], below 0."""
    chunk: int = 64
    """Tokens computed together; changes results by rounding only."""


Recurrence: TypeAlias = DeltaRule | DecayedSum | Diagonal | SelectiveScan
"""What `StateBackend.scan` takes."""
