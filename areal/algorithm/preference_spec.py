"""What can be learnt from pairs: the names of preference losses with formula, source and defaults, and one validated
choice. Torch-free; configurations and docs are made from it. What they compute is in `areal.algorithm.preference`.

Notation: c = l(chosen) - l_ref(chosen), r = l(rejected) - l_ref(rejected) with l the log-probability of the whole
answer, or its mean per token; d = c - r; s = sigmoid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from areal.api import ConfigError
from areal.utils.suggest import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One named loss."""

    formula: str
    source: str
    beta: float = 0.1
    """Default inverse temperature."""
    label_smoothing: float | None = None
    """Default chance that a label is swapped; None: the loss does not know of one."""
    margin: float | None = None
    """Default reward difference that is asked for beyond a preference; None: the loss does not know of one."""
    length_normalised: bool = False
    """Whether log-probabilities are means over the answer's tokens unless said otherwise."""
    uses_reference: bool = True
    """Without one, l_ref is 0."""


PREFERENCES: Final[dict[str, Preference]] = {
    "apo_down": Preference(formula="s(beta c) + 1 - s(beta d)", source="APO, arXiv 2408.06266"),
    "apo_zero": Preference(formula="1 - s(beta c) + s(beta r)", source="APO, arXiv 2408.06266"),
    "cdpo": Preference(
        formula="-(1 - e) log s(beta d - m) - e log s(m - beta d)",
        source="conservative DPO, arXiv 2305.18290 (section on noisy labels)",
        label_smoothing=0.1,
        margin=0.0,
    ),
    "dpo": Preference(formula="-log s(beta d - m)", source="DPO, arXiv 2305.18290", margin=0.0),
    "hinge": Preference(formula="max(0, 1 - beta d)", source="SLiC, arXiv 2305.10425"),
    "ipo": Preference(formula="(d - 1 / (2 beta))^2", source="IPO, arXiv 2310.12036", length_normalised=True),
    "nca": Preference(
        formula="-log s(beta c) - 1/2 log s(-beta c) - 1/2 log s(-beta r)", source="NCA, arXiv 2402.05369"
    ),
    "robust": Preference(
        formula="(-(1 - e) log s(beta d) + e log s(-beta d)) / (1 - 2 e)",
        source="robust DPO, arXiv 2403.00409",
        label_smoothing=0.1,
    ),
    "simpo": Preference(
        formula="-log s(beta d - m), l_ref = 0",
        source="SimPO, arXiv 2405.14734",
        beta=2.0,
        margin=1.0,
        length_normalised=True,
        uses_reference=False,
    ),
    "sppo": Preference(formula="(c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2", source="SPPO, arXiv 2405.00675"),
}
"""Sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceSpec:
    """One loss with its parameters; what is None takes the loss's own default.

    Example: `PreferenceSpec(loss="ipo", beta=0.2).resolved().length_normalised` is True.
    """

    loss: str = "dpo"
    beta: float | None = None
    label_smoothing: float | None = None
    margin: float | None = None
    length_normalised: bool | None = None
    likelihood_coef: float = 0.0
    """Weight of -(mean log-probability per token of the preferred answer), added to the loss of each pair; keeps the
    preferred answers from becoming unlikely (arXiv 2404.19733)."""

    def __post_init__(self) -> None:
        """Refuse unknown losses, settings a loss has no use for, and values without meaning."""
        if self.loss not in PREFERENCES:
            hint = did_you_mean(self.loss, PREFERENCES)
            raise ConfigError(
                f"unknown preference loss {self.loss!r}: {f'{hint} ' if hint else ''}known losses are "
                f"{', '.join(PREFERENCES)}"
            )
        known = PREFERENCES[self.loss]
        for name in ("label_smoothing", "margin"):
            if getattr(self, name) is not None and getattr(known, name) is None:
                users = [other for other, entry in PREFERENCES.items() if getattr(entry, name) is not None]
                raise ConfigError(
                    f"preference loss: {name} has no effect with {self.loss!r}; use one of {', '.join(users)}"
                )
        numbers = {name: getattr(self, name) for name in ("beta", "label_smoothing", "margin", "likelihood_coef")}
        for name, value in numbers.items():
            if value is not None and (not math.isfinite(value) or value < 0):
                raise ConfigError(f"preference loss: {name} is {value}, expected a finite number >= 0")
        if self.beta == 0:
            raise ConfigError("preference loss: beta is 0, expected > 0")
        if self.label_smoothing is not None and self.label_smoothing >= 0.5:
            raise ConfigError(
                f"preference loss: label_smoothing is {self.label_smoothing}, expected 0 .. 0.5 (excluded)"
            )

    def resolved(self) -> PreferenceSpec:
        """The same with nothing left open except what the loss does not know of."""
        known = PREFERENCES[self.loss]
        names = ("beta", "label_smoothing", "margin", "length_normalised")
        return replace(self, **{name: getattr(known, name) for name in names if getattr(self, name) is None})

    @property
    def uses_reference(self) -> bool:
        """Whether log-probabilities of a reference model are subtracted."""
        return PREFERENCES[self.loss].uses_reference
