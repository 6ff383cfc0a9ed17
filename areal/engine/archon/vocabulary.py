"""Log-probabilities from logits of which each rank has its share of the vocabulary: the numbers of
`areal.engine.train.head`, without the logits ever being in one place.

Shape letters: N predicted tokens, V this rank's share of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from areal.engine.train.head import score_dtype

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class VocabularyShares:
    """A `measure` for `areal.engine.train.head.score_tokens`. Results are replicated over `group`."""

    group: ProcessGroup
    """Ranks that hold equal shares, in the order of the vocabulary."""

    def __call__(
        self, logits_NV: Tensor, targets_N: Tensor, temperature: float, with_distribution: bool
    ) -> tuple[Tensor, ...]:
        """See `measure_tokens`."""
        local_N = targets_N - self.group.rank() * logits_NV.shape[1]
        logp, entropy, mean_logp = _Statistics.apply(logits_NV, local_N, temperature, self.group, with_distribution)
        return (logp, entropy, mean_logp) if with_distribution else (logp,)


class _Statistics(torch.autograd.Function):
    """As `areal.engine.train.head._Statistics`, with every sum over the vocabulary taken over the ranks as well."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, local_N: Tensor, temperature: float, group: ProcessGroup, with_distribution: bool
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
            sums += [torch.where(weights_NV > 0, z_NV, 0).mul_(weights_NV).sum(-1), z_NV.sum(-1)]
        summed = torch.stack(sums)
        dist.all_reduce(summed, group=group)
        s_N = top_N + summed[0].log()
        zeros_N = torch.zeros_like(s_N)
        size = z_NV.shape[1] * group.size()
        entropy_N = s_N - summed[2] / summed[0] if with_distribution else zeros_N
        mean_logp_N = summed[3] / size - s_N if with_distribution else zeros_N
        ctx.save_for_backward(z_NV, s_N, entropy_N, columns_N, is_here_N)
        ctx.temperature, ctx.dtype, ctx.size, ctx.with_distribution = (
            temperature,
            logits_NV.dtype,
            size,
            with_distribution,
        )
        return summed[1] - s_N, entropy_N, mean_logp_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_logp_N: Tensor, grad_entropy_N: Tensor, grad_mean_N: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        z_NV, s_N, entropy_N, columns_N, is_here_N = ctx.saved_tensors
        log_p_NV = z_NV - s_N[:, None]
        gradient_NV = log_p_NV.exp()
        if ctx.with_distribution:
            log_p_NV.masked_fill_(gradient_NV == 0, 0).add_(entropy_N[:, None]).mul_(grad_entropy_N[:, None])
            gradient_NV.mul_(log_p_NV.add_((grad_logp_N + grad_mean_N)[:, None])).neg_()
            gradient_NV.add_((grad_mean_N / ctx.size)[:, None])
        else:
            gradient_NV.mul_(-grad_logp_N[:, None])
        gradient_NV.scatter_add_(-1, columns_N[:, None], (grad_logp_N * is_here_N)[:, None])
        return gradient_NV.div_(ctx.temperature).to(ctx.dtype), None, None, None, None
