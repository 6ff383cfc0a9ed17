"""Learning from pairs: losses on policies (DPO and its relatives) and on scores (Bradley-Terry).

The per-pair functions take one number per answer, [P]; `preference_loss` and `bradley_terry_loss` make those numbers
from the rows of a `PairedBatch`. Log-probabilities are summed in float64: a difference of sums over thousands of tokens
loses its sign in float32. Formulas and defaults: `areal.algorithm.preference_spec`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch.nn.functional import logsigmoid

from areal.algorithm.tokens import check_shape, on_mask
from areal.api import DataError, EngineError, LossOutput, PairedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from areal.algorithm.preference_spec import PreferenceSpec
    from areal.api import PaddedBatch


def pair_losses(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    """The loss of each pair, [P].

    chosen, rejected: log-ratios of policy and reference [P] (log-probabilities of the policy where the loss uses no
    reference), of whole answers or means per token. Differentiable; finite for any finite input.
    """
    return _PAIR_LOSSES[spec.loss](spec.resolved(), chosen, rejected)


def bradley_terry(chosen: Tensor, rejected: Tensor, *, margin: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(s_chosen - s_rejected - margin) per pair of reward-model scores."""
    return -logsigmoid(chosen - rejected - margin)


def sequence_logp(logp: Tensor, mask: Tensor) -> Tensor:
    """Sum of logp over the mask per row, float64 [S]."""
    return on_mask(logp, mask).double().sum(dim=1)


def preference_loss(
    logp: Tensor, *, batch: PaddedBatch, spec: PreferenceSpec, num_pairs: float | None = None
) -> LossOutput:
    """Mean preference loss over the pairs of the step.

    logp: [S, L] with gradient. batch: a `PairedBatch`, loss_mask 1 on the tokens of the answers, with `reference` when
    the loss uses one. num_pairs: of the whole step; None takes these pairs for the whole step.

    Metrics, means over the pairs of the step: accuracy (preferred answer ahead; a tie counts half), margin,
    reward_chosen, reward_rejected (beta times log-ratio), logp_chosen, logp_rejected (of the whole answers).
    """
    pairs = _pairs(batch)
    check_shape("loss_mask", pairs.loss_mask, logp.shape)
    settings = spec.resolved()
    totals = sequence_logp(logp, pairs.loss_mask)
    lengths = (pairs.loss_mask > 0).sum(dim=1).clamp(min=1)
    ratios = totals - _reference(pairs) if spec.uses_reference else totals
    if settings.length_normalised:
        ratios = ratios / lengths
    chosen, rejected = ratios[::2], ratios[1::2]
    losses = pair_losses(spec, chosen, rejected)
    if settings.likelihood_coef:
        losses = losses - settings.likelihood_coef * (totals / lengths)[::2]
    denominator = max(float(chosen.shape[0]) if num_pairs is None else num_pairs, 1.0)
    beta = settings.beta or 0.0
    values = {
        "accuracy": _preferred(chosen, rejected),
        "logp_chosen": totals[::2],
        "logp_rejected": totals[1::2],
        "margin": beta * (chosen - rejected),
        "reward_chosen": beta * chosen,
        "reward_rejected": beta * rejected,
    }
    return _mean_over_pairs(losses, values, denominator, dtype=logp.dtype)


def bradley_terry_loss(
    scores: Tensor,
    *,
    batch: PaddedBatch,
    use_margins: bool = False,
    center_coef: float = 0.0,
    num_pairs: float | None = None,
) -> LossOutput:
    """Mean Bradley-Terry loss over the pairs of the step.

    scores: [S], one per row of a `PairedBatch`, with gradient. use_margins: ask for differences of at least
    `batch.margins` (arXiv 2307.09288). center_coef: weight of (s_chosen + s_rejected)^2, which keeps scores around 0,
    where they would otherwise be free to drift (arXiv 2312.09244). num_pairs: as for `preference_loss`.

    Metrics, means over the pairs of the step: accuracy (a tie counts half), margin, score_chosen, score_rejected.
    """
    pairs = _pairs(batch)
    check_shape("scores", scores, pairs.rewards.shape)
    wide = scores.double()
    chosen, rejected = wide[::2], wide[1::2]
    margin: Tensor | float = 0.0
    if use_margins:
        if pairs.margins is None:
            raise DataError("bradley_terry: use_margins is set, but the rows have no column 'margin'")
        margin = pairs.margins[::2].double()
    losses = bradley_terry(chosen, rejected, margin=margin)
    if center_coef:
        losses = losses + center_coef * (chosen + rejected) ** 2
    denominator = max(float(chosen.shape[0]) if num_pairs is None else num_pairs, 1.0)
    values = {
        "accuracy": _preferred(chosen, rejected),
        "margin": chosen - rejected,
        "score_chosen": chosen,
        "score_rejected": rejected,
    }
    return _mean_over_pairs(losses, values, denominator, dtype=scores.dtype)


def _pairs(batch: PaddedBatch) -> PairedBatch:
    if not isinstance(batch, PairedBatch):
        raise EngineError(
            f"a loss over pairs got a {type(batch).__name__}: the engine that divided the batch must keep its type "
            f"(areal.algorithm.packing.select does)"
        )
    return batch


def _reference(pairs: PairedBatch) -> Tensor:
    if pairs.reference is None:
        raise DataError("preference loss: the batch has no log-probabilities of the reference model")
    return pairs.reference.double().detach()


def _preferred(chosen: Tensor, rejected: Tensor) -> Tensor:
    """1 where the preferred answer is ahead, 1/2 where neither is."""
    return ((chosen - rejected).detach().sign() + 1.0) / 2.0


def _mean_over_pairs(
    losses: Tensor, values: dict[str, Tensor], denominator: float, *, dtype: torch.dtype
) -> LossOutput:
    metrics = {name: value.detach().sum() / denominator for name, value in values.items()}
    return LossOutput(loss=(losses.sum() / denominator).to(dtype), metrics=metrics)


def _dpo(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    return -logsigmoid(_beta(spec) * (chosen - rejected) - (spec.margin or 0.0))


def _cdpo(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    swapped, margin = spec.label_smoothing or 0.0, _beta(spec) * (chosen - rejected) - (spec.margin or 0.0)
    return -(1.0 - swapped) * logsigmoid(margin) - swapped * logsigmoid(-margin)


def _robust(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    swapped, margin = spec.label_smoothing or 0.0, _beta(spec) * (chosen - rejected)
    return (-(1.0 - swapped) * logsigmoid(margin) + swapped * logsigmoid(-margin)) / (1.0 - 2.0 * swapped)


def _hinge(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (1.0 - _beta(spec) * (chosen - rejected)).relu()


def _ipo(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (chosen - rejected - 0.5 / _beta(spec)) ** 2


def _sppo(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (chosen - 0.5 / _beta(spec)) ** 2 + (rejected + 0.5 / _beta(spec)) ** 2


def _nca(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    c, r = _beta(spec) * chosen, _beta(spec) * rejected
    return -logsigmoid(c) - 0.5 * logsigmoid(-c) - 0.5 * logsigmoid(-r)


def _apo_zero(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    return 1.0 - (_beta(spec) * chosen).sigmoid() + (_beta(spec) * rejected).sigmoid()


def _apo_down(spec: PreferenceSpec, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (_beta(spec) * chosen).sigmoid() + 1.0 - (_beta(spec) * (chosen - rejected)).sigmoid()


def _beta(spec: PreferenceSpec) -> float:
    assert spec.beta is not None, "a resolved spec has a beta"
    return spec.beta


_PAIR_LOSSES: Final[dict[str, Callable[[PreferenceSpec, Tensor, Tensor], Tensor]]] = {
    "apo_down": _apo_down,
    "apo_zero": _apo_zero,
    "cdpo": _cdpo,
    "dpo": _dpo,
    "hinge": _hinge,
    "ipo": _ipo,
    "nca": _nca,
    "robust": _robust,
    "simpo": _dpo,
    "sppo": _sppo,
}
