"""Lays out a micro-batch for attention without packing: rows beside each other, padded on the right.

megatron's own attention takes no packed sequences (those need Transformer Engine). A row begins at position 0, and
padding comes after it, so that causality alone hides it. Shape letters: S rows, L columns, N predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from areal.api import DistilledBatch
from areal.engine.train.packing import TokenLayout
from areal.engine.train.passes import Layout, Predicted, predicted_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import PaddedBatch


@dataclass(frozen=True, kw_only=True)
class UnpackedRows:
    """Model input of one micro-batch. Rows without a predicted token are computed for nothing: they are few."""

    layout: Layout
    tokens: Tensor
    """int64 [S, L], as long as the longest row whose states predict something; 0 on padding."""
    positions: Tensor
    """int64 [S, L]."""
    hidden_later: Tensor
    """bool [1, 1, L, L]: true where the key comes after the query."""
    source: Tensor
    """int64 [N]: index of the state that predicts each predicted token, into S * L in row-major order."""


def lay_out_rows(part: PaddedBatch, *, only_masked: bool) -> UnpackedRows | None:
    """Lay out the rows of a micro-batch; None when no token is predicted."""
    predicted_SL = predicted_tokens(part, only_masked=only_masked)
    row_N, column_N = predicted_SL.nonzero(as_tuple=True)
    if not row_N.numel():
        return None
    # The state before a token predicts it: the last token of the longest row goes through no layer.
    length = int(column_N.max())
    columns = torch.arange(length, device=part.tokens.device)
    is_real = columns < part.lengths[:, None]
    source_N = row_N * length + column_N - 1
    candidates = None
    if isinstance(part, DistilledBatch) and part.candidates is not None:
        candidates = part.candidates[predicted_SL]
    tokens = part.tokens[:, :length] * is_real
    return UnpackedRows(
        layout=Layout(
            tokens=_token_layout(tokens, columns, source_N),
            targets=part.tokens[predicted_SL],
            predicted=Predicted(row_N, column_N, part.tokens.shape[1]),
            num_model_tokens=int(is_real.sum()),
            candidates=candidates,
        ),
        tokens=tokens,
        positions=columns.expand_as(tokens),
        hidden_later=(columns[None, :] > columns[:, None])[None, None],
        source=source_N,
    )


def blank_layout(part: PaddedBatch) -> Layout:
    """Return the layout of a micro-batch without predicted tokens, whose loss is that of zeros."""
    nothing = torch.zeros(0, dtype=torch.int64, device=part.tokens.device)
    return Layout(
        tokens=_token_layout(part.tokens[:0, :0], nothing, nothing),
        targets=nothing,
        predicted=Predicted(nothing, nothing, part.tokens.shape[1]),
        num_model_tokens=0,
    )


def _token_layout(tokens: Tensor, columns: Tensor, source: Tensor) -> TokenLayout:
    rows, length = tokens.shape
    bounds = torch.arange(rows + 1, dtype=torch.int32, device=tokens.device) * length
    return TokenLayout(
        tokens=tokens.flatten(),
        positions=columns.repeat(rows),
        cu_seqlens=bounds,
        max_seqlen=length,
        attention=None,
        source=source,
    )
