"""One number for a whole sequence, from a model that has a value for every token.

A critic's value at token t is that of the state in which t was chosen (`areal.api.records`), so the state that has seen
everything belongs to one token after the last: a mark, which is never read, only asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MARK: Final = 0
"""Any id the vocabulary has."""


def marked(tokens: Sequence[int], mask: Sequence[int]) -> tuple[list[int], list[int]]:
    """Tokens and loss mask with the mark at the end, where the score will be."""
    return [*tokens, MARK], [*mask, 1]


def final_scores(values: Tensor, lengths: Tensor) -> Tensor:
    """Values at the marks: [S, L] and int64 [S], the mark included, to [S]. Differentiable."""
    return values.gather(1, (lengths - 1)[:, None]).squeeze(1)
