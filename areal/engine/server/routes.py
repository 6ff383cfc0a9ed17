"""Turns what servers report of the experts that their routers chose into routes of ours.

A server reports, with the last tokens of a call, a row for each token that it has computed: experts of every layer, of
those without a router too. Routes of ours count routers and take as few bytes as possible (`areal.utils.routes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal.engine.server.errors import BrokenTokensError
from areal.utils.routes import route_dtype, unrecorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRouters:
    """The routers of a model that servers compute with.

    Example: of four layers, the first one dense, with routers that choose 2 of 8 experts, `layers` is (1, 2, 3), and
    what a server reports of T tokens, [T, 4, 2], is decoded to uint8 [T, 3, 2].
    """

    num_layers: int
    """Of the model, those without a router too."""
    layers: tuple[int, ...]
    """The layers that have a router, one each, in ascending order."""
    num_experts: int
    top_k: int

    def decode(self, reported: np.ndarray, *, where: str) -> Tensor:
        """Return uint8 or int16 [T, M, K] of integers [T, num_layers, K], or of the same numbers in one row.

        Raises BrokenTokensError for another shape, for experts that do not exist, and for a token that was given one
        expert twice, as it is where a server has not recorded a layer.
        """
        import torch

        expected = (self.num_layers, self.top_k)
        fits = reported.shape[1:] == expected if reported.ndim == 3 else reported.ndim == 1
        if reported.dtype.kind not in "iu" or not fits or reported.size % (self.num_layers * self.top_k):
            raise BrokenTokensError(
                f"{where} sent experts as {reported.dtype} {list(reported.shape)}, expected integers [tokens, "
                f"{self.num_layers} layers, {self.top_k} experts]"
            )
        chosen = reported.reshape(-1, *expected)[:, list(self.layers)]
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self.num_experts:
            raise BrokenTokensError(
                f"{where} sent experts {chosen.min()} to {chosen.max()}, expected 0 to {self.num_experts - 1}"
            )
        found = torch.from_numpy(chosen.astype("uint8" if self._dtype.itemsize == 1 else "int16"))
        ordered = found.sort(-1).values
        if (twice := (ordered[..., 1:] == ordered[..., :-1]).any(-1)).any():
            token, router = twice.nonzero()[0].tolist()
            raise BrokenTokensError(
                f"{where} sent experts {found[token, router].tolist()} of layer {self.layers[router]} for one token, "
                f"expected {self.top_k} different ones: has it a router there?"
            )
        return found

    def join(self, parts: Sequence[Tensor], length: int) -> Tensor:
        """Return [length, M, K] of parts that follow each other; tokens after the last part are `unrecorded`."""
        import torch

        missing = length - sum(part.shape[0] for part in parts)
        shape = (missing, len(self.layers), self.top_k)
        return torch.cat([*parts, torch.full(shape, unrecorded(self._dtype), dtype=self._dtype)])

    @property
    def _dtype(self) -> torch.dtype:
        return route_dtype(self.num_experts)
