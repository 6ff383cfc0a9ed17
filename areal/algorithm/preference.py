"""Learning from pairs: losses on policies (DPO and its relatives) and on scores (Bradley-Terry).

Notation: c = l(chosen) - l_ref(chosen), r = l(rejected) - l_ref(rejected) with l the log-probability of the whole
answer, or its mean per token; d = c - r; s = sigmoid; e chance of a swapped label; m margin. Log-probabilities are
summed in float64: a difference of sums over thousands of tokens loses its sign in float32. Importing this module does
not import torch; configurations and docs are made from its table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from areal.algorithm.blocks import check_fields
from areal.algorithm.tokens import check_shape, on_mask
from areal.api import Config, ConfigError, DataError, EngineError, LossOutput, PairedBatch, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from areal.api import PaddedBatch


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(Config):
    """The loss over pairs. What is null takes the default of the loss (`areal list preferences`).

    Example: `PreferenceConfig(loss="ipo", beta=0.2).resolved().length_normalised` is True.
    """

    loss: Literal["apo_down", "apo_zero", "cdpo", "dpo", "hinge", "ipo", "nca", "robust", "simpo", "sppo"] = "dpo"
    """Name of the loss; `areal list preferences` shows them with formulas and defaults."""
    beta: float | None = number(None, above=0)
    """Inverse temperature, > 0: how many nats of log-ratio make one unit of reward. Larger stays nearer the reference
    for all losses but simpo."""
    label_smoothing: float | None = number(None, at_least=0, below=0.5)
    """cdpo and robust: the chance that a label is swapped, 0 .. 0.5 (excluded)."""
    margin: float | None = number(None, at_least=0)
    """cdpo, dpo and simpo: difference of rewards that is asked for beyond the preference itself."""
    length_normalised: bool | None = None
    """Mean (true) or sum (false) of an answer's log-probabilities over its tokens. null: mean for ipo and simpo, sum
    for the others."""
    likelihood_coef: float = number(0.0, at_least=0)
    """Weight of the negative log-likelihood per token of the preferred answers, added to the loss; keeps them from
    becoming less likely while their lead grows."""

    def __post_init__(self) -> None:
        """Refuse settings a loss has no use for, and values without meaning."""
        check_fields(self)
        known = PREFERENCES[self.loss]
        for name in ("label_smoothing", "margin"):
            if getattr(self, name) is not None and getattr(known, name) is None:
                users = [other for other, entry in PREFERENCES.items() if getattr(entry, name) is not None]
                raise ConfigError(
                    f"{name} has no effect with preference loss {self.loss!r}; it belongs to {', '.join(users)}"
                )

    def resolved(self) -> PreferenceConfig:
        """Return the same with nothing left open except what the loss does not use."""
        known = PREFERENCES[self.loss]
        names = ("beta", "label_smoothing", "margin", "length_normalised")
        return replace(self, **{name: getattr(known, name) for name in names if getattr(self, name) is None})

    @property
    def uses_reference(self) -> bool:
        """Whether log-probabilities of a reference model are subtracted."""
        return PREFERENCES[self.loss].uses_reference


def _dpo(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    return -_log_sigmoid(_beta(settings) * (chosen - rejected) - (settings.margin or 0.0))


def _cdpo(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    swapped, margin = settings.label_smoothing or 0.0, _beta(settings) * (chosen - rejected) - (settings.margin or 0.0)
    return -(1.0 - swapped) * _log_sigmoid(margin) - swapped * _log_sigmoid(-margin)


def _robust(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    swapped, margin = settings.label_smoothing or 0.0, _beta(settings) * (chosen - rejected)
    return (-(1.0 - swapped) * _log_sigmoid(margin) + swapped * _log_sigmoid(-margin)) / (1.0 - 2.0 * swapped)


def _hinge(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (1.0 - _beta(settings) * (chosen - rejected)).relu()


def _ipo(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (chosen - rejected - 0.5 / _beta(settings)) ** 2


def _sppo(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (chosen - 0.5 / _beta(settings)) ** 2 + (rejected + 0.5 / _beta(settings)) ** 2


def _nca(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    c, r = _beta(settings) * chosen, _beta(settings) * rejected
    return -_log_sigmoid(c) - 0.5 * _log_sigmoid(-c) - 0.5 * _log_sigmoid(-r)


def _apo_zero(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    return 1.0 - (_beta(settings) * chosen).sigmoid() + (_beta(settings) * rejected).sigmoid()


def _apo_down(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    return (_beta(settings) * chosen).sigmoid() + 1.0 - (_beta(settings) * (chosen - rejected)).sigmoid()


def _beta(settings: PreferenceConfig) -> float:
    assert settings.beta is not None, "resolved settings have a beta"
    return settings.beta


def _log_sigmoid(values: Tensor) -> Tensor:
    from torch.nn.functional import logsigmoid

    return logsigmoid(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One named loss."""

    formula: str
    source: str
    pair_losses: Callable[[PreferenceConfig, Tensor, Tensor], Tensor]
    """Loss of each pair [P], from c and r [P] and resolved settings."""
    beta: float = 0.1
    """Default inverse temperature."""
    label_smoothing: float | None = None
    """Default chance that a label is swapped; None: not used."""
    margin: float | None = None
    """Default reward difference that is asked for beyond a preference; None: not used."""
    length_normalised: bool = False
    """Whether log-probabilities are means over the answer's tokens unless said otherwise."""
    uses_reference: bool = True
    """Without one, l_ref is 0."""


PREFERENCES: Final[dict[str, Preference]] = {
    "apo_down": Preference(pair_losses=_apo_down, formula="s(beta c) + 1 - s(beta d)", source="APO, arXiv 2408.06266"),
    "apo_zero": Preference(pair_losses=_apo_zero, formula="1 - s(beta c) + s(beta r)", source="APO, arXiv 2408.06266"),
    "cdpo": Preference(
        pair_losses=_cdpo,
        formula="-(1 - e) log s(beta d - m) - e log s(m - beta d)",
        source="conservative DPO, arXiv 2305.18290 (section on noisy labels)",
        label_smoothing=0.1,
        margin=0.0,
    ),
    "dpo": Preference(pair_losses=_dpo, formula="-log s(beta d - m)", source="DPO, arXiv 2305.18290", margin=0.0),
    "hinge": Preference(pair_losses=_hinge, formula="max(0, 1 - beta d)", source="SLiC, arXiv 2305.10425"),
    "ipo": Preference(
        pair_losses=_ipo, formula="(d - 1 / (2 beta))^2", source="IPO, arXiv 2310.12036", length_normalised=True
    ),
    "nca": Preference(
        pair_losses=_nca,
        formula="-log s(beta c) - 1/2 log s(-beta c) - 1/2 log s(-beta r)",
        source="NCA, arXiv 2402.05369",
    ),
    "robust": Preference(
        pair_losses=_robust,
        formula="(-(1 - e) log s(beta d) + e log s(-beta d)) / (1 - 2 e)",
        source="robust DPO, arXiv 2403.00409",
        label_smoothing=0.1,
    ),
    "simpo": Preference(
        pair_losses=_dpo,
        formula="-log s(beta d - m), l_ref = 0",
        source="SimPO, arXiv 2405.14734",
        beta=2.0,
        margin=1.0,
        length_normalised=True,
        uses_reference=False,
    ),
    "sppo": Preference(
        pair_losses=_sppo, formula="(c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2", source="SPPO, arXiv 2405.00675"
    ),
}
"""Sorted by name."""


def pair_losses(settings: PreferenceConfig, chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return the loss of each pair, [P].

    chosen, rejected: log-ratios of policy and reference [P] (log-probabilities of the policy where the loss uses no
    reference), of whole answers or means per token. Differentiable; finite for any finite input.
    """
    return PREFERENCES[settings.loss].pair_losses(settings.resolved(), chosen, rejected)


def bradley_terry(chosen: Tensor, rejected: Tensor, *, margin: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(s_chosen - s_rejected - margin) per pair of reward-model scores."""
    return -_log_sigmoid(chosen - rejected - margin)


def sequence_logp(logp: Tensor, mask: Tensor) -> Tensor:
    """Sum of logp over the mask per row, float64 [S]."""
    return on_mask(logp, mask).double().sum(dim=1)


def preference_loss(
    logp: Tensor, *, batch: PaddedBatch, settings: PreferenceConfig, num_pairs: float | None = None
) -> LossOutput:
    """Mean preference loss over the pairs of the step.

    logp: [S, L] with gradient. batch: a `PairedBatch`, loss_mask 1 on the tokens of the answers, with `reference` when
    the loss uses one. num_pairs: of the whole step; None takes these pairs for the whole step.

    Metrics, means over the pairs of the step: accuracy (preferred answer ahead; a tie counts half), margin,
    reward_chosen, reward_rejected (beta times log-ratio), logp_chosen, logp_rejected (of the whole answers).
    """
    pairs = _pairs(batch)
    check_shape("loss_mask", pairs.loss_mask, logp.shape)
    settings = settings.resolved()
    totals = sequence_logp(logp, pairs.loss_mask)
    lengths = (pairs.loss_mask > 0).sum(dim=1).clamp(min=1)
    ratios = totals - _reference(pairs) if settings.uses_reference else totals
    if settings.length_normalised:
        ratios = ratios / lengths
    chosen, rejected = ratios[::2], ratios[1::2]
    losses = pair_losses(settings, chosen, rejected)
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


MARK: Final = 0
"""Token after the last of a sequence that is scored; any id the vocabulary has, since the model never attends to it.

A critic's value at token t is that of the state in which t was chosen (`areal.api.records`), so the state that has seen
everything belongs to one token after the last.
"""


def marked(tokens: Sequence[int], mask: Sequence[int]) -> tuple[list[int], list[int]]:
    """Tokens and loss mask with the mark at the end, where the score will be."""
    return [*tokens, MARK], [*mask, 1]


def final_scores(values: Tensor, lengths: Tensor) -> Tensor:
    """Values at the marks: [S, L] and int64 [S], the mark included, to [S]. Differentiable."""
    return values.gather(1, (lengths - 1)[:, None]).squeeze(1)
