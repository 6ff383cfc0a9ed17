"""S <- exp(step rates) S + step value key^T; out = S query, a vector S per channel: selective scans (arXiv 2312.00752).

Every number of a state decays by itself, so that tokens of a chunk cannot meet in one product of matrices: sums are
doubled, as `diagonal` does it. What that needs has a number per token, channel and number of the state; it is made for
one chunk at a time. Between the passes only the state before each chunk is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from areal.models.blocks.recurrences.diagonal import scanned

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import SelectiveScan
    from areal.models.blocks.recurrences.chunks import Borders

MOST_TOKENS: Final = 1024
"""Computed together in all rows: chunks of many rows are shorter."""


def selective_rows(rule: SelectiveScan, borders: Borders, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, L, H] of rows of tokens, and the states [R, H, N] after their last ones.

    rule: with [R, L] in the place of [T]. initial: [R, H, N], what the first tokens of rows find; None for zeros. A
    token of zeros changes no state.
    """
    wide = torch.promote_types(rule.value.dtype, torch.float32)
    query, key, value, step, rates = (
        tensor.to(wide) for tensor in (rule.query.squeeze(2), rule.key.squeeze(2), rule.value, rule.step, rule.rates)
    )
    start = value.new_zeros(len(value), *rates.shape) if initial is None else initial.to(wide)
    begins = None if borders.begins is None else borders.begins.to(value.device)
    size = max(1, min(rule.chunk, MOST_TOKENS // len(value)))
    outputs, final = _Scan.apply(query, key, value, step, rates, start, begins, size)
    return outputs, final


def selective_step(rule: SelectiveScan, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, H] of one more token per row, and the states after it.

    rule: with [R] in the place of [T]. state: [R, H, N], at least float32.
    """
    query, key, value, step, rates = (
        tensor.to(state.dtype) for tensor in (rule.query, rule.key, rule.value, rule.step, rule.rates)
    )
    state = state * (step[..., None] * rates).exp() + (step * value)[..., None] * key
    return (state * query).sum(-1), state


class _Scan(torch.autograd.Function):
    """Keeps what it is given and the states before chunks for the backward pass, which computes the chunks again."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: Tensor,
        rates: Tensor,
        state: Tensor,
        begins: Tensor | None,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        outputs, before = [], []
        for span in _spans(value.shape[1], size):
            before.append(state)
            decay = _decays(step[:, span], rates, None if begins is None else begins[:, span])
            states = scanned(_added(key[:, span], value[:, span], step[:, span]), decay, state, size)
            outputs.append(torch.einsum("rlhn,rln->rlh", states, query[:, span]))
            state = states[:, -1]
        ctx.save_for_backward(query, key, value, step, rates, torch.stack(before), begins)
        ctx.size = size
        return torch.cat(outputs, 1), state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, step, rates, before, begins = ctx.saved_tensors
        of_outputs, after = gradients
        found: list[tuple[Tensor, ...]] = []
        of_rates = torch.zeros_like(rates)
        spans = _spans(value.shape[1], ctx.size)
        for span, state in zip(reversed(spans), before.flip(0), strict=True):
            queries, keys, values, steps = (each[:, span] for each in (query, key, value, step))
            decay = _decays(steps, rates, None if begins is None else begins[:, span])
            states = scanned(_added(keys, values, steps), decay, state, ctx.size)
            # A state is read by its own token and, decayed, by the next one.
            read = of_outputs[:, span, :, None] * queries[:, :, None]
            later = torch.cat((decay[:, 1:], torch.ones_like(decay[:, :1])), 1)
            of_states = scanned(read.flip(1), later.flip(1), after, ctx.size).flip(1)
            after = of_states[:, 0] * decay[:, 0]
            of_log = of_states * torch.cat((state[:, None], states[:, :-1]), 1) * decay
            of_added = torch.einsum("rlhn,rln->rlh", of_states, keys)
            of_rates = of_rates + torch.einsum("rlhn,rlh->hn", of_log, steps)
            found.append(
                (
                    torch.einsum("rlhn,rlh->rln", states, of_outputs[:, span]),
                    torch.einsum("rlhn,rlh->rln", of_states, steps * values),
                    of_added * steps,
                    of_added * values + torch.einsum("rlhn,hn->rlh", of_log, rates),
                )
            )
        joined = (torch.cat(parts[::-1], 1) for parts in zip(*found, strict=True))
        return (*joined, of_rates, after, None, None)


def _spans(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _decays(step: Tensor, rates: Tensor, begins: Tensor | None) -> Tensor:
    """Return by what states are multiplied at each token, [R, L, H, N]: 0 where documents begin, which is exact."""
    decay = (step[..., None] * rates).exp()
    return decay if begins is None else decay.masked_fill(begins[..., None, None], 0.0)


def _added(key: Tensor, value: Tensor, step: Tensor) -> Tensor:
    """[R, L, N], [R, L, H] and [R, L, H] -> what each token adds, [R, L, H, N]."""
    return (step * value)[..., None] * key[:, :, None]
