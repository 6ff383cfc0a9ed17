"""Infers how a mixture chooses and weighs experts, from the weights that tokens were observed to give to experts.

Weights are known number by number (see `experts.solve`), so the two questions are answered separately: which function
of the logits gives the weights of the chosen experts, and which criterion chooses just these.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch

from areal.models.blocks.moe import sparse_mixer
from areal.porting.infer.replay import numbers_of
from areal.porting.records import FeatureEvidence, UnsupportedError
from areal.porting.spec import RouterSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

Score = Literal["softmax", "sigmoid", "sparse_mixer"]

TOLERANCE: Final = 3e-5
"""Largest error of a weight over the largest weight of its token."""
CHOSEN: Final = 1e-4
"""Weights above this share of the token's largest are of chosen experts; solving leaves about 1e-6 for the others."""
SURE: Final = 1e-3
"""Tokens whose smallest chosen weight is below this share say nothing about the choice."""
JITTERS: Final = ("jitter", "noise", "eps", "threshold")
"""Words in the names of fields that may say how close to the largest logit others have to be."""
TIED: Final = 1e-5
"""Scores closer than this may be chosen either way."""

FOREIGN_SCORES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "sqrt(softplus)": lambda logits: torch.nn.functional.softplus(logits).sqrt(),
    "softplus": torch.nn.functional.softplus,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "logits": lambda logits: logits,
    "one": torch.ones_like,
}
"""Only for naming what cannot be expressed."""


@dataclass(frozen=True)
class Observed:
    """What tokens did in a probe."""

    inputs: Tensor
    """[N, hidden]."""
    weights: Tensor
    """float64 [N, experts]: weight of each expert, close to zero for those not chosen."""


@dataclass(frozen=True)
class Routing:
    """A router that explains the observation, and which tensors it uses."""

    spec: RouterSpec
    bias: str | None
    """Name of the vector that is the linear layer's bias."""
    selection_bias: str | None
    evidence: tuple[FeatureEvidence, ...]


class _Value(NamedTuple):
    score: Score
    normalize: bool
    bias: str | None
    scale: float
    error: float


class _Choice(NamedTuple):
    on_scores: bool
    selection_bias: str | None
    groups: int
    top_groups: int
    group_score: Literal["max", "top2_sum"]


def infer_routing(
    observed: Observed, matrix: Tensor, vectors: Mapping[str, Tensor], config: Mapping[str, Any], *, where: str
) -> Routing:
    """Infer which experts a token uses and with which weights. matrix [experts, hidden]; vectors [experts]: all that
    may be a bias, by name.

    UnsupportedError when no routing that a RouterSpec can say gives these weights.

    Example: deepseek_v3 gives 2 of 8 experts the weights 0.71 and 0.29 times 1.5. Sigmoids of the router's logits,
    normalised over the chosen ones and scaled by 1.5, reproduce the weights; softmax does not. Which experts are chosen
    is explained last: the best 2 by sigmoid + e_score_correction_bias within the best of 4 groups. Tokens whose last
    taken and first left score are nearly equal are not asked.
    """
    chosen = _chosen(observed.weights, where)
    top_k = int(chosen.sum(1)[0])
    ordered = observed.weights.topk(top_k, 1).values
    sure = ordered[:, -1] > SURE * ordered[:, 0]
    weights, chosen = observed.weights[sure], chosen[sure]
    logits = observed.inputs[sure].double() @ matrix.double().T
    try:
        values, other = _values(logits, chosen, weights, vectors, config, where)
    except UnsupportedError:
        mixed = mixed_routing(logits, weights, top_k, config, where)
        if mixed is None:
            raise
        return mixed
    # Several fit only where they give the same weights (one expert per token): the first that explains the choice, too.
    for value in values:
        biased = logits if value.bias is None else logits + vectors[value.bias].double()
        rest = {name: vector.double() for name, vector in vectors.items() if name != value.bias}
        try:
            choice, missed = _choice(biased, chosen, value, rest, config, where)
            break
        except UnsupportedError:
            if value is values[-1]:
                raise
    spec = RouterSpec(
        num_experts=matrix.shape[0],
        top_k=top_k,
        score=value.score,
        order="score_first" if choice.on_scores else "select_first",
        selection_bias=choice.selection_bias is not None,
        bias=value.bias is not None,
        groups=choice.groups,
        top_groups=choice.top_groups,
        group_score=choice.group_score,
        normalize=value.normalize and (choice.on_scores or value.score == "sigmoid"),
        scale=value.scale,
    )
    return Routing(spec, value.bias, choice.selection_bias, _evidence(spec, value, other, missed, where))


def mixed_routing(logits: Tensor, weights: Tensor, top_k: int, config: Mapping[str, Any], where: str) -> Routing | None:
    """Return the sparse mixer that gives these weights with a number of the config; None where it does not."""
    jitters = [number for number in numbers_of(config, named=JITTERS) if 0 <= number < 0.5]
    errors = {}
    for jitter in jitters:
        close, experts = sparse_mixer(logits, top_k, jitter)
        expected = torch.zeros_like(weights).scatter(1, experts, close)
        # Where some other logit is so close to the bound of a chosen one that rounding decides, nothing is learned.
        best_logits = logits.gather(1, experts)[:, :, None]
        distance = (best_logits - logits[:, None]) / logits[:, None].abs().maximum(best_logits)
        chosen_itself = torch.nn.functional.one_hot(experts, logits.shape[1]).bool()
        tied = (((distance - 2 * jitter).abs() < TIED) & ~chosen_itself).any(2).any(1)
        errors[jitter] = max((expected - weights)[~tied].abs().flatten().tolist(), default=1.0)
    best = min(errors, key=lambda jitter: errors[jitter], default=None)
    if best is None or errors[best] > TOLERANCE:
        return None
    spec = RouterSpec(num_experts=logits.shape[1], top_k=top_k, score="sparse_mixer", order="score_first", jitter=best)
    others = [error for jitter, error in errors.items() if jitter != best]
    evidence = FeatureEvidence(
        feature="router.score",
        value=f"sparse mixer, jitter {best:g}",
        source="probe",
        detail=f"{where}: weights of random tokens solved from its outputs, largest error {errors[best]:.1e}",
        margin=min(others) / TOLERANCE if others else None,
    )
    return Routing(spec, None, None, (evidence,))


def _evidence(
    spec: RouterSpec, value: _Value, other: _Value | None, missed: str, where: str
) -> tuple[FeatureEvidence, ...]:
    def line(feature: str, found: object, detail: str, margin: float | None = None) -> FeatureEvidence:
        return FeatureEvidence(
            feature=f"router.{feature}", value=str(found), source="probe", detail=detail, margin=margin
        )

    detail = f"{where}: weights of random tokens solved from its outputs, largest error {value.error:.1e}"
    margin = other.error / TOLERANCE if other else None
    name = f"{spec.score}{', normalised' if spec.normalize else ''}"
    lines = [line("score", name, detail, margin), line("top_k", spec.top_k, f"{where}: experts with a weight")]
    groups = f", best {spec.top_groups} of {spec.groups} groups by {spec.group_score}" if spec.groups > 1 else ""
    bias = " with selection bias" if spec.selection_bias else ""
    lines.append(line("order", f"{spec.order}{bias}{groups}", f"{where}: same choice for every token; {missed}"))
    if spec.scale != 1.0:
        lines.append(line("scale", spec.scale, f"{where}: ratio of observed weights"))
    return tuple(lines)


def _chosen(weights: Tensor, where: str) -> Tensor:
    """Return bool [N, experts], the same number in every row."""
    largest = weights.abs().amax(1, keepdim=True)
    counts = (weights.abs() > CHOSEN * largest).sum(1)
    top_k = int(counts.max())
    if not bool(counts.eq(top_k).double().mean() > 0.25) or float(weights.min()) < -TOLERANCE * float(largest.max()):
        spread = f"between {int(counts.min())} and {top_k} experts, smallest weight {float(weights.min()):.3g}"
        raise UnsupportedError(
            "routing to a varying number of experts or with negative weights",
            where=where,
            detail=f"tokens use {spread}",
        )
    return torch.zeros_like(weights, dtype=torch.bool).scatter(1, weights.topk(top_k, 1).indices, True)


# ------------------------------------------------------------------------------------------------------ weights


def _values(
    logits: Tensor,
    chosen: Tensor,
    weights: Tensor,
    vectors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    where: str,
) -> tuple[list[_Value], _Value | None]:
    """Return the functions that give the weights of the chosen experts, simple ones first, and the best rejected
    one."""
    tried: list[_Value] = []
    scores: tuple[Score, ...] = ("softmax", "sigmoid")
    for bias, score, normalize in itertools.product((None, *vectors), scores, (False, True)):
        biased = logits if bias is None else logits + vectors[bias].double()
        expected = _scores(biased, score) * chosen
        if normalize:
            expected = expected / expected.sum(1, keepdim=True)
        scale, error = _match(weights, expected)
        # The number that was meant: 1, one of the config's, or the shortest decimal nearby.
        near = [number for number in (1.0, *numbers_of(config)) if abs(scale - number) < 2e-5 * abs(scale)]
        short = float(f"{scale:.4g}")
        meant = near[0] if near else short if abs(short - scale) < 2e-5 * scale else scale
        tried.append(_Value(score, normalize, bias, meant, error))
    accepted = [value for value in tried if value.error < TOLERANCE]
    if not accepted:
        closest = min(tried, key=lambda value: value.error)
        raise UnsupportedError(
            "routing weights that are no scaled softmax or sigmoid of the router's logits",
            where=where,
            detail=_foreign(logits, chosen, weights)
            or f"the closest, {closest.score} (normalised: {closest.normalize}), is off by {closest.error:.1e}",
        )
    rejected = min((value for value in tried if value not in accepted), key=lambda value: value.error, default=None)
    return accepted, rejected


def _scores(logits: Tensor, score: Score) -> Tensor:
    return logits.softmax(-1) if score == "softmax" else logits.sigmoid()


def _match(weights: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the factor that brings `expected` closest, and the error that is left."""
    scale = float((weights * expected).sum() / expected.square().sum().clamp_min(1e-300))
    size = weights.abs().amax(1)
    return scale, float(((weights - scale * expected).abs().amax(1) / size).max())


def _foreign(logits: Tensor, chosen: Tensor, weights: Tensor) -> str:
    """Return the name of a known function that is none of ours, for the message."""
    for name, function in FOREIGN_SCORES.items():
        plain = function(logits) * chosen
        for kind, expected in (("", plain), (", normalised", plain / plain.sum(1, keepdim=True))):
            if _match(weights, expected.nan_to_num())[1] < TOLERANCE:
                return f"the weights are {name}{kind}" if name != "one" else "all chosen experts have equal weights"
    return ""


# ------------------------------------------------------------------------------------------------------- choice


def _choice(
    logits: Tensor,
    chosen: Tensor,
    value: _Value,
    vectors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    where: str,
) -> tuple[_Choice, str]:
    """Return the simplest criterion that chooses what was chosen, for every token; and how the best other one fails."""
    best: _Choice | None = None
    fewest, missed_by = len(logits) + 1, ""
    for choice in _choices(logits.shape[1], value, vectors, config):
        criterion = _scores(logits, value.score) if choice.on_scores else logits
        if choice.selection_bias is not None:
            criterion = criterion + vectors[choice.selection_bias]
        wrong = _disagreements(criterion, chosen, choice)
        if wrong == 0 and best is None:
            best = choice
        elif 0 < wrong < fewest:
            bias = "" if choice.selection_bias is None else f" + {choice.selection_bias}"
            groups = f", best {choice.top_groups} of {choice.groups} groups by {choice.group_score}"
            missed_by = f"{'scores' if choice.on_scores else 'logits'}{bias}{groups if choice.groups > 1 else ''}"
            fewest = wrong
        if best is not None and missed_by:
            break
    if best is None:
        raise UnsupportedError(
            "a choice of experts by another criterion than scores, selection bias and groups",
            where=where,
            detail=f"the closest criterion ({missed_by}) chooses other experts for {fewest} of {len(logits)} tokens",
        )
    return (
        best,
        f"{missed_by} differs for {fewest} of {len(logits)} tokens" if missed_by else "no other criterion tried",
    )


def _choices(
    num_experts: int, value: _Value, vectors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Iterator[_Choice]:
    # Scores keep the order of logits: without bias or groups both say the same, and scoring first is said.
    # Softmax of the chosen logits alone is the normalised softmax; other weights need all scores first.
    orders = (True, False) if value.normalize or value.score == "sigmoid" else (True,)
    numbers = numbers_of(config)
    divisors = [groups for groups in range(2, num_experts + 1) if num_experts % groups == 0]
    divisors.sort(key=lambda groups: (groups not in numbers, groups))
    for grouped in (False, True):
        for vector, on_scores in itertools.product((None, *vectors), orders):
            if not grouped:
                yield _Choice(on_scores, vector, 1, 1, "top2_sum")
                continue
            for groups in divisors:
                kept = sorted(range(1, groups), key=lambda count: (count not in numbers, count))
                for top_groups, by in itertools.product(kept, ("max", "top2_sum")):
                    if by == "max":
                        yield _Choice(on_scores, vector, groups, top_groups, "max")
                    elif num_experts // groups >= 2:
                        yield _Choice(on_scores, vector, groups, top_groups, "top2_sum")


def _disagreements(criterion: Tensor, chosen: Tensor, choice: _Choice) -> int:
    """Return the tokens that the criterion sends elsewhere, those at a tie not counted."""
    tied = torch.zeros(len(criterion), dtype=torch.bool)
    if choice.groups > 1:
        grouped = criterion.unflatten(1, (choice.groups, -1))
        judged = grouped.amax(2) if choice.group_score == "max" else grouped.topk(2, 2).values.sum(2)
        tied = _tied(judged, choice.top_groups)
        kept = torch.zeros_like(judged, dtype=torch.bool).scatter(1, judged.topk(choice.top_groups, 1).indices, True)
        criterion = grouped.masked_fill(~kept[:, :, None], -torch.inf).flatten(1)
    top_k = int(chosen.sum(1)[0])
    picked = torch.zeros_like(chosen).scatter(1, criterion.topk(top_k, 1).indices, True)
    return int(((picked != chosen).any(1) & ~tied & ~_tied(criterion, top_k)).sum())


def _tied(values: Tensor, count: int) -> Tensor:
    """Return bool [N]: whether the last taken value and the first left are too close to tell."""
    if count >= values.shape[1]:
        return torch.zeros(len(values), dtype=torch.bool)
    ordered = values.topk(count + 1, 1).values
    return ordered[:, -2] - ordered[:, -1] < TIED * values.abs().nan_to_num(0, 0, 0).amax(1)
