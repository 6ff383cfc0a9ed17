"""What an objective is made of, as plain data, and which combinations are refused. Torch-free; computes nothing.

Every field is a flat override of `get_objective(preset, field=value)`. A field set to a value it cannot have, a field
that the chosen parts would ignore, and a combination that trains on the wrong thing are all `ConfigError`s that say
why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from areal.algorithm import catalog
from areal.api import ConfigError

WEIGHTED_CORRECTIONS: Final[frozenset[str]] = frozenset({"icepop", "mis", "seq_mask_tis", "tis"})
"""Corrections that multiply the loss by w (the others only drop tokens or sequences)."""

_CHOICES: Final[dict[str, frozenset[str]]] = {
    "advantage": frozenset(catalog.ADVANTAGES),
    "aggregation": frozenset(catalog.AGGREGATIONS),
    "anchor": frozenset({"behave", "prox"}),
    "correction": frozenset(catalog.CORRECTIONS),
    "correction_level": frozenset({"sequence", "token"}),
    "denominator": frozenset({"kept", "original"}),
    "dppo_kind": frozenset({"kl", "tv"}),
    "kl": frozenset(catalog.KL_KINDS) - {"abs"},
    "kl_place": frozenset({"loss", "reward"}),
    "surrogate": frozenset(catalog.SURROGATES),
}
_BLOCKS: Final[dict[str, Mapping[str, catalog.Entry]]] = {
    "surrogate": catalog.SURROGATES,
    "correction": catalog.CORRECTIONS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSpec:
    """A policy objective. Fields that are None take the default of the block they belong to (see
    `areal.algorithm.catalog`).
    """

    advantage: str
    """How rewards become advantages: a key of `catalog.ADVANTAGES`."""
    advantage_params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the advantage, e.g. {"eps": 1e-4} or {"gamma": 0.99, "lam": 0.95}."""
    surrogate: str = "ppo"
    """Per-token policy loss: a key of `catalog.SURROGATES`."""
    anchor: str | None = None
    """Policy in the denominator of the ratio: "prox" (the default; recomputed by the trainer) or "behave" (sampled
    with). dppo is defined on "behave".
    """
    clip_low: float | None = None
    """ppo, gspo, cispo: the ratio is clipped below at 1 - clip_low; in (0, 1]."""
    clip_high: float | None = None
    """ppo, gspo, cispo: the ratio is clipped above at 1 + clip_high; > 0."""
    dual_clip: float | None = None
    """ppo: where A < 0 the loss is at most -dual_clip * A; > 1, None switches it off."""
    sapo_tau_pos: float | None = None
    """sapo: temperature of the gate where A > 0; > 0."""
    sapo_tau_neg: float | None = None
    """sapo: temperature of the gate elsewhere; > 0."""
    dppo_kind: str | None = None
    """dppo: distance of the trust region, "tv" or "kl"."""
    dppo_low: float | None = None
    """dppo: largest allowed distance where A < 0; > 0."""
    dppo_high: float | None = None
    """dppo: largest allowed distance where A > 0; > 0."""
    aggregation: str = "token-mean"
    """What "mean" means: a key of `catalog.AGGREGATIONS`."""
    length_norm: float | None = None
    """seq-mean-token-sum-norm: the constant L that divides each sum; > 0, use the generation budget."""
    allow_length_weighting: bool = False
    """Consent to token-level aggregation of gspo, which weights whole sequences by their length."""
    decoupled: bool = False
    """Multiply the loss by sg[w], so that the gradient is that of the behaviour policy's expectation (arXiv
    2505.24298).
    """
    correction: str = "none"
    """Bound or mask on w: a key of `catalog.CORRECTIONS`. Asynchronous runs: decoupled=True with "tis"."""
    correction_low: float | None = None
    """Lower bound of the correction, see its formula."""
    correction_high: float | None = None
    """Upper bound or threshold of the correction, see its formula."""
    correction_cap: float | None = None
    """seq_mask_tis: upper bound of the token weight; > 0."""
    correction_level: str | None = None
    """tis, mis: "token" or "sequence"."""
    denominator: str = "original"
    """Divide by the policy tokens before ("original") or after ("kept") the correction dropped some."""
    kl: str = "k3_straight_through"
    """Estimator of the distance to the reference: a key of `catalog.KL_KINDS` other than "abs"."""
    kl_coef: float = 0.0
    """Weight of that distance; 0 needs no reference model."""
    kl_place: str = "loss"
    """"loss" adds it to the loss; "reward" subtracts it from the token rewards (`Objective.token_rewards`), k1 only.
    """
    kl_importance_weighted: bool = False
    """Multiply the loss term by pi / sg[pi], which makes the gradient of k1 and k3 that of KL(pi, ref)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; > 0 needs the entropy of the full vocabulary."""

    def __post_init__(self) -> None:
        """Check types, ranges, and what may stand together."""
        _check_values(self)
        for kind, table in _BLOCKS.items():
            _check_no_silent_field(self, kind, table)
        _check_advantage_params(self)
        _check_ranges(self)
        _check_single_importance_weight(self)
        _check_aggregation(self)
        _check_kl(self)

    def parameter(self, name: str) -> Any:
        """Value of a block's parameter, e.g. "clip_high": the field, or the block's default when the field is None."""
        value = getattr(self, name)
        if value is None:
            for kind, table in _BLOCKS.items():
                value = table[getattr(self, kind)].defaults.get(name, value)
        return value

    @property
    def needs_critic(self) -> bool:
        """Whether the advantage needs critic values."""
        return self.advantage in {"gae", "gae_turn"}

    @property
    def resolved_anchor(self) -> str:
        """ "prox" or "behave"."""
        return self.anchor or ("behave" if self.surrogate == "dppo" else "prox")

    def describe(self) -> dict[str, Any]:
        """All settings that have an effect, defaults filled in; plain values, ready for a report."""
        report: dict[str, Any] = {}
        for item in fields(self):
            value = self.parameter(item.name)
            if value is not None:
                report[item.name] = value
        report["anchor"] = self.resolved_anchor
        report["advantage_params"] = catalog.parameters(
            "advantage", self.advantage, catalog.ADVANTAGES, self.advantage_params
        )
        return report


def _check_values(spec: ObjectiveSpec) -> None:
    """Names are known, numbers are finite numbers, switches are booleans."""
    for item in fields(spec):
        value = getattr(spec, item.name)
        kind = str(item.type)
        if value is None and "None" in kind:
            continue
        if item.name in _CHOICES:
            if not isinstance(value, str) or value not in _CHOICES[item.name]:
                raise ConfigError(f"objective: {catalog.nearest(item.name, value, _CHOICES[item.name])}")
        elif "float" in kind:
            _check_number(item.name, value)
        elif kind == "bool" and not isinstance(value, bool):
            raise ConfigError(f"objective: {item.name} is {value!r}, expected true or false")
        elif "Mapping" in kind and not isinstance(value, Mapping):
            raise ConfigError(f"objective: {item.name} is {value!r}, expected a mapping such as {{eps: 0.0001}}")


def _check_number(name: str, value: object) -> None:
    """Refuse text, booleans, NaN and infinities."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"objective: {name} is {value!r}, expected a number")
    if not math.isfinite(value):
        raise ConfigError(f"objective: {name} is {value}, expected a finite number")


def _check_no_silent_field(spec: ObjectiveSpec, kind: str, table: Mapping[str, catalog.Entry]) -> None:
    """A setting that the chosen block would ignore is an error, not a no-op."""
    chosen = getattr(spec, kind)
    for name in sorted({key for entry in table.values() for key in entry.defaults}):
        if getattr(spec, name) is not None and name not in table[chosen].defaults:
            takers = ", ".join(sorted(key for key, entry in table.items() if name in entry.defaults))
            raise ConfigError(f"objective: {name} has no effect with {kind} {chosen!r}; it belongs to {takers}")


def _check_advantage_params(spec: ObjectiveSpec) -> None:
    """Names, types and ranges of the estimator's parameters."""
    options = catalog.parameters("advantage", spec.advantage, catalog.ADVANTAGES, spec.advantage_params)
    for name, value in options.items():
        default = catalog.ADVANTAGES[spec.advantage].defaults[name]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise ConfigError(f"objective: advantage_params.{name} is {value!r}, expected true or false")
        elif value is not None or default is not None:
            _check_number(f"advantage_params.{name}", value)
    for name in ("gamma", "lam", "lam_returns"):
        value = options.get(name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"objective: advantage_params.{name} is {value}, expected 0 <= {name} <= 1")
    if (alpha := options.get("adaptive_lambda")) is not None and not alpha > 0:
        raise ConfigError(f"objective: advantage_params.adaptive_lambda is {alpha}, expected > 0 (the paper uses 0.05)")
    if options.get("eps", 0.0) < 0:
        raise ConfigError(f"objective: advantage_params.eps is {options['eps']}, expected >= 0")


def _check_ranges(spec: ObjectiveSpec) -> None:
    """Bounds outside of which a formula stops meaning what its name says."""
    low, high, dual = spec.parameter("clip_low"), spec.parameter("clip_high"), spec.dual_clip
    if low is not None and not 0 < low <= 1:
        raise ConfigError(
            f"objective: clip_low is {low}, expected 0 < clip_low <= 1 (the ratio is clipped at 1 - clip_low)"
        )
    if high is not None and not high > 0:
        raise ConfigError(f"objective: clip_high is {high}, expected > 0 (the ratio is clipped at 1 + clip_high)")
    if dual is not None and not dual > 1:
        raise ConfigError(
            f"objective: dual_clip is {dual}, expected > 1: at or below 1 it removes every gradient where A < 0"
        )
    for name in ("sapo_tau_pos", "sapo_tau_neg", "dppo_low", "dppo_high", "length_norm", "correction_cap"):
        value = spec.parameter(name)
        if value is not None and not value > 0:
            raise ConfigError(f"objective: {name} is {value}, expected > 0")
    for name in ("kl_coef", "entropy_coef", "correction_low"):
        value = spec.parameter(name)
        if value is not None and value < 0:
            raise ConfigError(f"objective: {name} is {value}, expected >= 0")
    _check_correction_bounds(spec)


def _check_correction_bounds(spec: ObjectiveSpec) -> None:
    """w = 1 means that both policies agree: a correction that drops such tokens is a mistake."""
    low, high = spec.parameter("correction_low"), spec.parameter("correction_high")
    if spec.correction in {"geometric", "icepop", "mis", "seq_mask_tis"} and not low <= 1 <= high:
        raise ConfigError(
            f"objective: correction {spec.correction!r} keeps weights in [{low}, {high}], which must contain 1 "
            f"(the weight of a token on which both policies agree)"
        )
    if spec.correction in {"kpop", "m2po", "tis"} and not high > 0:
        raise ConfigError(f"objective: correction_high of {spec.correction!r} is {high}, expected > 0")
    if spec.denominator == "kept" and spec.correction == "none":
        raise ConfigError("objective: denominator 'kept' has no effect with correction 'none', which drops nothing")
    if spec.denominator == "kept" and spec.correction == "opsm":
        raise ConfigError(
            "objective: denominator 'kept' cannot be combined with correction 'opsm': which sequences it keeps "
            "depends on the policy being trained, so the count of the whole step is not known before the "
            "micro-batches run; use 'original'"
        )


def _check_single_importance_weight(spec: ObjectiveSpec) -> None:
    """pi_prox / pi_behave must enter the objective at most once."""
    weighted = spec.correction in WEIGHTED_CORRECTIONS
    if spec.surrogate == "sapo" and spec.decoupled:
        raise ConfigError(
            "objective: surrogate 'sapo' cannot be decoupled: its soft gate replaces the trust region, and an extra "
            "factor w outside the gate is not bounded by it; use decoupled=False, with correction 'tis' if the "
            "policies differ"
        )
    if spec.surrogate == "dppo" and spec.anchor == "prox":
        raise ConfigError("objective: surrogate 'dppo' is defined against the behaviour policy; leave anchor unset")
    if spec.resolved_anchor == "behave" and (spec.decoupled or weighted):
        cause = "decoupled=True" if spec.decoupled else f"correction {spec.correction!r}"
        raise ConfigError(
            f"objective: double importance sampling: with anchor 'behave' the ratio of surrogate {spec.surrogate!r} "
            f"already contains pi_prox / pi_behave, and {cause} multiplies by it again; drop one of them"
        )
    if spec.decoupled and weighted and spec.parameter("correction_level") == "sequence":
        raise ConfigError(
            f"objective: double importance sampling: decoupled=True weights every token by w and correction "
            f"{spec.correction!r} at level 'sequence' weights the sequence by the product of the same w; use "
            f"decoupled=False or correction_level='token'"
        )


def _check_aggregation(spec: ObjectiveSpec) -> None:
    """Means whose weighting does not fit, or whose constant is missing."""
    normed = spec.aggregation == "seq-mean-token-sum-norm"
    if normed and spec.length_norm is None:
        raise ConfigError(
            "objective: aggregation 'seq-mean-token-sum-norm' needs length_norm, a constant such as the generation "
            "budget; the padded width is no substitute, since it differs from batch to batch and changes the step size"
        )
    if not normed and spec.length_norm is not None:
        raise ConfigError(f"objective: length_norm has no effect with aggregation {spec.aggregation!r}")
    if spec.surrogate == "gspo" and spec.aggregation != "seq-mean-token-mean" and not spec.allow_length_weighting:
        raise ConfigError(
            f"objective: surrogate 'gspo' with aggregation {spec.aggregation!r} weights each sequence by its length, "
            f"which is not GSPO; use 'seq-mean-token-mean', or consent with allow_length_weighting=True"
        )


def _check_kl(spec: ObjectiveSpec) -> None:
    """Estimators that are right in the reward are wrong in the loss, and the other way round."""
    if spec.kl_place == "reward" and spec.kl != "k1":
        raise ConfigError(
            f"objective: kl {spec.kl!r} in the reward has the gradient of no KL divergence (only k1 is unbiased "
            f"there); use kl='k1', or kl_place='loss'"
        )
    if spec.kl_place == "reward" and spec.kl_importance_weighted:
        raise ConfigError("objective: kl_importance_weighted has no effect with kl_place 'reward'")
    if spec.kl_place == "loss" and spec.kl == "k1" and not spec.kl_importance_weighted:
        raise ConfigError(
            "objective: k1 as a loss has zero expected gradient; use kl='k2' or 'k3_straight_through' (gradient of "
            "KL(pi, ref)), kl_importance_weighted=True, or kl_place='reward'"
        )
