"""On-policy distillation: what the student samples is moved towards what a teacher would have said in the same place.

Notation, at one position of a sequence that the student sampled: S student, T teacher, both over the whole vocabulary
at the sampling temperature; y the sampled token; r = T(y) / S(y); b weight of the teacher in the mixture of js. The
loss is the divergence of the two distributions, averaged over the positions that were visited. As in GKD, no gradient
flows through which positions are visited.

Every divergence here is D = E_S[f(r)] with convex f and f(1) = f'(1) = 0, and

    dD = E_S[c(r) d log S(y)]    with c(r) = f(r) - r f'(r), up to a constant, whose mean gradient is 0

which gives two estimators of the same gradient:

sampled   One token per position: the value is f(r), the gradient is w c(r) d log S(y), with c fixed and w the bounded
          importance weight of the policy that sampled. This is the policy gradient whose per-token advantage is -c(r);
          for reverse_kl that is log T(y) - log S(y). It is unbiased as long as neither bound acts, because y is a
          sample of S. Differentiating the estimate f(r) itself would be wrong: the gradient of log S(y) - log T(y) has
          mean zero, and that of k3 is that of KL(T, S).
top_k     The sum over the teacher's k likeliest tokens, and one more outcome for all the others, whose mass is what is
          left of 1 on both sides. Exact for k = vocabulary; below, it is the divergence of the coarser distributions,
          which is never more than the true one (data processing inequality) and 0 when student and teacher agree.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from areal.algorithm.aggregations import Aggregation, Denominators, TokenMean, aggregate, tokens_of_samples
from areal.algorithm.blocks import check_fields
from areal.algorithm.tokens import bounded, check_shape, masked_mean, on_mask
from areal.api import Config, ConfigError, LossOutput, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LOG_FLOOR: Final = -100.0
"""Least log-probability that counts: a token which the teacher rules out costs this much, not infinitely much."""
MASS_FLOOR: Final = 1e-7
"""Least mass of the tokens that are not listed, below float32 resolution of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherDivergence:
    """One divergence of student S and teacher T; see the top of this module."""

    formula: str
    source: str
    value: Callable[[Tensor, float], Tensor]
    """f(r) of log r, at least 0; the second argument is beta."""
    coefficient: Callable[[Tensor, float], Tensor]
    """c(r) of log r; 0 where student and teacher agree, so that nothing but noise of the samples is left there."""
    exact: Callable[[Tensor, Tensor, float], Tensor]
    """D from log S and log T [..., outcomes]: a term for each outcome, with gradient through log S."""


def _mixture(log_ratio: Tensor, beta: float) -> Tensor:
    """log(b r + 1 - b)."""
    import torch

    other = torch.full_like(log_ratio, math.log1p(-beta))
    return torch.logaddexp(log_ratio + math.log(beta), other)


def _js_value(log_ratio: Tensor, beta: float) -> Tensor:
    mixture = _mixture(log_ratio, beta)
    return beta * log_ratio.exp() * log_ratio - mixture.exp() * mixture


def _js_exact(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    import torch

    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * teacher.exp() * (teacher - mixture) + (1.0 - beta) * student.exp() * (student - mixture)


DIVERGENCES: Final[dict[str, TeacherDivergence]] = {
    "forward_kl": TeacherDivergence(
        formula="KL(T, S) = sum_v T log(T/S); f = r log r - r + 1; c = 1 - r",
        source="supervised distillation on student samples: GKD, arXiv 2306.13649",
        value=lambda log_ratio, _: log_ratio.exp() * (log_ratio - 1.0) + 1.0,
        coefficient=lambda log_ratio, _: 1.0 - log_ratio.exp(),
        exact=lambda student, teacher, _: teacher.exp() * (teacher - student),
    ),
    "js": TeacherDivergence(
        formula="b KL(T, M) + (1 - b) KL(S, M), M = b T + (1 - b) S; with m = b r + 1 - b: f = b r log r - m log m; "
        "c = -(1 - b) log m",
        source="generalised Jensen-Shannon divergence: GKD, arXiv 2306.13649",
        value=_js_value,
        coefficient=lambda log_ratio, beta: -(1.0 - beta) * _mixture(log_ratio, beta),
        exact=_js_exact,
    ),
    "reverse_kl": TeacherDivergence(
        formula="KL(S, T) = sum_v S log(S/T); f = r - 1 - log r (k3); c = -log r (k1)",
        source="MiniLLM, arXiv 2306.08543; estimators: http://joschu.net/blog/kl-approx.html",
        value=lambda log_ratio, _: log_ratio.exp() - 1.0 - log_ratio,
        coefficient=lambda log_ratio, _: -log_ratio,
        exact=lambda student, teacher, _: student.exp() * (student - teacher),
    ),
}
"""Sorted. Where each goes: reverse_kl picks modes of the teacher, forward_kl covers them all, js is between the two."""


@dataclass(frozen=True, kw_only=True)
class Distillation(Config):
    """The loss that moves a student towards its teacher, on tokens that the student sampled.

    Example: `Distillation(divergence="js", beta=0.3, estimator="top_k", k=32)`.
    """

    source: ClassVar[str] = "GKD, arXiv 2306.13649; MiniLLM, arXiv 2306.08543"
    divergence: Literal["forward_kl", "js", "reverse_kl"] = "reverse_kl"
    """Distance of student S and teacher T: reverse_kl is KL(S, T), forward_kl is KL(T, S), js lies between them."""
    beta: float = number(0.5, above=0, below=1)
    """js only: weight of the teacher in the mixture that both are compared with; towards 0 it is like forward_kl,
    towards 1 like reverse_kl."""
    estimator: Literal["sampled", "top_k"] = "sampled"
    """sampled: the teacher's log-probability of each sampled token, cheap and noisy; top_k: its k likeliest tokens and
    the mass of all others, exact for k = vocabulary."""
    k: int = number(32, at_least=1)
    """top_k only: tokens that the teacher lists at each position; servers of vLLM allow 20 unless started with
    --max-logprobs."""
    weight: float = number(1.0, above=0)
    """Weight of this loss beside that of the objective, which a run without reward does not have."""
    ratio_cap: float = number(10.0, above=1)
    """sampled only: bound of the importance weight, and with forward_kl and js of r = T/S, whose variance has none."""

    def __post_init__(self) -> None:
        """Check types and ranges."""
        check_fields(self, "distillation")

    @property
    def lists_tokens(self) -> bool:
        """Whether the teacher has to list tokens."""
        return self.estimator == "top_k"

    def token_loss(self, logp: Tensor, *, teacher_logp: Tensor, logp_anchor: Tensor) -> Tensor:
        """Estimate the divergence at each position from its sampled token, same shape, with the gradient of `sampled`.

        logp: of the student, with gradient. teacher_logp: of the teacher. logp_anchor: of the policy that sampled.
        """
        known, cap = DIVERGENCES[self.divergence], math.log(self.ratio_cap)
        current = logp.detach()
        log_ratio = bounded(teacher_logp - current)
        if self.divergence != "reverse_kl":
            log_ratio = log_ratio.clamp(max=cap)
        weight = (current - logp_anchor).clamp(max=cap).exp()
        gradient = weight * known.coefficient(log_ratio, self.beta)
        # The value is that of the divergence, the gradient that of its expectation.
        return known.value(log_ratio, self.beta) + gradient * (logp - current)

    def listed_loss(self, candidate_logp: Tensor, teacher_logp: Tensor, *, complete: bool) -> Tensor:
        """Divergence over the listed tokens and the rest, [S, L], with gradient.

        candidate_logp: [S, L, K], of the student, with gradient. teacher_logp: [S, L, K], of the teacher.
        complete: the whole vocabulary is listed, so that there is no rest.
        """
        import torch

        student, teacher = candidate_logp, teacher_logp.clamp(min=LOG_FLOOR)
        if not complete:
            student = torch.cat([student, rest(student).unsqueeze(-1)], dim=-1)
            teacher = torch.cat([teacher, rest(teacher_logp).unsqueeze(-1)], dim=-1)
        return DIVERGENCES[self.divergence].exact(student, teacher, self.beta).sum(-1)

    def loss(  # noqa: PLR0913 - what a step has beside the scores, each by keyword
        self,
        logp: Tensor,
        *,
        teacher_logp: Tensor,
        logp_anchor: Tensor,
        mask: Tensor,
        denominators: Denominators,
        groups: Tensor | None = None,
        samples: Tensor | None = None,
        aggregation: Aggregation | None = None,
        candidate_logp: Tensor | None = None,
        teacher_candidate_logp: Tensor | None = None,
        complete: bool = False,
    ) -> LossOutput:
        """Weighted loss and metrics of some sequences of a step; losses of all parts add up to the loss of the step.

        logp: [S, L], student at the sampled tokens, with gradient. teacher_logp: [S, L], teacher there. logp_anchor:
        [S, L], policy that sampled. mask: [S, L]. denominators: of the whole step. samples: as in
        `Objective.loss`. candidate_logp, teacher_candidate_logp: [S, L, K], at the tokens that the teacher lists
        (top_k). complete: they are the whole vocabulary. aggregation: the objective's; None is the mean over tokens.

        Tokens for which the teacher has no finite number are left out and counted in "teacher_nonfinite_count". Raises
        DataError for shapes that do not fit, ConfigError for top_k without the listed tokens.
        """
        for name, tensor in {"teacher_logp": teacher_logp, "logp_anchor": logp_anchor, "mask": mask}.items():
            check_shape(f"distillation: {name}", tensor, logp.shape)
        valid = (mask > 0) & teacher_logp.isfinite() & logp_anchor.isfinite()
        current = on_mask(logp, valid)
        teacher, anchor = on_mask(teacher_logp, valid).detach(), on_mask(logp_anchor, valid).detach()
        metrics: dict[str, Tensor] = {}
        if self.lists_tokens:
            if candidate_logp is None or teacher_candidate_logp is None:
                raise ConfigError(
                    "distillation: estimator top_k compares the tokens that the teacher lists, but loss() was not "
                    "given candidate_logp and teacher_candidate_logp"
                )
            check_shape("distillation: candidate_logp", candidate_logp, teacher_candidate_logp.shape)
            off = ~valid.unsqueeze(-1)
            # Off the mask both are one uniform distribution: whatever was there reaches neither value nor gradient.
            even = -math.log(candidate_logp.shape[-1] + 1)
            student, listed = candidate_logp.masked_fill(off, even), teacher_candidate_logp.masked_fill(off, even)
            per_token = self.listed_loss(student, listed.detach(), complete=complete)
            if not complete:
                metrics["teacher_tail_mass"] = masked_mean(rest(listed).exp(), valid, denominators.tokens)
                metrics["student_tail_mass"] = masked_mean(rest(student.detach()).exp(), valid, denominators.tokens)
        else:
            per_token = self.token_loss(current, teacher_logp=teacher, logp_anchor=anchor)
        tokens_S1 = (mask > 0).sum(dim=1, keepdim=True).to(logp.dtype)
        tokens_S1 = tokens_of_samples(tokens_S1, samples, denominators)
        weights_S1 = (aggregation or TokenMean()).weights(tokens_S1, denominators, groups=groups)
        loss = self.weight * aggregate(per_token, valid, weights_S1)
        metrics |= {
            "distillation_loss": loss.detach(),
            "divergence": masked_mean(per_token, valid, denominators.tokens),
            "teacher_logp": masked_mean(teacher, valid, denominators.tokens),
            "teacher_nonfinite_count": ((mask > 0) & ~valid).sum().to(logp.dtype),
        }
        return LossOutput(loss=loss, metrics=metrics)


def rest(listed_logp: Tensor) -> Tensor:
    """Return the log of the mass that is left of 1 beside the listed tokens, [...] from [..., K], with gradient."""
    import torch

    mass = listed_logp.logsumexp(-1)
    # log(1 - exp(mass)); beyond the floor there is no gradient.
    return (-torch.expm1(mass)).clamp(min=MASS_FLOOR).log()
