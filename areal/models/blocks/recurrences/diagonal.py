"""S <- exp(log_decay) S + value; out = S, for every number of a state by itself.

Products between pairs of tokens would need a decay per number and pair, so the sums of a chunk are doubled instead:
after N steps a token has the sum over the 2^N tokens up to it. Nothing is divided, and a document begins with a decay
of 0, which is exact. The gradient is the same recurrence from the last token to the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import Diagonal
    from areal.models.blocks.recurrences.chunks import Borders


def diagonal_rows(rule: Diagonal, borders: Borders, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, L, H, D] of rows of tokens, and the states [R, H, D] after their last ones.

    rule: with [R, L] in the place of [T]. initial: [R, H, D], what the first tokens of rows find; None for zeros. A
    token of zeros changes no state.
    """
    wide = torch.promote_types(rule.value.dtype, torch.float32)
    value, decay = rule.value.to(wide), rule.log_decay.to(wide).exp()
    if borders.begins is not None:
        begins = borders.begins.to(decay.device)
        begins = begins.reshape(*begins.shape, *(1,) * (decay.dim() - 2))
        decay = decay.masked_fill(begins, 0.0)
        value = value if rule.first is None else torch.where(begins, rule.first.to(wide), value)
    elif rule.first is not None and initial is None:
        value = torch.cat((rule.first[:, :1].to(wide), value[:, 1:]), 1)
    start = torch.zeros_like(value[:, 0]) if initial is None else initial.to(wide)
    outputs: Tensor = _Scan.apply(value, decay, start, rule.chunk)
    return outputs, outputs[:, -1]


def diagonal_step(rule: Diagonal, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, H, D] of one more token per row, and the states after it.

    rule: with [R] in the place of [T]; none of them is the first of its document. state: [R, H, D], at least float32.
    """
    state = state * rule.log_decay.to(state.dtype).exp() + rule.value.to(state.dtype)
    return state, state


class _Scan(torch.autograd.Function):
    """Keeps decays and outputs for the backward pass, and nothing of the steps between."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, decay: Tensor, start: Tensor, chunk: int) -> Tensor:
        outputs = scanned(value, decay, start, chunk)
        ctx.save_for_backward(decay, outputs, start)
        ctx.chunk = chunk
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        decay, outputs, start = ctx.saved_tensors
        # A state is read by its own token and, decayed, by the next one.
        after = torch.cat((decay[:, 1:], torch.zeros_like(decay[:, :1])), 1)
        added = scanned(gradients[0].flip(1), after.flip(1), torch.zeros_like(start), ctx.chunk).flip(1)
        before = torch.cat((start[:, None], outputs[:, :-1]), 1)
        return added, added * before, added[:, 0] * decay[:, 0], None


def scanned(value: Tensor, decay: Tensor, state: Tensor, chunk: int) -> Tensor:
    """[R, L, H, D], decays between 0 and 1, and [R, H, D] -> the states after each token, [R, L, H, D]; `chunk` of them
    together."""
    outputs = []
    for added, decays in zip(value.split(chunk, 1), decay.split(chunk, 1), strict=True):
        part, kept, reach = added, decays, 1
        while reach < part.shape[1]:
            part = torch.cat((part[:, :reach], part[:, reach:] + kept[:, reach:] * part[:, :-reach]), 1)
            kept = torch.cat((kept[:, :reach], kept[:, reach:] * kept[:, :-reach]), 1)
            reach *= 2
        outputs.append(part + kept * state[:, None])
        state = outputs[-1][:, -1]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
