"""Per-token policy losses: PPO with clip-higher and dual clip, GSPO, CISPO, SAPO, DPPO, REINFORCE.

Notation: A advantage, l log-probability under the current policy, r = exp(l - l_anchor) importance ratio, sg
stop-gradient. Losses are minimised. A loss of your own derives from `Surrogate` and is named by its path
(docs/algorithms.md has an example). Importing this module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from areal.algorithm.aggregations import Aggregation, SequenceTokenMean
from areal.algorithm.blocks import block_name, check_fields
from areal.algorithm.tokens import PolicyTokens, bernoulli_kl, sequence_mean
from areal.api import Config, ConfigError, number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Loss of each token and which tokens a bound acted on."""

    loss: Tensor
    """[S, L], with gradient."""
    clipped: Tensor | None = None
    """bool [S, L]: the trust region removed or bounded the token's gradient."""
    dual_clipped: Tensor | None = None
    """bool [S, L]: the dual clip replaced the loss."""


@dataclass(frozen=True, kw_only=True)
class Surrogate(Config, ABC):
    """Contract of per-token policy losses, before correction weights and aggregation."""

    formula: ClassVar[str] = ""
    """The loss in one line."""
    source: ClassVar[str] = ""
    """Paper it is from."""
    default_anchor: ClassVar[Literal["behave", "prox"]] = "prox"
    """Policy in the denominator of the ratio unless the objective says otherwise."""
    has_ratio: ClassVar[bool] = True
    """False for a loss without importance ratio: corrections then weight it by pi / pi_behave instead of w."""

    def __post_init__(self) -> None:
        """Check types and ranges of the fields."""
        check_fields(self, "surrogate")

    @abstractmethod
    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""

    def check(self, *, anchor: str | None, decoupled: bool, aggregation: Aggregation) -> None:
        """Refuse settings of the objective that this loss must not be combined with, by a ConfigError."""


@dataclass(frozen=True, kw_only=True)
class CISPO(Surrogate):
    """Clipped importance weights without gradient, so that every token keeps a gradient."""

    formula: ClassVar[str] = "-sg[clip(r, 1 - clip_low, 1 + clip_high)] A l"
    source: ClassVar[str] = "CISPO, MiniMax-M1, arXiv 2506.13585"
    clip_low: float = number(1.0, above=0, at_most=1, because="the ratio is clipped at 1 - clip_low")
    """The weight is at least 1 - clip_low; in (0, 1]."""
    clip_high: float = number(4.0, above=0, because="the ratio is clipped at 1 + clip_high")
    """The weight is at most 1 + clip_high; > 0."""

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""
        ratio = tokens.log_ratio.detach().exp()
        weight = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return TokenLoss(loss=-weight * tokens.advantages * tokens.logp, clipped=weight != ratio)


@dataclass(frozen=True, kw_only=True)
class DPPO(Surrogate):
    """Plain ratio against the behaviour policy; tokens that already moved too far the wanted way are dropped."""

    formula: ClassVar[str] = (
        "-keep r A with r = exp(l - l_behave); keep = 0 where the step leaves the trust region: A > 0 and pi above mu "
        "by more than high, or A < 0 and below by more than low (tv: |pi - mu|; kl: Bernoulli KL(mu, pi))"
    )
    source: ClassVar[str] = "DPPO, arXiv 2602.04879"
    default_anchor: ClassVar[Literal["behave", "prox"]] = "behave"
    distance: Literal["kl", "tv"] = "tv"
    """Distance of the trust region: "tv" |pi - mu| of the token's probability, "kl" of the two Bernoulli distributions
    "this token or not"."""
    low: float = number(0.2, above=0)
    """Largest allowed distance where A < 0; > 0."""
    high: float = number(0.2, above=0)
    """Largest allowed distance where A > 0; > 0."""

    def check(self, *, anchor: str | None, decoupled: bool, aggregation: Aggregation) -> None:
        """Refuse another anchor than the behaviour policy."""
        if anchor == "prox":
            raise ConfigError("surrogate 'dppo' is defined against the behaviour policy; leave anchor unset")

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""
        logp, log_ratio, advantages = tokens.logp.detach(), tokens.log_ratio, tokens.advantages
        moved = logp.exp() - tokens.logp_behave.exp()
        distance = moved.abs() if self.distance == "tv" else bernoulli_kl(tokens.logp_behave, logp)
        too_high = (advantages > 0) & (moved > 0) & (distance > self.high)
        too_low = (advantages < 0) & (moved < 0) & (distance > self.low)
        dropped = too_high | too_low
        return TokenLoss(loss=(-log_ratio.exp() * advantages).masked_fill(dropped, 0.0), clipped=dropped)


@dataclass(frozen=True, kw_only=True)
class PPO(Surrogate):
    """Clipped ratio; `clip_high` above `clip_low` is clip-higher."""

    formula: ClassVar[str] = "max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); where A < 0 at most -dual_clip A"
    source: ClassVar[str] = "PPO, arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476; dual clip: arXiv 1912.09729"
    clip_low: float = number(0.2, above=0, at_most=1, because="the ratio is clipped at 1 - clip_low")
    """The ratio is clipped below at 1 - clip_low; in (0, 1]."""
    clip_high: float = number(0.2, above=0, because="the ratio is clipped at 1 + clip_high")
    """The ratio is clipped above at 1 + clip_high; > 0."""
    dual_clip: float | None = number(None, above=1, because="at or below 1 it removes every gradient where A < 0")
    """Where A < 0 the loss is at most -dual_clip * A; > 1, null switches it off."""

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""
        advantages = tokens.advantages
        loss, clipped = _clipped(tokens.log_ratio, advantages, self.clip_low, self.clip_high)
        if self.dual_clip is None:
            return TokenLoss(loss=loss, clipped=clipped)
        ceiling = -self.dual_clip * advantages
        dual_clipped = (advantages < 0) & (loss > ceiling)
        loss = loss.minimum(ceiling).where(advantages < 0, loss)
        return TokenLoss(loss=loss, clipped=clipped, dual_clipped=dual_clipped)


@dataclass(frozen=True, kw_only=True)
class GSPO(Surrogate):
    """PPO on the length-normalised ratio of the whole sequence, in the token form.

    Value and gradient equal the sequence form when A is constant over the sequence; otherwise each token keeps its own
    A. The bounds are three orders of magnitude tighter than PPO's.
    """

    formula: ClassVar[str] = (
        "max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)), s = sg[exp(mean_t(l - l_prox))] pi / sg[pi]"
    )
    source: ClassVar[str] = "GSPO, arXiv 2507.18071"
    clip_low: float = number(3e-4, above=0, at_most=1, because="the ratio is clipped at 1 - clip_low")
    """The sequence's ratio is clipped below at 1 - clip_low; in (0, 1]."""
    clip_high: float = number(4e-4, above=0, because="the ratio is clipped at 1 + clip_high")
    """The sequence's ratio is clipped above at 1 + clip_high; > 0."""
    allow_length_weighting: bool = False
    """Consent to an aggregation that weights whole sequences by their length, which is not GSPO."""

    def check(self, *, anchor: str | None, decoupled: bool, aggregation: Aggregation) -> None:
        """Refuse aggregations that weight sequences by length."""
        if not (isinstance(aggregation, SequenceTokenMean) or self.allow_length_weighting):
            raise ConfigError(
                f"surrogate 'gspo' with aggregation {block_name(aggregation)!r} weights each sequence by its length, "
                f"which is not GSPO; use 'seq-mean-token-mean', or consent with surrogate.allow_length_weighting: true"
            )

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""
        log_ratio = tokens.log_ratio
        sequence_S1 = sequence_mean(log_ratio.detach(), tokens.mask)
        loss, clipped = _clipped(
            sequence_S1 + log_ratio - log_ratio.detach(), tokens.advantages, self.clip_low, self.clip_high
        )
        return TokenLoss(loss=loss, clipped=clipped)


@dataclass(frozen=True, kw_only=True)
class Reinforce(Surrogate):
    """The policy gradient without importance ratio."""

    formula: ClassVar[str] = "-A l; importance weights of corrections are pi / pi_behave instead of w"
    source: ClassVar[str] = "REINFORCE, Williams 1992"
    has_ratio: ClassVar[bool] = False

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""
        return TokenLoss(loss=-tokens.advantages * tokens.logp)


@dataclass(frozen=True, kw_only=True)
class SAPO(Surrogate):
    """A soft gate in place of the clip; its gradient at r = 1 is exactly -A grad l."""

    formula: ClassVar[str] = "-A sigmoid(tau (r - 1)) 4 / tau, tau = tau_pos where A > 0 else tau_neg"
    source: ClassVar[str] = "SAPO, arXiv 2511.20347"
    tau_pos: float = number(1.0, above=0)
    """Temperature of the gate where A > 0; > 0, larger closes it sooner."""
    tau_neg: float = number(1.05, above=0)
    """Temperature of the gate elsewhere; > 0."""

    def check(self, *, anchor: str | None, decoupled: bool, aggregation: Aggregation) -> None:
        """Refuse a weight that the gate would not bound."""
        if decoupled:
            raise ConfigError(
                "surrogate 'sapo' cannot be decoupled: its soft gate replaces the trust region, and an extra factor w "
                "outside the gate is not bounded by it; use decoupled: false, with correction 'tis' if the policies "
                "differ"
            )

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        """Compute the loss of every token."""
        advantages = tokens.advantages
        tau = advantages.new_full(advantages.shape, self.tau_pos).where(
            advantages > 0, advantages.new_full((), self.tau_neg)
        )
        gate = (tau * (tokens.log_ratio.exp() - 1.0)).sigmoid()
        return TokenLoss(loss=-advantages * gate * 4.0 / tau)


def _clipped(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO's clipped loss of each token and where the clip acted."""
    ratio = log_ratio.exp()
    free, bound = -advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return free.maximum(bound), bound > free
