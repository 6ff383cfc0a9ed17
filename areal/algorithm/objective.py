"""An objective: advantage, surrogate, correction, KL, entropy and aggregation put together. Holds settings, no state.

The order inside `Objective.loss`: refuse shapes that do not fit; drop tokens whose behaviour or prox log-probability is
not finite (counted); per-token surrogate; times the stop-gradient correction weight; aggregate with the denominators of
the whole step; add KL and entropy terms. What to combine is decided in `areal.algorithm.spec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from areal.algorithm import advantages as advantage_functions
from areal.algorithm import kl as kl_functions
from areal.algorithm import metrics as metric_functions
from areal.algorithm.aggregate import Denominators, aggregate, check_shape, count, token_weights
from areal.algorithm.corrections import Correction, correct, second_moment_cut
from areal.algorithm.ratios import bounded, count_clamped, on_mask
from areal.algorithm.surrogates import TokenLoss, per_token
from areal.api import ConfigError, LossOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.algorithm.spec import ObjectiveSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What `loss` was given, cleaned: 0 off `valid`, where valid is the mask without rejected tokens. All [S, L]."""

    logp: Tensor
    logp_prox: Tensor
    logp_behave: Tensor
    advantages: Tensor
    mask: Tensor
    valid: Tensor
    logp_ref: Tensor | None
    entropy: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A policy objective; build it with `areal.algorithm.get_objective`. Stateless and safe to share."""

    preset: str
    """Name it was built from."""
    spec: ObjectiveSpec
    """All settings."""

    @property
    def advantage(self) -> str:
        """Name of the advantage estimator, a key of `catalog.ADVANTAGES`."""
        return self.spec.advantage

    @property
    def needs_critic(self) -> bool:
        """Whether `advantages` needs critic values."""
        return self.spec.needs_critic

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities of a reference model are needed, in the loss or for `token_rewards`."""
        return self.spec.kl_coef > 0

    @property
    def needs_token_rewards(self) -> bool:
        """Whether `advantages` must be given the result of `token_rewards`: the KL penalty is part of the reward."""
        return self.spec.kl_coef > 0 and self.spec.kl_place == "reward"

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` needs the full-vocabulary entropy of each token."""
        return self.spec.entropy_coef > 0

    def describe(self) -> dict[str, Any]:
        """Preset and all settings that have an effect, as plain values for reports."""
        return {"preset": self.preset, **self.spec.describe()}

    def advantages(
        self,
        rewards: Tensor,
        groups: Tensor,
        *,
        mask: Tensor,
        values: Tensor | None = None,
        token_rewards: Tensor | None = None,
        truncated: Tensor | None = None,
        turn_ids: Tensor | None = None,
    ) -> Tensor:
        """Advantages [S, L] of the whole batch; arguments as in `advantages.compute`. For returns as well:
        `advantages_and_returns`.
        """
        return self.advantages_and_returns(
            rewards,
            groups,
            mask=mask,
            values=values,
            token_rewards=token_rewards,
            truncated=truncated,
            turn_ids=turn_ids,
        )[0]

    def advantages_and_returns(
        self,
        rewards: Tensor,
        groups: Tensor,
        *,
        mask: Tensor,
        values: Tensor | None = None,
        token_rewards: Tensor | None = None,
        truncated: Tensor | None = None,
        turn_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Advantages and the critic's regression targets, both [S, L]; targets are None for estimators without critic.

        Raises ConfigError when the KL penalty belongs in the reward and token_rewards is missing.
        """
        if self.needs_token_rewards and token_rewards is None:
            raise ConfigError(
                "objective: kl_place 'reward' puts the KL penalty into the token rewards, but token_rewards is "
                "missing; pass token_rewards=objective.token_rewards(rewards, logp_prox, logp_ref, mask=mask)"
            )
        return advantage_functions.compute_with_returns(
            self.spec.advantage,
            rewards,
            groups,
            mask=mask,
            values=values,
            token_rewards=token_rewards,
            truncated=truncated,
            turn_ids=turn_ids,
            **self.spec.advantage_params,
        )

    def token_rewards(self, rewards: Tensor, logp: Tensor, logp_ref: Tensor, *, mask: Tensor) -> Tensor:
        """Reward of every token, [S, L]: R on the last policy token, and with kl_place "reward" -kl_coef k1 on all."""
        coef = self.spec.kl_coef if self.needs_token_rewards else 0.0
        placed = advantage_functions.place_rewards(rewards, mask=mask)
        return placed + kl_functions.reward_penalty(logp, logp_ref, mask=mask, coef=coef)

    def denominators(
        self,
        *,
        mask: Tensor,
        groups: Tensor | None = None,
        logp_prox: Tensor | None = None,
        logp_behave: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Denominators:
        """Counts of the given sequences as the whole optimizer step; hand the result to `loss` of every part of it.

        mask: [S, L]. groups: int [S], required by prompt-mean. logp_prox, logp_behave: [S, L], required by m2po (its
        cut is a property of the whole step) and by denominator "kept". lengths: int [S], only checked: no policy token
        may lie beyond.
        """
        if lengths is not None:
            _check_lengths(mask, lengths)
        if self.spec.aggregation == "prompt-mean" and groups is None:
            raise ConfigError(
                "objective: aggregation 'prompt-mean' needs groups [S], both for denominators() and for loss()"
            )
        if self.spec.correction != "m2po" and self.spec.denominator == "original":
            return count(mask, groups)
        if logp_prox is None or logp_behave is None:
            cause = "correction 'm2po'" if self.spec.correction == "m2po" else "denominator 'kept'"
            raise ConfigError(
                f"objective: {cause} depends on the whole step: pass logp_prox and logp_behave to denominators()"
            )
        valid = _valid(mask, logp_prox, logp_behave)
        prox, behave = on_mask(logp_prox, valid), on_mask(logp_behave, valid)
        cut = None
        if self.spec.correction == "m2po":
            cut = second_moment_cut(prox - behave, valid, high=self.spec.parameter("correction_high"))
        kept = None
        if self.spec.denominator == "kept":
            kept = valid & correct(self.spec, logp_prox=prox, logp_behave=behave, mask=valid, cut=cut).keep
        return count(mask, groups, kept=kept, second_moment_cut=cut)

    def loss(
        self,
        logp: Tensor,
        *,
        logp_prox: Tensor,
        logp_behave: Tensor,
        logp_ref: Tensor | None = None,
        advantages: Tensor,
        mask: Tensor,
        groups: Tensor | None = None,
        denominators: Denominators | None = None,
        entropy: Tensor | None = None,
    ) -> LossOutput:
        """Loss and metrics of some sequences of a step; losses of all parts add up to the loss of the step.

        logp: [S, L], current policy, with gradient. logp_prox: before the update. logp_behave: at sampling time.
        logp_ref: reference model. advantages: [S, L]. mask: [S, L], nonzero on policy tokens. groups: int [S].
        denominators: of the whole step; None takes these sequences for the whole step. entropy: [S, L], of the full
        vocabulary.

        Tokens whose logp_behave or logp_prox is not finite are left out and counted in "rejected_nonfinite_count"; a
        non-finite logp reaches the loss, so that the engine skips the step. Raises DataError for shapes that do not
        fit, and ConfigError when an input that the settings need is missing.
        """
        self._check_inputs(logp, logp_ref, entropy)
        fixed = {"logp_prox": logp_prox, "logp_behave": logp_behave, "advantages": advantages}
        for name, tensor in {**fixed, "mask": mask, "logp_ref": logp_ref, "entropy": entropy}.items():
            if tensor is not None:
                check_shape(name, tensor, logp.shape)
        if denominators is None:
            denominators = self.denominators(mask=mask, groups=groups, logp_prox=logp_prox, logp_behave=logp_behave)
        valid = _valid(mask, logp_prox, logp_behave)
        inputs = _Inputs(
            logp=on_mask(logp, valid),
            **{name: on_mask(tensor, valid).detach() for name, tensor in fixed.items()},
            mask=mask > 0,
            valid=valid,
            logp_ref=None if logp_ref is None else on_mask(logp_ref, valid).detach(),
            entropy=None if entropy is None else on_mask(entropy, valid),
        )
        anchor = inputs.logp_prox if self.spec.resolved_anchor == "prox" else inputs.logp_behave
        token_loss = per_token(
            self.spec,
            logp=inputs.logp,
            logp_anchor=anchor,
            logp_behave=inputs.logp_behave,
            advantages=inputs.advantages,
            mask=inputs.valid,
        )
        correction = correct(
            self.spec,
            logp_prox=inputs.logp_prox,
            logp_behave=inputs.logp_behave,
            mask=inputs.valid,
            cut=denominators.second_moment_cut,
            logp=inputs.logp,
            advantages=inputs.advantages,
        )
        return self._assemble(inputs, anchor, token_loss, correction, groups, denominators)

    def _assemble(
        self,
        inputs: _Inputs,
        anchor: Tensor,
        token_loss: TokenLoss,
        correction: Correction,
        groups: Tensor | None,
        denominators: Denominators,
    ) -> LossOutput:
        """Aggregate the policy loss, add KL and entropy, collect metrics."""
        kept = inputs.valid & correction.keep
        weights = token_weights(
            self.spec.aggregation,
            kept if self.spec.denominator == "kept" else inputs.mask,
            denominators,
            groups=groups,
            length_norm=self.spec.length_norm,
            dtype=inputs.logp.dtype,
        )
        loss = aggregate(token_loss.loss * correction.weight, kept, weights)
        # KL and entropy act on every valid token, unless the denominators count only the kept ones.
        regularised = kept if self.spec.denominator == "kept" else inputs.valid
        tokens = denominators.tokens
        metrics = {"policy_loss": loss.detach(), **_ratio_metrics(inputs, anchor, token_loss, tokens)}
        metrics |= _correction_metrics(inputs, anchor, correction, kept, tokens)
        if inputs.logp_ref is not None:
            drift = inputs.logp.detach() - inputs.logp_ref
            metrics["clamp_count"] = metrics["clamp_count"] + count_clamped(drift, inputs.valid)
            distance = kl_functions.estimate("k3", inputs.logp.detach(), inputs.logp_ref)
            metrics["kl_ref"] = metric_functions.masked_mean(distance, inputs.valid, tokens)
            if self.spec.kl_coef > 0 and self.spec.kl_place == "loss":
                weighted = self.spec.kl_importance_weighted
                distance = kl_functions.estimate(
                    self.spec.kl, inputs.logp, inputs.logp_ref, importance_weighted=weighted
                )
                loss = loss + self.spec.kl_coef * aggregate(distance, regularised, weights)
        if inputs.entropy is not None:
            metrics["entropy"] = metric_functions.masked_mean(inputs.entropy, inputs.valid, tokens)
            if self.spec.entropy_coef > 0:
                loss = loss - self.spec.entropy_coef * aggregate(inputs.entropy, regularised, weights)
        return LossOutput(loss=loss, metrics=metrics)

    def _check_inputs(self, logp: Tensor, logp_ref: Tensor | None, entropy: Tensor | None) -> None:
        """Inputs that the settings need are there."""
        if logp.dim() != 2 or not logp.is_floating_point():
            raise ConfigError(
                f"objective: logp is {logp.dtype} of shape {tuple(logp.shape)}, expected floating point [batch, seq]"
            )
        if self.needs_reference and self.spec.kl_place == "loss" and logp_ref is None:
            raise ConfigError(f"objective: kl_coef is {self.spec.kl_coef}, but loss() was not given logp_ref")
        if self.needs_entropy and entropy is None:
            raise ConfigError(f"objective: entropy_coef is {self.spec.entropy_coef}, but loss() was not given entropy")


def _valid(mask: Tensor, logp_prox: Tensor, logp_behave: Tensor) -> Tensor:
    """bool [S, L]: policy tokens whose fixed log-probabilities are finite. A -inf is a broken sample, never a ratio of
    1.
    """
    return (mask > 0) & torch.isfinite(logp_prox) & torch.isfinite(logp_behave)


def _check_lengths(mask: Tensor, lengths: Tensor) -> None:
    """A policy token on padding means that mask and lengths belong to different batches."""
    check_shape("lengths", lengths, mask.shape[:1])
    positions = torch.arange(mask.shape[1], device=mask.device)
    beyond = ((mask > 0) & (positions >= lengths.to(mask.device).unsqueeze(1))).any(dim=1).nonzero().flatten().tolist()
    if beyond:
        raise ConfigError(f"objective: mask has policy tokens beyond the length of sequences {beyond[:8]}")


def _ratio_metrics(inputs: _Inputs, anchor: Tensor, token_loss: TokenLoss, tokens: float) -> dict[str, Tensor]:
    """How far the policy moved from the anchor, and how often a bound acted."""
    mean, valid = metric_functions.masked_mean, inputs.valid
    ratio = bounded(inputs.logp.detach() - anchor).exp()
    return {
        "advantage": mean(inputs.advantages, valid, tokens),
        "approx_kl": mean(kl_functions.estimate("k3", inputs.logp.detach(), inputs.logp_prox), valid, tokens),
        "clip_fraction": (token_loss.clipped & valid).sum().to(ratio.dtype) / max(tokens, 1.0),
        "dual_clip_fraction": (token_loss.dual_clipped & valid).sum().to(ratio.dtype) / max(tokens, 1.0),
        "ratio": mean(ratio, valid, tokens),
        "ratio_max": metric_functions.masked_max(ratio, valid),
    }


def _correction_metrics(
    inputs: _Inputs, anchor: Tensor, correction: Correction, kept: Tensor, tokens: float
) -> Mapping[str, Tensor]:
    """How far sampling and training policy differ, and what was done about it."""
    mean, valid = metric_functions.masked_mean, inputs.valid
    difference = inputs.logp_prox - inputs.logp_behave
    weight = bounded(difference).exp()
    applied = correction.weight * kept
    clamped = (
        count_clamped(inputs.logp.detach() - anchor, valid) + count_clamped(difference, valid) + correction.clamped
    )
    return {
        "behave_abs_diff": mean(difference.abs(), valid, tokens),
        "behave_abs_diff_max": metric_functions.masked_max(difference.abs(), valid),
        "behave_weight": mean(weight, valid, tokens),
        "behave_weight_square": mean(weight**2, valid, tokens),
        "clamp_count": clamped.to(weight.dtype),
        "correction_weight": mean(applied, valid, tokens),
        "correction_weight_max": metric_functions.masked_max(applied, valid),
        "masked_fraction": (inputs.mask & ~kept).sum().to(weight.dtype) / max(tokens, 1.0),
        "rejected_nonfinite_count": (inputs.mask & ~valid).sum().to(weight.dtype),
    }
