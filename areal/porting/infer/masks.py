"""Which keys a query sees, read off the masked entries of attention scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

MASKED_BELOW = -1e4
"""Scores below are masked: additive masks are the dtype's minimum or -inf."""


def visible_keys(scores: Tensor) -> Tensor:
    """bool [B, H, Q, K]: whether the key has any weight in the softmax."""
    return scores > MASKED_BELOW


def window_and_chunk(visible: Tensor, *, where: str) -> tuple[int | None, int | None]:
    """Explain a mask [B, H, T, T] as causal, with a window or with chunks. Raises UnsupportedError for others."""
    pattern = visible[0, 0]
    if not torch.equal(visible, pattern.expand_as(visible)):
        raise UnsupportedError(
            "visibility that depends on the data or the head", where=where, detail="masks differ across rows or heads"
        )
    length = pattern.shape[0]
    position = torch.arange(length)
    query, key = position[:, None], position[None, :]
    causal = key <= query
    if torch.equal(pattern, causal):
        return None, None
    if bool((pattern & ~causal).any()):
        raise UnsupportedError("attention that is not causal", where=where, detail="queries see keys after them")
    window = int(pattern[-1].sum())
    if torch.equal(pattern, causal & (key > query - window)):
        return window, None
    hidden = (pattern[:, 0] & causal[:, 0]).logical_not().nonzero()
    chunk = int(hidden[0]) if len(hidden) else length
    if torch.equal(pattern, causal & (key // chunk == query // chunk)):
        return None, chunk
    raise UnsupportedError(
        "an attention mask", where=where, detail="visible keys are neither causal, nor a window, nor chunks"
    )
