"""Log-probabilities of tokens that were not sampled: those a teacher lists, and the likeliest ones that it would list.

Both work on a slice of logits, whole or this rank's share of the vocabulary, and never make the logits of a batch
exist at once; `areal.engine.train.head` cuts the slices. Shape letters as there, and K candidates for each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from areal.engine.precision import score_dtype

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """How many of the likeliest tokens are listed, of which part of the vocabulary."""

    k: int
    below: int
    """Ids from here on are not listed: models are padded to more embeddings than there are tokens. At least k."""


def candidate_logp(logits_NV: Tensor, ids_NK: Tensor, temperature: float, group: ProcessGroup | None = None) -> Tensor:
    """log p(ids) [N, K] under softmax(logits / temperature), differentiable.

    group: ranks that hold equal shares of the vocabulary, in its order; results are replicated over it.
    """
    found: Tensor = _CandidateLogp.apply(logits_NV, ids_NK, temperature, group)
    return found


@torch.no_grad()
def top_candidates(
    logits_NV: Tensor, top: Top, temperature: float, group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """Ids int64 [N, k] of the likeliest tokens, likeliest first, and their log p."""
    z_NV = logits_NV.to(score_dtype(logits_NV.dtype)) / temperature
    s_N = _log_sum(z_NV, group)
    size = z_NV.shape[1]
    first = 0 if group is None else group.rank() * size
    z_NV[:, max(0, top.below - first) :] = -torch.inf
    values, ids = z_NV.topk(min(top.k, size))
    ids += first
    if group is not None:
        values, ids = (_joined(part, group) for part in (values, ids))
        values, places = values.topk(top.k)
        ids = ids.gather(-1, places)
    return ids, values - s_N[:, None]


class _CandidateLogp(torch.autograd.Function):
    """z[ids] - log sum exp z, with z = logits / T; the gradient of entry k is [v = id_k] - p_v."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, ids_NK: Tensor, temperature: float, group: ProcessGroup | None) -> Tensor:
        z_NV = logits_NV.to(score_dtype(logits_NV.dtype)) / temperature
        s_N = _log_sum(z_NV, group)
        local_NK = ids_NK if group is None else ids_NK - group.rank() * z_NV.shape[1]
        is_here_NK = (local_NK >= 0) & (local_NK < z_NV.shape[1])
        columns_NK = local_NK.clamp(0, z_NV.shape[1] - 1)
        chosen_NK = z_NV.gather(-1, columns_NK).masked_fill(~is_here_NK, 0)
        if group is not None:
            dist.all_reduce(chosen_NK, group=group)
        ctx.save_for_backward(z_NV, s_N, columns_NK, is_here_NK)
        ctx.temperature, ctx.dtype = temperature, logits_NV.dtype
        return chosen_NK - s_N[:, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor, None, None, None]:
        z_NV, s_N, columns_NK, is_here_NK = ctx.saved_tensors
        gradient_NV = (z_NV - s_N[:, None]).exp_().mul_(-grad_NK.sum(-1, keepdim=True))
        gradient_NV.scatter_add_(-1, columns_NK, grad_NK * is_here_NK)
        return gradient_NV.div_(ctx.temperature).to(ctx.dtype), None, None, None


def _log_sum(z_NV: Tensor, group: ProcessGroup | None) -> Tensor:
    """log sum exp z over the whole vocabulary, [N]."""
    if group is None:
        return z_NV.logsumexp(-1)
    top_N = z_NV.amax(-1)
    dist.all_reduce(top_N, dist.ReduceOp.MAX, group=group)
    sums_N = (z_NV - top_N[:, None]).exp_().sum(-1)
    dist.all_reduce(sums_N, group=group)
    return top_N + sums_N.log()


def _joined(part_NK: Tensor, group: ProcessGroup) -> Tensor:
    """All ranks' columns, side by side."""
    parts = [torch.empty_like(part_NK) for _ in range(group.size())]
    dist.all_gather(parts, part_NK.contiguous(), group=group)
    return torch.cat(parts, dim=-1)
