"""What is done about the mismatch between the policy that sampled (behave) and the one the trainer recomputed (prox).

A correction yields a weight per token (1 unless it is an importance weight) and the tokens it keeps, none of which
carries a gradient. w = exp(l_prox - l_behave). A correction of your own derives from `Correction` and is named by its
path (docs/algorithms.md). Importing this module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from areal.algorithm.blocks import block_name, check_fields
from areal.algorithm.tokens import PolicyTokens, bernoulli_kl, bounded, sequence_mean
from areal.api import Config, ConfigError, number

if TYPE_CHECKING:
    from torch import Tensor

_AGREE: Final = "the bounds must contain 1, the weight of a token on which both policies agree"


@dataclass(frozen=True, kw_only=True)
class Correction(Config):
    """Contract of corrections: override `keep` to drop tokens, or set `weighted` and override `weight`, or both."""

    formula: ClassVar[str] = ""
    """What becomes of a token's loss, in one line."""
    source: ClassVar[str] = ""
    """Paper it is from."""
    weighted: ClassVar[bool] = False
    """Whether the loss is multiplied by an importance weight, `weight`."""
    depends_on_policy: ClassVar[bool] = False
    """Whether `keep` reads the policy that is trained or the advantages: then kept tokens cannot be counted ahead."""
    needs_step: ClassVar[bool] = False
    """Whether `keep` compares with a threshold of the whole optimizer step, see `step_threshold`."""

    def __post_init__(self) -> None:
        """Check types and ranges of the fields."""
        check_fields(self, "correction")

    @property
    def per_sequence(self) -> bool:
        """Whether a sequence has one weight, the product of the weights of its tokens."""
        return False

    def weight(self, log_weight: Tensor) -> Tensor:
        """Return the factor of the loss. log_weight: log w of each token [S, L], or of each sequence [S, 1]."""
        return bounded(log_weight).exp()

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Return bool [S, L] or [S, 1], false where a token is dropped."""
        return tokens.mask.new_ones((tokens.mask.shape[0], 1))

    def step_threshold(self, tokens: PolicyTokens) -> float | None:
        """Compute the threshold of the whole optimizer step that `keep` gets as `tokens.step_threshold`."""
        return None

    def check(self, *, denominator: str) -> None:
        """Refuse settings of the objective that this correction must not be combined with, by a ConfigError."""
        if denominator == "kept" and self.depends_on_policy:
            raise ConfigError(
                f"denominator 'kept' cannot be combined with correction {block_name(self)!r}: which sequences it keeps "
                f"depends on the policy being trained, so the count of the whole step is not known before the "
                f"micro-batches run; use 'original'"
            )


@dataclass(frozen=True, kw_only=True)
class GeometricMask(Correction):
    """Drop sequences whose geometric mean weight is too far from 1."""

    formula: ClassVar[str] = "keep the sequence where low <= exp(mean_t log w) <= high"
    source: ClassVar[str] = "geometric sequence mask"
    low: float = number(0.999, at_least=0, at_most=1, because=_AGREE)
    """Smallest geometric mean of w that is kept; 0 .. 1."""
    high: float = number(1.001, at_least=1, because=_AGREE)
    """Largest geometric mean of w that is kept; >= 1."""

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep sequences within the bounds."""
        return _geometric_keep(tokens, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class IcePop(Correction):
    """Weight tokens by w, and drop those with an extreme w."""

    formula: ClassVar[str] = "w where low <= w <= high, else the token is dropped"
    source: ClassVar[str] = "IcePop, arXiv 2510.18855"
    weighted: ClassVar[bool] = True
    low: float = number(0.5, at_least=0, at_most=1, because=_AGREE)
    """Smallest w that is kept; 0 .. 1."""
    high: float = number(5.0, at_least=1, because=_AGREE)
    """Largest w that is kept; >= 1."""

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep tokens within the bounds."""
        weight = bounded(tokens.logp_prox - tokens.logp_behave).exp()
        return (weight >= self.low) & (weight <= self.high)


@dataclass(frozen=True, kw_only=True)
class KPop(Correction):
    """Drop tokens on which the policies differ by a large KL divergence."""

    formula: ClassVar[str] = (
        "keep the token where max(KL_bern(p, q), KL_bern(q, p)) <= max_kl, p = pi_behave, q = pi_prox"
    )
    source: ClassVar[str] = "KPop"
    max_kl: float = number(2.0, above=0)
    """Largest KL divergence of the distributions "this token or not" that is kept, nats; > 0."""

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep tokens whose divergences, in both directions, are within the bound."""
        behave, prox = tokens.logp_behave, tokens.logp_prox
        return bernoulli_kl(behave, prox).maximum(bernoulli_kl(prox, behave)) <= self.max_kl


@dataclass(frozen=True, kw_only=True)
class M2PO(Correction):
    """Drop the tokens that differ most, until the second moment of the step is small."""

    formula: ClassVar[str] = (
        "drop the tokens with the largest (l_behave - l_prox)^2 of the whole step until their mean is below "
        "max_second_moment"
    )
    source: ClassVar[str] = "M2PO, arXiv 2510.01161"
    needs_step: ClassVar[bool] = True
    max_second_moment: float = number(0.04, above=0)
    """Bound on the mean of (l_behave - l_prox)^2 over the kept tokens; > 0."""

    def step_threshold(self, tokens: PolicyTokens) -> float:
        """Return the largest (log w)^2 to keep: most tokens, smallest first, whose mean stays below the bound.

        Must see all tokens of the optimizer step, or the result depends on how the batch was cut. Tokens of equal size
        are kept or dropped together. Returns -1.0 when every token is dropped. Example: squares 0, .25, .25, .25 and a
        bound of .1: the mean of the first two is .125, so only the first is kept and the threshold is 0.
        """
        import torch

        squares, _ = ((tokens.logp_prox - tokens.logp_behave)[tokens.mask] ** 2).sort()
        number = squares.numel()
        counts = torch.arange(1, number + 1, dtype=torch.float64, device=squares.device)
        kept = int((squares.double().cumsum(0) / counts < self.max_second_moment).sum())
        if kept == 0:
            return -1.0
        if kept == number:
            return float(squares[-1])
        # When the first dropped value equals the last kept one, step back to the next smaller value.
        below = squares[:kept][squares[:kept] < squares[kept]]
        return float(below[-1]) if below.numel() else -1.0

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep tokens up to the threshold of the step."""
        assert tokens.step_threshold is not None, "the objective computes it, see needs_step"
        return (tokens.logp_prox - tokens.logp_behave) ** 2 <= tokens.step_threshold


@dataclass(frozen=True, kw_only=True)
class MIS(Correction):
    """Masked importance sampling: weight by w, and drop where it is extreme."""

    formula: ClassVar[str] = (
        "w_i = exp sum_t log w (level sequence) or w (level token); dropped where above high or below low"
    )
    source: ClassVar[str] = "masked importance sampling"
    weighted: ClassVar[bool] = True
    low: float = number(0.0, at_least=0, at_most=1, because=_AGREE)
    """Smallest weight that is kept; 0 .. 1."""
    high: float = number(3.0, at_least=1, because=_AGREE)
    """Largest weight that is kept; >= 1."""
    level: Literal["sequence", "token"] = "sequence"
    """Whether a sequence has one weight, the product over its tokens, or each token its own."""

    @property
    def per_sequence(self) -> bool:
        """See `Correction`."""
        return self.level == "sequence"

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep tokens or sequences within the bounds."""
        log_weight = tokens.logp_prox - tokens.logp_behave
        weight = bounded(sequence_log_weight(log_weight, tokens.mask) if self.per_sequence else log_weight).exp()
        return (weight >= self.low) & (weight <= self.high)


@dataclass(frozen=True, kw_only=True)
class NoCorrection(Correction):
    """Leave the loss as it is."""

    formula: ClassVar[str] = "1"

    def check(self, *, denominator: str) -> None:
        """Refuse a count of kept tokens where none is dropped."""
        if denominator == "kept":
            raise ConfigError("denominator 'kept' has no effect with correction 'none', which drops nothing")


@dataclass(frozen=True, kw_only=True)
class OPSM(Correction):
    """Drop sequences that are worse than their baseline and have drifted.

    The sign of a sequence is that of its mean advantage.
    """

    formula: ClassVar[str] = "drop the sequence where A < 0 and mean_t(l_behave - l) > max_drift"
    source: ClassVar[str] = "off-policy sequence mask, DeepSeek-V3.2"
    depends_on_policy: ClassVar[bool] = True
    max_drift: float = 1e-4
    """Largest mean of l_behave - l per token, nats."""

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep sequences that are good or near."""
        worse = sequence_mean(tokens.advantages, tokens.mask) < 0
        return ~(worse & (sequence_mean(tokens.logp_behave - tokens.logp.detach(), tokens.mask) > self.max_drift))


@dataclass(frozen=True, kw_only=True)
class MaskedTIS(Correction):
    """Truncated token weights on sequences that a geometric mask keeps."""

    formula: ClassVar[str] = "min(w, cap) on tokens of sequences where low <= exp(mean_t log w) <= high"
    source: ClassVar[str] = "geometric sequence mask with truncated token weights"
    weighted: ClassVar[bool] = True
    cap: float = number(2.0, above=0)
    """Largest weight of a token; > 0."""
    low: float = number(0.999, at_least=0, at_most=1, because=_AGREE)
    """Smallest geometric mean of w that is kept; 0 .. 1."""
    high: float = number(1.001, at_least=1, because=_AGREE)
    """Largest geometric mean of w that is kept; >= 1."""

    def weight(self, log_weight: Tensor) -> Tensor:
        """Truncate w at the cap."""
        return super().weight(log_weight).clamp(max=self.cap)

    def keep(self, tokens: PolicyTokens) -> Tensor:
        """Keep sequences within the bounds."""
        return _geometric_keep(tokens, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class TIS(Correction):
    """Truncated importance sampling: weight by w, at most the cap."""

    formula: ClassVar[str] = "min(w, cap) (level token) or min(exp sum_t log w, cap) (level sequence)"
    source: ClassVar[str] = "truncated importance sampling"
    weighted: ClassVar[bool] = True
    cap: float = number(2.0, above=0)
    """Largest weight; > 0."""
    level: Literal["sequence", "token"] = "token"
    """Whether a sequence has one weight, the product over its tokens, or each token its own."""

    @property
    def per_sequence(self) -> bool:
        """See `Correction`."""
        return self.level == "sequence"

    def weight(self, log_weight: Tensor) -> Tensor:
        """Truncate w at the cap."""
        return super().weight(log_weight).clamp(max=self.cap)


def sequence_log_weight(log_weight: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the product of w over the policy tokens, [S, 1], not bounded."""
    return (log_weight * (mask > 0)).sum(dim=1, keepdim=True)


def _geometric_keep(tokens: PolicyTokens, low: float, high: float) -> Tensor:
    """bool [S, 1]: the geometric mean of w over the sequence lies in [low, high]."""
    mean = bounded(sequence_mean(tokens.logp_prox - tokens.logp_behave, tokens.mask)).exp()
    return (mean >= low) & (mean <= high)
