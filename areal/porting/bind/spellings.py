"""Equal explanations of one config: which of them follows from its fields.

Parity cannot tell apart specs that compute the same. The one that is expected, or nearly, is the likeliest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import EvaluationError, fields_of, look_up, same
from areal.porting.bind.fitting import likeness
from areal.porting.bind.guessing import common_value
from areal.porting.bind.observing import same_value
from areal.porting.bind.slots import ABSENT, ROTARY_SLOT, slots_of
from areal.porting.family import Constant, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from areal.porting.bind.observing import ConfigOutcome, Observation, Observer
    from areal.porting.family import Expression
    from areal.porting.spec import ArchitectureSpec

MOST_SPELLINGS: Final = 6
"""Slots that may differ between an inferred spec and the expected one for other spellings to be tried."""


@dataclass(frozen=True)
class Spellings:
    """Chooses with the expressions that were found so far. predict: the spec of a config by expressions."""

    observer: Observer
    base: Observation
    expressions: Mapping[str, Expression]
    predict: Callable[[Mapping[str, Expression], dict[str, Any]], ArchitectureSpec]

    def likeliest(self, outcome: ConfigOutcome) -> ConfigOutcome:
        """Return the outcome with the slots to believe."""
        return self._unmasked(outcome) if outcome.kind == "no_effect" else self._nearest(outcome)

    def _unmasked(self, outcome: ConfigOutcome) -> ConfigOutcome:
        """Choose among several explanations of logits that are the base config's: its own slots where a single field
        was changed, which then is likely to be idle. Several changes may have made up for each other: there it is what
        was expected, or that with one more slot that reads a changed field. The best two of two groups are the best two
        of all."""
        if sum(not isinstance(value, list | None) for value in outcome.changes.values()) < 2:
            return outcome
        if outcome.expected is not None:
            return replace(outcome, values=outcome.expected)
        for trial in itertools.islice(self._read_once_more(outcome), MOST_SPELLINGS):
            found = self.observer.observe(outcome.changes, partial(self.predict, trial), may_infer=False)
            if found.expected is not None:
                return replace(outcome, values=found.expected)
        return outcome

    def _read_once_more(self, outcome: ConfigOutcome) -> Iterator[dict[str, Expression]]:
        """Yield the expressions, but that one slot is a changed field, the likelier first; nothing where they are
        right."""
        try:
            expected = slots_of(self.predict(self.expressions, outcome.config))
        except EvaluationError:
            return
        if all(same_value(value, expected.get(slot, ABSENT)) for slot, value in outcome.values.items()):
            return
        base = self.base
        pairs = [
            (slot, name)
            for name, changed_to in outcome.changes.items()
            for slot, value in expected.items()
            for was in [look_up(base.config, name)]
            if type(was) in (int, float, bool, str) and type(was) is type(changed_to)
            if slot != ROTARY_SLOT and type(common_value(value)) is type(was) and same(common_value(value), was)
            if name not in fields_of(self.expressions[slot])
        ]
        for slot, name in sorted(pairs, key=lambda pair: (-likeness(*pair), pair)):
            yield {**self.expressions, slot: Field(name)}

    def _nearest(self, outcome: ConfigOutcome) -> ConfigOutcome:
        """Choose among equal spellings of an inferred spec one that differs from what was expected in a single slot:
        choosing all groups of experts is the same as having no groups, but only one of both follows from the fields."""
        if not outcome.inferred or outcome.loud:
            return outcome
        expected = slots_of(self.predict(self.expressions, outcome.config))
        differing = [
            slot for slot, value in outcome.values.items() if not same_value(value, expected.get(slot, ABSENT))
        ]
        for slot in differing if 2 <= len(differing) <= MOST_SPELLINGS else ():
            value = common_value(outcome.values[slot])
            if slot == ROTARY_SLOT or value is ABSENT:
                continue
            trial = {**self.expressions, slot: Constant(value)}
            found = self.observer.observe(outcome.changes, partial(self.predict, trial), may_infer=False)
            if found.kind == "proven":
                return replace(found, inferred=True)
        return outcome
