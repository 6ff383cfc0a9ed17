"""Computes log-probability, entropy and mean log-probability of tokens from hidden states, in slices of the vocabulary
projection.

The logits of a batch are its largest tensor by far. Here at most `chunk` rows of them exist at any time, in the
forward pass and in the backward pass, where they are computed again. Everything after the projection is float32
(float64 for float64 models), whatever the dtype of the model: in bfloat16 a log-probability is off by about 1e-2.

Shape letters: N predicted tokens, V vocabulary (or the share of it that this rank has), H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from areal.engine.precision import score_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.engine.train.candidates import Top

    Measure = Callable[[Tensor, Tensor, float, bool], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Statistics of the distribution at N predicted tokens, float32 [N] (float64 for float64 models)."""

    logp: Tensor
    """log p(token)."""
    entropy: Tensor | None
    """-sum_v p(v) log p(v) over the whole vocabulary, in nats; None when not asked for."""
    mean_logp: Tensor | None
    """(1/V) sum_v log p(v): the log-likelihood of the uniform target of label smoothing; None when not asked for."""
    candidate_logp: Tensor | None = None
    """[N, K], log p of other tokens in place of this one; None without candidates."""
    top: tuple[Tensor, Tensor] | None = None
    """Likeliest tokens in place of this one and their log p, [N, K] each; None when not asked for."""


def score_tokens(
    project: Callable[[Tensor], Tensor],
    hidden_NH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float,
    chunk: int,
    with_distribution: bool,
    measure: Measure | None = None,
    candidates_NK: Tensor | None = None,
    top: Top | None = None,
) -> TokenScores:
    """Score targets_N (int64) under softmax(project(hidden_NH) / temperature).

    with_distribution: also entropy and mean_logp, which costs about three more passes over the logits.
    candidates_NK: also score these tokens. top: also list the likeliest tokens, without gradient.
    measure: takes the place of `measure_tokens` where `project` gives other logits than those of the whole vocabulary.

    Peak memory of logits: chunk * V in the forward pass, about 2 * chunk * V in the backward pass, for any N. The
    result at a token does not depend on `chunk` beyond rounding in the projection. Differentiable in all outputs.
    """

    group = measure.group if isinstance(measure, VocabularyShares) else None

    def score(hidden: Tensor, targets: Tensor, *candidates: Tensor) -> tuple[Tensor, ...]:
        logits = project(hidden)
        found = (measure or measure_tokens)(logits, targets, temperature, with_distribution)
        if not candidates and top is None:
            return found
        from areal.engine.train.candidates import candidate_logp, top_candidates

        if candidates:
            found += (candidate_logp(logits, candidates[0], temperature, group),)
        return found if top is None else (*found, *top_candidates(logits, top, temperature, group))

    given = (hidden_NH, targets_N) if candidates_NK is None else (hidden_NH, targets_N, candidates_NK)
    pieces = list(zip(*(tensor.split(chunk) for tensor in given), strict=True))
    # A single slice may keep its logits: that is the same peak, without the second projection.
    if len(pieces) == 1 or not torch.is_grad_enabled():
        scored = [score(*piece) for piece in pieces]
    else:
        scored = [checkpoint(score, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
    columns = [torch.cat(column) for column in zip(*scored, strict=True)]
    logp, entropy, mean_logp = columns[:3] if with_distribution else (columns[0], None, None)
    return TokenScores(
        logp=logp,
        entropy=entropy,
        mean_logp=mean_logp,
        candidate_logp=None if candidates_NK is None else columns[3 if with_distribution else 1],
        top=None if top is None else (columns[-2], columns[-1]),
    )


def measure_tokens(
    logits_NV: Tensor, targets_N: Tensor, temperature: float, with_distribution: bool
) -> tuple[Tensor, ...]:
    """(log p(target),), or with_distribution (log p(target), entropy, mean log p), of softmax(logits / temperature)."""
    if with_distribution:
        statistics: tuple[Tensor, ...] = _Statistics.apply(logits_NV, targets_N, temperature)
        return statistics
    return (_LogProbability.apply(logits_NV, targets_N, temperature),)


class _LogProbability(torch.autograd.Function):
    """z[target] - log sum exp z, with z = logits / T; d / dz_v = [v = target] - p_v."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        z_NV = logits_NV.to(score_dtype(logits_NV.dtype)) / temperature
        s_N = z_NV.logsumexp(-1)
        ctx.save_for_backward(z_NV, s_N, targets_N)
        ctx.temperature, ctx.dtype = temperature, logits_NV.dtype
        return z_NV.gather(-1, targets_N[:, None])[:, 0] - s_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None, None]:
        z_NV, s_N, targets_N = ctx.saved_tensors
        gradient_NV = (z_NV - s_N[:, None]).exp_().mul_(-grad_N[:, None])
        gradient_NV.scatter_add_(-1, targets_N[:, None], grad_N[:, None])
        return gradient_NV.div_(ctx.temperature).to(ctx.dtype), None, None


class _Statistics(torch.autograd.Function):
    """The three statistics with a hand-written gradient: one [N, V] tensor instead of the five that autograd would
    keep.

    With z = logits / T, s = log sum exp z, p = exp(z - s), H the entropy:
        d logp / dz_v = [v = target] - p_v,  d H / dz_v = -p_v (z_v - s + H),  d mean_logp / dz_v = 1/V - p_v.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        z_NV = logits_NV.to(score_dtype(logits_NV.dtype)) / temperature
        s_N = z_NV.logsumexp(-1)
        logp_N = z_NV.gather(-1, targets_N[:, None])[:, 0] - s_N
        # The product is taken after masking p = 0, where z may be -inf (a vocabulary entry that can never be sampled).
        p_NV = (z_NV - s_N[:, None]).exp_()
        entropy_N = s_N - torch.where(p_NV > 0, z_NV, 0).mul_(p_NV).sum(-1)
        mean_logp_N = z_NV.mean(-1) - s_N
        ctx.save_for_backward(z_NV, s_N, entropy_N, targets_N)
        ctx.temperature, ctx.dtype = temperature, logits_NV.dtype
        return logp_N, entropy_N, mean_logp_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_logp_N: Tensor, grad_entropy_N: Tensor, grad_mean_N: Tensor
    ) -> tuple[Tensor, None, None]:
        z_NV, s_N, entropy_N, targets_N = ctx.saved_tensors
        log_p_NV = z_NV - s_N[:, None]
        gradient_NV = _without_target(log_p_NV, entropy_N, grad_logp_N, grad_entropy_N, grad_mean_N, z_NV.shape[-1])
        gradient_NV.scatter_add_(-1, targets_N[:, None], grad_logp_N[:, None])
        return gradient_NV.div_(ctx.temperature).to(ctx.dtype), None, None


@dataclass(frozen=True)
class VocabularyShares:
    """Measures tokens by logits of which each rank has its share of the vocabulary: the numbers of `measure_tokens`,
    without the logits ever being in one place. Results are replicated over `group`."""

    group: ProcessGroup
    """Ranks that hold equal shares, in the order of the vocabulary."""
    size: int | None = None
    """Entries of the vocabulary, where shares are padded behind the last one with logits of -inf; None for no
    padding."""

    def __call__(
        self, logits_NV: Tensor, targets_N: Tensor, temperature: float, with_distribution: bool
    ) -> tuple[Tensor, ...]:
        """See `measure_tokens`."""
        local_N = targets_N - self.group.rank() * logits_NV.shape[1]
        found: tuple[Tensor, ...] = _SharedStatistics.apply(
            logits_NV, local_N, temperature, self.group, with_distribution, self.size
        )
        return found if with_distribution else found[:1]


class _SharedStatistics(torch.autograd.Function):
    """`_Statistics` with every sum over the vocabulary taken over the ranks as well."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        local_N: Tensor,
        temperature: float,
        group: ProcessGroup,
        with_distribution: bool,
        size: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        z_NV = logits_NV.to(score_dtype(logits_NV.dtype)) / temperature
        top_N = z_NV.amax(-1)
        dist.all_reduce(top_N, dist.ReduceOp.MAX, group=group)
        weights_NV = (z_NV - top_N[:, None]).exp_()
        is_here_N = (local_N >= 0) & (local_N < z_NV.shape[1])
        columns_N = local_N.clamp(0, z_NV.shape[1] - 1)
        target_N = z_NV.gather(-1, columns_N[:, None])[:, 0].masked_fill(~is_here_N, 0)
        sums = [weights_NV.sum(-1), target_N]
        if with_distribution:
            # The product is taken after masking p = 0, where z may be -inf.
            real_NV = z_NV if size is None else z_NV[:, : max(0, size - group.rank() * z_NV.shape[1])]
            sums += [torch.where(weights_NV > 0, z_NV, 0).mul_(weights_NV).sum(-1), real_NV.sum(-1)]
        summed = torch.stack(sums)
        dist.all_reduce(summed, group=group)
        s_N = top_N + summed[0].log()
        zeros_N = torch.zeros_like(s_N)
        size = z_NV.shape[1] * group.size() if size is None else size
        entropy_N = s_N - summed[2] / summed[0] if with_distribution else zeros_N
        mean_logp_N = summed[3] / size - s_N if with_distribution else zeros_N
        ctx.save_for_backward(z_NV, s_N, entropy_N, columns_N, is_here_N)
        ctx.temperature, ctx.dtype = temperature, logits_NV.dtype
        ctx.size, ctx.with_distribution = size, with_distribution
        return summed[1] - s_N, entropy_N, mean_logp_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_logp_N: Tensor, grad_entropy_N: Tensor, grad_mean_N: Tensor
    ) -> tuple[Tensor, None, None, None, None, None]:
        z_NV, s_N, entropy_N, columns_N, is_here_N = ctx.saved_tensors
        log_p_NV = z_NV - s_N[:, None]
        if ctx.with_distribution:
            gradient_NV = _without_target(log_p_NV, entropy_N, grad_logp_N, grad_entropy_N, grad_mean_N, ctx.size)
        else:
            gradient_NV = log_p_NV.exp_().mul_(-grad_logp_N[:, None])
        gradient_NV.scatter_add_(-1, columns_N[:, None], (grad_logp_N * is_here_N)[:, None])
        return gradient_NV.div_(ctx.temperature).to(ctx.dtype), None, None, None, None, None


def _without_target(
    log_p_NV: Tensor, entropy_N: Tensor, grad_logp_N: Tensor, grad_entropy_N: Tensor, grad_mean_N: Tensor, size: int
) -> Tensor:
    """Gradient of `_Statistics` but for [v = target]; log_p_NV is used up. size: of the whole vocabulary."""
    gradient_NV = log_p_NV.exp()
    # p * -(g_logp + g_mean + g_H (log p + H)), then the term without p.
    log_p_NV.masked_fill_(gradient_NV == 0, 0).add_(entropy_N[:, None]).mul_(grad_entropy_N[:, None])
    gradient_NV.mul_(log_p_NV.add_((grad_logp_N + grad_mean_N)[:, None])).neg_()
    return gradient_NV.add_((grad_mean_N / size)[:, None])
