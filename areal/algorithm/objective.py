"""Objectives: advantage, surrogate, correction, aggregation, KL and entropy put together; and the named ones.

The order inside `Objective.loss`: refuse shapes that do not fit; drop tokens whose behaviour or prox log-probability is
not finite (counted); per-token surrogate; times the stop-gradient correction weight; aggregate with the denominators of
the whole step; add KL and entropy terms. Importing this module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.algorithm import advantages, aggregations, blocks, corrections, surrogates
from areal.algorithm import kl as kl_functions
from areal.algorithm.advantages import GRPO, Advantage, AdvantageEstimate, place_rewards, reward_batch
from areal.algorithm.aggregations import Aggregation, Denominators, TokenMean, aggregate, count, tokens_of_samples
from areal.algorithm.corrections import Correction, NoCorrection, sequence_log_weight
from areal.algorithm.kl import KL
from areal.algorithm.surrogates import PPO, Surrogate, TokenLoss
from areal.algorithm.tokens import (
    LOG_RATIO_LIMIT,
    PolicyTokens,
    bounded,
    check_shape,
    count_clamped,
    masked_max,
    masked_mean,
    on_mask,
)
from areal.api import Config, ConfigError, LossOutput, number
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Objective(Config):
    """A policy objective. Stateless and safe to share.

    Example: `Objective(surrogate=PPO(clip_high=0.28), correction=TIS(cap=2.0), decoupled=True)`.
    """

    advantage: Advantage = field(default_factory=GRPO)
    """How rewards become advantages."""
    surrogate: Surrogate = field(default_factory=PPO)
    """Per-token policy loss."""
    correction: Correction = field(default_factory=NoCorrection)
    """What is done about the distance between the policy that sampled and the one that trains; asynchronous runs:
    decoupled with "tis"."""
    aggregation: Aggregation = field(default_factory=TokenMean)
    """What "mean" means."""
    kl: KL = field(default_factory=KL)
    """Distance to the reference model."""
    entropy_coef: float = number(0.0, at_least=0)
    """Weight of the entropy bonus; >= 0, above 0 it needs the entropy of the full vocabulary."""
    decoupled: bool = False
    """Multiply the loss by sg[w], so that the gradient is that of the behaviour policy's expectation (arXiv
    2505.24298)."""
    anchor: Literal["behave", "prox"] | None = None
    """Policy in the denominator of the ratio: "prox" (recomputed by the trainer) or "behave" (sampled with); null takes
    the surrogate's, which is "prox" for all but dppo."""
    denominator: Literal["kept", "original"] = "original"
    """Divide by the policy tokens before ("original") or after ("kept") the correction dropped some."""

    def __post_init__(self) -> None:
        """Check what may stand together; every block has checked itself."""
        blocks.check_fields(self)
        self.surrogate.check(anchor=self.anchor, decoupled=self.decoupled, aggregation=self.aggregation)
        self.correction.check(denominator=self.denominator)
        # pi_prox / pi_behave must enter the objective at most once.
        name = blocks.block_name(self.correction)
        if self.resolved_anchor == "behave" and (self.decoupled or self.correction.weighted):
            cause = "decoupled: true" if self.decoupled else f"correction {name!r}"
            raise ConfigError(
                f"double importance sampling: with anchor 'behave' the ratio of surrogate "
                f"{blocks.block_name(self.surrogate)!r} already contains pi_prox / pi_behave, and {cause} multiplies "
                f"by it again; drop one of them"
            )
        if self.decoupled and self.correction.weighted and self.correction.per_sequence:
            raise ConfigError(
                f"double importance sampling: decoupled: true weights every token by w and correction {name!r} at "
                f"level 'sequence' weights the sequence by the product of the same w; use decoupled: false, or "
                f"correction.level: token"
            )

    @property
    def resolved_anchor(self) -> str:
        """ "prox" or "behave"."""
        return self.anchor or self.surrogate.default_anchor

    @property
    def compares_with_sampler(self) -> bool:
        """Whether tokens are weighted or masked by the difference of proximal and behaviour policy."""
        return self.decoupled or not isinstance(self.correction, NoCorrection)

    @property
    def needs_critic(self) -> bool:
        """Whether `advantages` needs critic values."""
        return self.advantage.needs_critic

    @property
    def needs_group(self) -> bool:
        """Whether `advantages` compares the samples of a prompt with each other: a group of one teaches nothing."""
        return self.advantage.needs_group

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities of a reference model are needed, in the loss or for `token_rewards`."""
        return self.kl.coef > 0

    @property
    def needs_token_rewards(self) -> bool:
        """Whether `advantages` must be given the result of `token_rewards`: the KL penalty is part of the reward."""
        return self.kl.coef > 0 and self.kl.place == "reward"

    def describe(self) -> dict[str, Any]:
        """All settings as plain values, nested as a configuration nests them."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        described = {
            name: blocks.describe_block(value) if isinstance(value, Config) else value for name, value in values.items()
        }
        return {**described, "anchor": self.resolved_anchor}

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
        turn_rewards: Tensor | None = None,
        samples: Tensor | None = None,
    ) -> AdvantageEstimate:
        """Estimate the advantages of a whole step, and with a critic its targets, in the dtype of `rewards` (float32
        for integers).

        Arguments as in `advantages.reward_batch`. Raises ConfigError when an input that the settings need is missing,
        DataError for rewards that are not finite and shapes that do not fit.
        """
        import torch

        name = blocks.block_name(self.advantage)
        if self.needs_token_rewards and token_rewards is None:
            raise ConfigError(
                "objective: kl.place 'reward' puts the KL penalty into the token rewards, but token_rewards is "
                "missing; pass token_rewards=objective.token_rewards(rewards, logp_prox, logp_ref, mask=mask)"
            )
        if self.needs_critic and values is None:
            raise ConfigError(
                f"advantage {name!r} needs critic values [batch, seq]; group estimators such as 'grpo' need none"
            )
        batch = reward_batch(
            rewards,
            groups,
            mask=mask,
            values=values,
            token_rewards=token_rewards,
            truncated=truncated,
            turn_ids=turn_ids,
            turn_rewards=turn_rewards,
            samples=samples,
        )
        found = self.advantage.estimate(batch)
        check_shape(f"advantage {name!r}: advantages", found.advantages, mask.shape)
        dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
        returns = None if found.returns is None else found.returns.to(dtype)
        return AdvantageEstimate(advantages=found.advantages.to(dtype), returns=returns)

    def token_rewards(
        self, rewards: Tensor, logp: Tensor, logp_ref: Tensor, *, mask: Tensor, turn_rewards: Tensor | None = None
    ) -> Tensor:
        """Reward of every token, [S, L]: R on the last policy token, what turns got on theirs, and with kl.place
        "reward" -coef k1 on all.
        """
        placed = place_rewards(rewards, mask=mask)
        if turn_rewards is not None:
            placed = placed + on_mask(turn_rewards, mask)
        return placed + self.kl.token_penalty(logp, logp_ref, mask=mask) if self.needs_token_rewards else placed

    def denominators(
        self,
        *,
        mask: Tensor,
        groups: Tensor | None = None,
        samples: Tensor | None = None,
        logp_prox: Tensor | None = None,
        logp_behave: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Denominators:
        """Count the given sequences as the whole optimizer step; hand the result to `loss` of every part of it.

        mask: [S, L]. groups: int [S], required by prompt-mean. samples: int [S], equal for the sequences of one sample,
        None when each is one. logp_prox, logp_behave: [S, L], required by corrections
        that compare with the whole step (m2po) and by denominator "kept". lengths: int [S], only checked: no policy
        token may lie beyond.
        """
        if lengths is not None:
            _check_lengths(mask, lengths)
        if self.aggregation.needs_groups and groups is None:
            raise ConfigError(
                f"objective: aggregation {blocks.block_name(self.aggregation)!r} needs groups [S], both for "
                f"denominators() and for loss()"
            )
        correction, counts_kept = self.correction, self.denominator == "kept"
        if not (correction.needs_step or counts_kept):
            return count(mask, groups, samples=samples)
        if logp_prox is None or logp_behave is None:
            name = blocks.block_name(correction)
            cause = f"correction {name!r}" if correction.needs_step else "denominator 'kept'"
            raise ConfigError(
                f"objective: {cause} depends on the whole step: pass logp_prox and logp_behave to denominators()"
            )
        # What is not known before the micro-batches run is empty: a correction that reads it fails at once.
        unknown = logp_prox.new_empty(0)
        tokens = self._tokens(logp_prox, logp_prox, logp_behave, advantages=logp_prox, mask=mask)
        tokens = replace(tokens, logp=unknown, advantages=unknown)
        threshold = correction.step_threshold(tokens) if correction.needs_step else None
        kept = tokens.mask & correction.keep(replace(tokens, step_threshold=threshold)) if counts_kept else None
        return count(mask, groups, samples=samples, kept=kept, step_threshold=threshold)

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
        samples: Tensor | None = None,
        denominators: Denominators | None = None,
        entropy: Tensor | None = None,
    ) -> LossOutput:
        """Loss and metrics of some sequences of a step; losses of all parts add up to the loss of the step.

        logp: [S, L], current policy, with gradient. logp_prox: before the update. logp_behave: at sampling time.
        logp_ref: reference model. advantages: [S, L]. mask: [S, L], nonzero on policy tokens. groups, samples:
        int [S], as in `denominators`.
        denominators: of the whole step; None takes these sequences for the whole step. entropy: [S, L], of the full
        vocabulary.

        Tokens whose logp_behave or logp_prox is not finite are left out and counted in "rejected_nonfinite_count"; a
        non-finite logp reaches the loss, so that the engine skips the step. Raises DataError for shapes that do not
        fit, and ConfigError when an input that the settings need is missing.
        """
        given = {"logp_prox": logp_prox, "logp_behave": logp_behave, "advantages": advantages, "mask": mask}
        self._check_inputs(logp, {**given, "logp_ref": logp_ref, "entropy": entropy})
        if denominators is None:
            denominators = self.denominators(
                mask=mask, groups=groups, samples=samples, logp_prox=logp_prox, logp_behave=logp_behave
            )
        threshold = denominators.step_threshold
        tokens = self._tokens(logp, logp_prox, logp_behave, advantages=advantages, mask=mask, threshold=threshold)
        token_loss = self.surrogate.token_loss(tokens)
        check_shape(f"surrogate {blocks.block_name(self.surrogate)!r}: loss", token_loss.loss, logp.shape)
        weight, keep, clamped = self._corrected(tokens)
        kept = tokens.mask & keep
        # KL and entropy act on every valid token, unless the denominators count only the kept ones.
        counted, regularised = (kept, kept) if self.denominator == "kept" else (mask > 0, tokens.mask)
        own_S1 = counted.sum(dim=1, keepdim=True).to(logp.dtype)
        weights_S1 = self.aggregation.weights(
            tokens_of_samples(own_S1, samples, denominators), denominators, groups=groups
        )
        loss = aggregate(token_loss.loss * weight, kept, weights_S1)
        number = denominators.tokens
        metrics = {"policy_loss": loss.detach(), **_policy_metrics(tokens, token_loss, number)}
        metrics |= _correction_metrics(tokens, weight * kept, clamped, number)
        metrics["masked_fraction"] = ((mask > 0) & ~kept).sum().to(logp.dtype) / max(number, 1.0)
        metrics["rejected_nonfinite_count"] = ((mask > 0) & ~tokens.mask).sum().to(logp.dtype)
        if logp_ref is not None:
            logp_ref = on_mask(logp_ref, tokens.mask).detach()
            current = tokens.logp.detach()
            metrics["clamp_count"] = metrics["clamp_count"] + count_clamped(current - logp_ref, tokens.mask)
            metrics["kl_ref"] = masked_mean(kl_functions.estimate("k3", current, logp_ref), tokens.mask, number)
            if self.kl.coef > 0 and self.kl.place == "loss":
                distance = self.kl.token_loss(tokens.logp, logp_ref)
                loss = loss + self.kl.coef * aggregate(distance, regularised, weights_S1)
        if entropy is not None:
            entropy = on_mask(entropy, tokens.mask)
            metrics["entropy"] = masked_mean(entropy, tokens.mask, number)
            if self.entropy_coef > 0:
                loss = loss - self.entropy_coef * aggregate(entropy, regularised, weights_S1)
        return LossOutput(loss=loss, metrics=metrics)

    def _check_inputs(self, logp: Tensor, others: Mapping[str, Tensor | None]) -> None:
        """Check that the inputs which the settings need are there, all of one shape."""
        if logp.dim() != 2 or not logp.is_floating_point():
            raise ConfigError(
                f"objective: logp is {logp.dtype} of shape {tuple(logp.shape)}, expected floating point [batch, seq]"
            )
        if self.needs_reference and self.kl.place == "loss" and others["logp_ref"] is None:
            raise ConfigError(f"objective: kl.coef is {self.kl.coef}, but loss() was not given logp_ref")
        if self.entropy_coef > 0 and others["entropy"] is None:
            raise ConfigError(f"objective: entropy_coef is {self.entropy_coef}, but loss() was not given entropy")
        for name, tensor in others.items():
            if tensor is not None:
                check_shape(name, tensor, logp.shape)

    def _tokens(
        self,
        logp: Tensor,
        logp_prox: Tensor,
        logp_behave: Tensor,
        *,
        advantages: Tensor,
        mask: Tensor,
        threshold: float | None = None,
    ) -> PolicyTokens:
        """Return what the blocks see: 0 off the valid tokens.

        A fixed log-probability of -inf is a broken sample, never a ratio of 1.
        """
        valid = (mask > 0) & logp_prox.isfinite() & logp_behave.isfinite()
        prox, behave = on_mask(logp_prox, valid).detach(), on_mask(logp_behave, valid).detach()
        return PolicyTokens(
            logp=on_mask(logp, valid),
            logp_prox=prox,
            logp_behave=behave,
            logp_anchor=prox if self.resolved_anchor == "prox" else behave,
            advantages=on_mask(advantages, valid).detach(),
            mask=valid,
            step_threshold=threshold,
        )

    def _corrected(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor, Tensor]:
        """(factor of the loss [S, L], kept tokens [S, L], how many weights of sequences hit the overflow guard)."""
        import torch

        with torch.no_grad():
            correction, clamped = self.correction, tokens.logp.new_zeros(())
            keep = correction.keep(tokens)
            if not (correction.weighted or self.decoupled):
                return torch.ones_like(tokens.logp), keep, clamped
            # A loss without ratio has nothing that leads from the proximal to the current policy.
            origin = tokens.logp_prox if self.surrogate.has_ratio else tokens.logp
            log_weight = origin - tokens.logp_behave
            if correction.per_sequence:
                log_weight = sequence_log_weight(log_weight, tokens.mask)
                clamped = (log_weight.abs() > LOG_RATIO_LIMIT).sum().to(log_weight.dtype)
            return correction.weight(log_weight).expand_as(tokens.logp), keep, clamped


def _check_lengths(mask: Tensor, lengths: Tensor) -> None:
    """Raise ValueError for a policy token on padding: mask and lengths belong to different batches."""
    import torch

    check_shape("lengths", lengths, mask.shape[:1])
    positions = torch.arange(mask.shape[1], device=mask.device)
    beyond = ((mask > 0) & (positions >= lengths.to(mask.device).unsqueeze(1))).any(dim=1).nonzero().flatten().tolist()
    if beyond:
        raise ConfigError(f"objective: mask has policy tokens beyond the length of sequences {beyond[:8]}")


def _policy_metrics(tokens: PolicyTokens, token_loss: TokenLoss, number: float) -> dict[str, Tensor]:
    """How far the policy moved from the anchor, and how often a bound acted."""
    ratio = tokens.log_ratio.detach().exp()
    current = tokens.logp.detach()
    found = {
        "advantage": masked_mean(tokens.advantages, tokens.mask, number),
        "approx_kl": masked_mean(kl_functions.estimate("k3", current, tokens.logp_prox), tokens.mask, number),
        "ratio": masked_mean(ratio, tokens.mask, number),
        "ratio_max": masked_max(ratio, tokens.mask),
    }
    for name, acted in {"clip": token_loss.clipped, "dual_clip": token_loss.dual_clipped}.items():
        hits = ratio.new_zeros(()) if acted is None else (acted & tokens.mask).sum().to(ratio.dtype)
        found[f"{name}_fraction"] = hits / max(number, 1.0)
    return found


def _correction_metrics(tokens: PolicyTokens, applied: Tensor, clamped: Tensor, number: float) -> dict[str, Tensor]:
    """How far sampling and training policy differ, and what was done about it. applied: weights, 0 where dropped."""
    valid = tokens.mask
    difference = tokens.logp_prox - tokens.logp_behave
    weight = bounded(difference).exp()
    clamps = count_clamped(tokens.logp.detach() - tokens.logp_anchor, valid) + count_clamped(difference, valid)
    return {
        "behave_abs_diff": masked_mean(difference.abs(), valid, number),
        "behave_abs_diff_max": masked_max(difference.abs(), valid),
        "behave_weight": masked_mean(weight, valid, number),
        "behave_weight_square": masked_mean(weight**2, valid, number),
        "clamp_count": (clamps + clamped).to(weight.dtype),
        "correction_weight": masked_mean(applied, valid, number),
        "correction_weight_max": masked_max(applied, valid),
    }


# -------------------------------------------------------------------------------------------- the named objectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named objective and where it comes from.

    Example: `Preset(paper="DAPO, arXiv 2503.14476", objective=Objective(surrogate=PPO(clip_high=0.28)))`.
    """

    paper: str
    objective: Objective
    note: str = ""
    """What else the paper does that lies outside the loss."""


PRESETS: Final[dict[str, Preset]] = {
    "cispo": Preset(
        paper="MiniMax-M1, arXiv 2506.13585",
        objective=Objective(surrogate=surrogates.CISPO()),
        note="clip_high is relative: the weight is capped at 1 + clip_high",
    ),
    "dapo": Preset(
        paper="DAPO, arXiv 2503.14476",
        objective=Objective(surrogate=surrogates.PPO(clip_low=0.2, clip_high=0.28)),
        note="dynamic sampling belongs to the rollout; overlong shaping to objective.overlong_buffer",
    ),
    "dppo": Preset(paper="DPPO, arXiv 2602.04879", objective=Objective(surrogate=surrogates.DPPO())),
    "drgrpo": Preset(
        paper="Dr.GRPO, arXiv 2503.20783",
        objective=Objective(
            advantage=advantages.DrGRPO(), aggregation=aggregations.SequenceTokenSumNorm(length_norm=1024.0)
        ),
        note="length_norm only scales the loss; set it to the generation budget",
    ),
    "grpo": Preset(
        paper="GRPO, arXiv 2402.03300",
        objective=Objective(aggregation=aggregations.SequenceTokenMean()),
        note="the paper's kl is k3 in the loss with coef 0.04; off here",
    ),
    "gspo": Preset(
        paper="GSPO, arXiv 2507.18071",
        objective=Objective(surrogate=surrogates.GSPO(), aggregation=aggregations.SequenceTokenMean()),
    ),
    "icepop": Preset(paper="IcePop, arXiv 2510.18855", objective=Objective(correction=corrections.IcePop())),
    "kpop": Preset(paper="KPop", objective=Objective(decoupled=True, correction=corrections.KPop())),
    "m2po": Preset(
        paper="M2PO, arXiv 2510.01161",
        objective=Objective(decoupled=True, correction=corrections.M2PO()),
        note="the second moment is that of l_behave - l_prox over the whole step, so that it does not depend on "
        "micro-batches",
    ),
    "maxrl": Preset(paper="MaxRL", objective=Objective(advantage=advantages.MaxRL())),
    "opo": Preset(paper="OPO, arXiv 2505.23585", objective=Objective(advantage=advantages.OPO())),
    "ppo": Preset(
        paper="PPO, arXiv 1707.06347",
        objective=Objective(advantage=advantages.GAE(whiten=True), kl=KL(estimator="k1", place="reward")),
    ),
    "reinforce_pp": Preset(
        paper="REINFORCE++, arXiv 2501.03262",
        objective=Objective(advantage=advantages.ReinforcePP(), kl=KL(estimator="k1", place="reward")),
    ),
    "reinforce_pp_baseline": Preset(
        paper="REINFORCE++-baseline, arXiv 2501.03262",
        objective=Objective(advantage=advantages.ReinforcePPBaseline(), kl=KL(estimator="k2")),
    ),
    "rloo": Preset(
        paper="RLOO, arXiv 2402.14740",
        objective=Objective(
            advantage=advantages.RLOO(),
            aggregation=aggregations.SequenceTokenSum(),
            kl=KL(estimator="k1", place="reward"),
        ),
        note="clipped so that several updates per batch stay near the sampled policy; the first update is the paper's",
    ),
    "sapo": Preset(
        paper="SAPO, arXiv 2511.20347",
        objective=Objective(surrogate=surrogates.SAPO(), aggregation=aggregations.SequenceTokenMean()),
    ),
}
"""Sorted. A preset corrects no mismatch of sampler and trainer unless its paper does: asynchronous runs should set
decoupled=True, correction="tis". A new entry needs its paper, and a golden value in the tests."""


def get_objective(preset: str, **changes: Any) -> Objective:
    """Build the objective that `preset` names, with changes.

    preset: a key of `PRESETS`, e.g. "grpo". changes: fields of `Objective`. A block is given as itself, as a name or
    path, or as a mapping: with a name that class with its defaults and these changes, without a name the preset's block
    with these changes (see `areal.algorithm.blocks`).

    Raises ConfigError (or RegistryError) for an unknown name or field, naming the nearest, and for combinations that
    train on the wrong thing, naming the reason.

    Example: `get_objective("dapo", surrogate={"clip_high": 0.3}, correction=TIS(cap=3.0), decoupled=True)`.
    """
    if preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS)
        raise ConfigError(
            f"unknown objective preset {preset!r}: {f'{hint} ' if hint else ''}known presets are {', '.join(PRESETS)}"
        )
    base = PRESETS[preset].objective
    known = [item.name for item in fields(Objective)]
    for key in changes:
        if key not in known:
            kinds = [kind for kind in blocks.KINDS if key in {item.name for item in fields(getattr(base, kind))}]
            hint = f"did you mean {kinds[0]}.{key}?" if kinds else did_you_mean(key, known)
            raise ConfigError(
                f"{key} is an unknown setting of objective {preset!r}; {f'{hint} ' if hint else ''}known settings are "
                f"{', '.join(known)}"
            )
    settings: dict[str, Any] = {
        key: blocks.make_block(key, value, getattr(base, key)) if key in blocks.KINDS else value
        for key, value in changes.items()
    }
    return replace(base, **settings)


def describe_presets() -> list[dict[str, Any]]:
    """One row per preset, sorted: name, formula, paper, note and all settings; docs and --help are made from it.

    Example row: `{"name": "dapo", "formula": "...", "paper": "DAPO, arXiv 2503.14476", "note": "...", "defaults":
    {"surrogate": {"name": "ppo", "clip_low": 0.2, ...}, ...}}`.
    """
    rows = []
    for name, preset in PRESETS.items():
        objective = preset.objective
        correction = (
            f"; correction: {objective.correction.formula}"
            if not isinstance(objective.correction, corrections.NoCorrection)
            else ""
        )
        formula = (
            f"{objective.advantage.formula}; loss: {objective.surrogate.formula}"
            f"{'; times sg[w]' if objective.decoupled else ''}{correction}; mean: {objective.aggregation.formula}"
        )
        rows.append(
            {
                "name": name,
                "formula": formula,
                "paper": preset.paper,
                "note": preset.note,
                "defaults": objective.describe(),
            }
        )
    return rows
