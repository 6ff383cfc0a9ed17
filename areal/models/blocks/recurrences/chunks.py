"""Cuts rows of tokens into chunks, and says which tokens of a chunk meet: documents may begin anywhere in it.

Decays are never divided: a factor between two tokens is the exponential of the sum of the log decays between them,
which is at most 0. Quotients of cumulated decays overflow, and differences of long sums lose their digits.

Shape letters: R rows, L tokens of a row, N chunks, C tokens of a chunk, G key heads, P value heads of a key head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


class Borders:
    """Where documents begin in rows of tokens. Tables are made once per size of chunks; layers share them."""

    def __init__(self, begins: Tensor | None = None) -> None:
        """begins: bool [R, L], the tokens that find a state of zeros; None where none of them does."""
        self.begins = begins
        self._tables: dict[tuple[int, torch.device], ChunkTables] = {}

    def tables(self, size: int, device: torch.device) -> ChunkTables:
        """Return what meets in chunks of so many tokens."""
        found = self._tables.get((size, device))
        if found is None:
            found = self._tables[size, device] = self._make(size, device)
        return found

    def _make(self, size: int, device: torch.device) -> ChunkTables:
        causal = torch.ones(size, size, dtype=torch.bool, device=device).tril()
        if self.begins is None:
            return ChunkTables(size, causal, None, None, None)
        rows, length = self.begins.shape
        padded = functional.pad(self.begins.to(device), (0, -length % size))
        # Within a chunk, documents are numbered from 0, the one that began before it.
        number = padded.unflatten(1, (-1, size)).cumsum(-1).view(rows, -1, 1, 1, size, 1)
        last = number[..., -1:, :]
        return ChunkTables(size, causal & (number == number.mT), number == 0, number == last, last == 0)


class ChunkTables(NamedTuple):
    """What meets in chunks; all bool, None where all of them are true."""

    size: int
    pairs: Tensor
    """[C, C] or [R, N, 1, 1, C, C]: token i meets token j, of its document and not after it."""
    carried: Tensor | None
    """[R, N, 1, 1, C, 1]: the token reads the state that comes into the chunk."""
    kept: Tensor | None
    """[R, N, 1, 1, C, 1]: the token adds to the state that leaves the chunk."""
    survives: Tensor | None
    """[R, N, 1, 1, 1, 1]: of the state that comes in, something leaves."""

    def cut(self, tensor: Tensor, groups: int) -> Tensor:
        """[R, L, heads, dim] -> [R, N, G, heads / G, C, dim], with zeros behind the last token, at least float32."""
        tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        padded = functional.pad(tensor, (0, 0, 0, 0, 0, -tensor.shape[1] % self.size))
        return padded.unflatten(1, (-1, self.size)).unflatten(3, (groups, -1)).permute(0, 1, 3, 4, 2, 5)

    def join(self, chunks: Tensor, length: int) -> Tensor:
        """[R, N, G, P, C, dim] -> [R, L, G * P, dim]."""
        return chunks.permute(0, 1, 4, 2, 3, 5).flatten(3, 4).flatten(1, 2)[:, :length]

    def from_before(self, log_decay: Tensor) -> Tensor:
        """Return the decay of the state that comes in until each token, itself included; 0 where it does not read it.

        log_decay: [R, N, G, P, C, dim].
        """
        return _only(log_decay.cumsum(-2).exp(), self.carried)

    def to_end(self, log_decay: Tensor) -> Tensor:
        """Return the decay of what each token adds until the end of the chunk; 0 where its document has ended."""
        after = functional.pad(log_decay[..., 1:, :], (0, 0, 0, 1))
        return _only(after.flip(-2).cumsum(-2).flip(-2).exp(), self.kept)

    def across(self, log_decay: Tensor) -> Tensor:
        """Return the decay of a state over the whole chunk, [R, N, G, P, 1, dim]; 0 where its document has ended."""
        return _only(log_decay.sum(-2, keepdim=True).exp(), self.survives)

    def between(self, log_decay: Tensor) -> Tensor:
        """Return the decay from token j to token i, [R, N, G, P, C, C, *dim]; 0 for those that do not meet.

        log_decay: [R, N, G, P, C, *dim].
        """
        extra = log_decay.dim() - 5
        after = torch.ones(self.size, self.size, dtype=torch.bool, device=log_decay.device).tril(-1)
        pairs, after = (mask.reshape(*mask.shape, *(1,) * extra) for mask in (self.pairs, after))
        steps = log_decay.unsqueeze(5).expand(*log_decay.shape[:5], self.size, *log_decay.shape[5:])
        # Token i adds its own log decay for every token before it.
        sums = steps.masked_fill(~after, 0.0).cumsum(4)
        return sums.masked_fill(~pairs, float("-inf")).exp()


def _only(decay: Tensor, mask: Tensor | None) -> Tensor:
    return decay if mask is None else decay.masked_fill(~mask, 0.0)
