"""Routes: which experts each router of a model chose for each token, as they travel from sampling to training.

A route is an integer tensor [T, M, K]: tokens, routers of the model, experts per token. A number takes one byte for up
to 255 experts and two for more, since a long answer has millions of them: 48 routers with 8 experts each make 384 per
token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

_MOST_IN_A_BYTE: Final = 255


def route_dtype(num_experts: int) -> torch.dtype:
    """Return the dtype of the routes of a model."""
    import torch

    return torch.uint8 if num_experts <= _MOST_IN_A_BYTE else torch.int16


def unrecorded(dtype: torch.dtype) -> int:
    """Return the number that marks a missing record in routes of this dtype."""
    return _MOST_IN_A_BYTE if dtype.itemsize == 1 else -1


def join_routes(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Join what one growing sequence recorded: each part [T_i, M, K] begins at its first token, and later ones are
    longer. The first record of a token is kept, because what was sampled next depends on it; None if any part is None.

    Example: parts of 5 and 8 tokens give rows 0 to 4 of the first, then rows 5 to 7 of the second. Where row 4 of the
    first is `unrecorded`, that of the second is taken.
    """
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    import torch  # of engines that record, which have imported it

    joined = known[0]
    for part in known[1:]:
        length = min(joined.shape[0], part.shape[0])
        first, later = joined[:length], part[:length]
        filled = torch.where(first == unrecorded(first.dtype), later, first)
        joined = torch.cat((filled, joined[length:], part[length:]))
    return joined
