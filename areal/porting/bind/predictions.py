"""Puts expressions to the test: configs that were not seen while fitting must be predicted."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.models.blocks.mlp import ACTIVATION_NAMES
from areal.models.config_fields import HARMLESS_FIELDS
from areal.porting.bind.arithmetic import is_number
from areal.porting.bind.expressions import ROTARY_FIELD, fields_of, look_up, same, walk
from areal.porting.bind.reading import branches
from areal.porting.bind.slots import LayerValues
from areal.porting.bind.variations import changed, joint
from areal.porting.family import Constant, Field, PerLayer, Power, Product, Sum, WhenEqual, WhenNull
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.porting.bind.binder import Binder
    from areal.porting.bind.observing import Observation
    from areal.porting.family import Expression

    Choices = Mapping[str, Sequence[Mapping[str, Any]]]


NUM_JOINT: Final = 10
NUM_AFRESH: Final = 8
"""Configs that must be predicted after expressions were fitted anew."""


@dataclass(frozen=True)
class Predictions:
    """Looks at further configs on behalf of a binder."""

    binder: Binder

    def accept_late(self) -> None:
        """Accept what no expression explained when it was seen, if it follows now that other fields were varied,
        too."""
        binder = self.binder
        known = [dict(each.changes) for each in binder.observations]
        for outcome in binder.outcomes:
            changes = dict(outcome.changes)
            if outcome.kind != "proven" or changes in known or binder.restricted.keys() & changes.keys():
                continue
            if ROTARY_FIELD not in changes and binder.accept(outcome):
                binder.choices.setdefault(next(iter(changes)), []).append(changes)
                binder.settle()

    def probe_inactive(self) -> None:
        """Change fields that do nothing in the base config beside every text that may choose another computation:
        sizes of groups matter only where groups are chosen."""
        binder = self.binder
        idle = {
            name: dict(outcome.changes)
            for outcome in binder.outcomes
            if outcome.kind == "no_effect" and len(outcome.changes) == 1
            for name, value in outcome.changes.items()
            # Counts of nothing are accepted where they are not used, and make no sense where they are.
            if name not in HARMLESS_FIELDS
            and (isinstance(value, bool) or (isinstance(value, int | float) and value > 0))
        }
        texts = [
            changes
            for name in sorted(binder.choices)
            for changes in binder.choices[name]
            if len(changes) == 1 and isinstance(changes[name], str)
            # Some ways to score are called as activations are; a field of an activation has one to begin with.
            if look_up(binder.observations[0].config, name) not in ACTIVATION_NAMES
        ]
        for text, (name, change) in itertools.product(texts, sorted(idle.items())):
            if not binder.restricted.keys() & {*text, name}:
                self._probe_with({**text, **change})

    def probe_neighbours(self) -> None:
        """Change other fields beside a value that leads to another number, which may be computed from them; likewise
        two fields that decide the same slot, and lists over layers. Linear biases get uneven numbers of heads."""
        seen: list[dict[str, Any]] = []
        for _ in range(2):  # what is found may lead to further branches
            looks = [*branch_changes(self.binder.expressions, self.binder.choices, self.binder.observations[0].config)]
            looks += uneven_heads(self.binder.expressions, self.binder.observations)
            looks += joined_changes(self.binder.expressions, self.binder.choices, self.binder.observations[0].config)
            for changes in (changes for changes in looks if changes not in seen):
                seen.append(changes)
                if not self.binder.restricted.keys() & changes.keys():
                    self._probe_with(changes)

    def _probe_with(self, changes: dict[str, Any]) -> None:
        if self.binder.reader.normal(changed(self.binder.observer.base, changes)) is None:
            return
        outcome = self.binder.observer.observe(changes, self.binder.predict)
        if outcome.kind == "unsupported":
            if not outcome.loud:
                self._blame(changes)
        elif outcome.kind != "refused" and self.binder.accept(outcome) and outcome.inferred:
            self.binder.settle()

    def probe_joint(self) -> None:
        """Predict configs that were not seen while fitting, until enough of them are right."""
        generator = random.Random(20)
        pinned: list[dict[str, Any]] = [
            {name: value} for name, value in branches(self.binder.expressions) for _ in range(2)
        ]
        right, enough = 0, NUM_JOINT + len(pinned)
        for _ in range(6 * enough):
            if right >= enough:
                return
            changes = self._joint_changes(generator, pinned.pop() if pinned else {})
            config = changed(self.binder.observer.base, changes)
            if not changes or self.binder.reader.normal(config) is None:
                continue
            predicted = self._probe_many(changes)
            if predicted is not None:
                # What was fitted anew must predict as well.
                right = right + 1 if predicted else min(right, enough - NUM_AFRESH)
        if any(outcome.inferred for outcome in self.binder.joint_outcomes[-NUM_AFRESH:]):
            raise UnsupportedError(
                "values that depend on several config fields at once",
                where="config",
                detail=f"configs with many changes are not predicted: {sorted(self.binder.joint_outcomes[-1].changes)}",
            )

    def _probe_many(self, changes: dict[str, Any]) -> bool | None:
        """Return whether a config was predicted; false where expressions were fitted anew, None where it says
        nothing."""
        binder = self.binder
        outcome = binder.observer.observe(changes, binder.predict)
        if outcome.kind == "refused":
            return None
        learned = outcome.kind == "proven" and outcome.inferred and self._learn_from_few(changes)
        if learned:
            outcome = binder.observer.observe(changes, binder.predict)
        binder.joint_outcomes.append(outcome)
        if outcome.kind == "unsupported":
            if not outcome.loud:
                self._blame(changes)
        elif binder.accept(outcome):
            if outcome.kind == "proven" and not outcome.inferred:
                return not learned
            binder.settle()
            return False
        return False if learned else None

    def _learn_from_few(self, changes: dict[str, Any]) -> bool:
        """Return whether something was learned from the fewest of the changes that are not predicted either: they say
        better than many what is the cause.

        Example: 9 changes at once were not predicted. Fields are left out one by one while the rest is still not
        predicted; what remains, e.g. {"topk_method": "greedy", "n_group": 2}, is inferred and fitted, and says what the
        9 changes hide.
        """
        binder = self.binder
        few = dict(changes)
        for name in sorted(changes):
            fewer = {key: value for key, value in few.items() if key != name}
            if fewer and binder.reader.normal(changed(binder.observer.base, fewer)) is not None:
                seen = binder.observer.observe(fewer, binder.predict, may_infer=False)
                few = fewer if seen.kind == "unsupported" else few
        found = binder.observer.observe(few, binder.predict) if len(few) < len(changes) else None
        if found is None or found.kind != "proven" or not binder.accept(found):
            return False
        binder.settle()
        return True

    def _joint_changes(self, generator: random.Random, pinned: Mapping[str, Any]) -> dict[str, Any]:
        """Return random changes that the class accepts. pinned: values to be among them, where these were seen to
        work."""
        usable = {
            name: values
            for name, values in self.binder.choices.items()
            if name not in self.binder.restricted and values
        }
        chosen = {
            name: [each for each in usable.get(name, ()) if same(each[name], value)] for name, value in pinned.items()
        }
        usable |= {name: changes for name, changes in chosen.items() if changes}
        sure = pinned.keys() & usable.keys()
        for _ in range(20):
            changes = joint(
                usable,
                self.binder.observer.base,
                generator,
                share=0.35,
                depth_field=self.binder.reader.depth_field,
                sure=sure,
            )
            if self.binder.reader.normal(changed(self.binder.observer.base, changes)) is not None:
                return changes
        return {}

    def _blame(self, changes: Mapping[str, Any]) -> None:
        """Find the smallest part of changes that is not supported together, and restrict one field of it."""
        culprits = dict(changes)
        for name in sorted(changes):
            fewer = {key: value for key, value in culprits.items() if key != name}
            accepted = fewer and self.binder.reader.normal(changed(self.binder.observer.base, fewer)) is not None
            if accepted and self.binder.observer.observe(fewer, self.binder.predict).kind == "unsupported":
                culprits = fewer
        if len(culprits) == 1 and ROTARY_FIELD not in culprits:
            # One value of one field does something of its own: the others that were proven stay.
            self.binder.narrow(next(iter(culprits)), f"{next(iter(culprits.values()))!r} computes something else")
            return
        # What else there is can be fixed to proven values; rotary positions cannot.
        kept = {name for name in culprits if name != ROTARY_FIELD} or culprits.keys()
        # Of equals a switch rather than a number, which more configs have other values of; then by name, since reports
        # must not depend on the order of a set.
        reads = {name: sum(name in fields_of(each) for each in self.binder.expressions.values()) for name in kept}
        name = min(kept, key=lambda name: (reads[name], not isinstance(culprits[name], bool), name))
        self.binder.restrict(
            name, f"not supported together with {', '.join(sorted(culprits.keys() - {name})) or 'others'}"
        )


# ------------------------------------------------------------------------------------------------------------- branches

# Configs that look harder at values which only some configs have. A number that was seen behind one value of a switch
# only ("4 * 64 where n_inner is null") may be made of any field. So every size is varied on that side of the switch,
# too. Linear biases are looked at with a number of heads whose slopes are no powers of two: slopes that a model rounds
# show there only.


ALIBI: Final = "layer.attention.alibi"
HEADS: Final = "layer.attention.num_heads"
MOST_VALUES: Final = 3
"""Of one field that are looked at beside those of another."""

UNEVEN_HEADS: Final = (16, 12, 6, 3)
"""Numbers of heads whose slopes are no powers of two."""


def branch_changes(
    expressions: Mapping[str, Expression], choices: Choices, base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the changes to look at: the way to a branch together with another value of one field.

    choices: changes of fields that were proven alone; base: the completed base config.

    Example: gpt2 computes its inner size as `4 * n_embd` where n_inner is null, and the base config has a number there.
    The way to the product is {"n_inner": None}; each size of the config is varied beside it, e.g. {"n_inner": None,
    "n_embd": 96}, since the 256 that was seen for n_embd 64 could as well be made of another field.
    """
    sizes: dict[str, Mapping[str, Any]] = {}
    for name in sorted({name for expression in expressions.values() for name in fields_of(expression)}):
        numbers = [changes for changes in choices.get(name, ()) if is_number(changes[name])]
        if numbers and is_number(look_up(base, name)):
            sizes[name] = numbers[0]
    ways: list[dict[str, Any]] = []
    for slot in sorted(expressions):
        ways += [way for way in _ways_to_numbers(expressions[slot], choices, base, {}) if way and way not in ways]
    for way in ways:
        yield from ({**changes, **way} for name, changes in sizes.items() if name not in way)


def uneven_heads(
    expressions: Mapping[str, Expression], observations: Sequence[Observation]
) -> Iterator[dict[str, Any]]:
    """Yield the changes of the first config with linear biases, with other numbers of heads."""
    heads = expressions.get(HEADS)
    if not isinstance(heads, Field):
        return
    for each in observations:
        biases = each.values.get(ALIBI)
        if isinstance(biases, LayerValues) and any(value is True for value in biases):
            yield from ({**each.changes, heads.name: number} for number in UNEVEN_HEADS)
            return


def joined_changes(
    expressions: Mapping[str, Expression], choices: Choices, base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the changes to look at: other values of two fields that decide the same slot, and of fields that are read
    where layers differ together with other lists over layers. Behind another value one list only was seen, whose
    pattern has many names, and the other conditions with one value only."""
    lists = [name for name in sorted(choices) if isinstance(look_up(base, name), list)]
    seen: list[dict[str, Any]] = []
    for expression in (expressions[slot] for slot in sorted(expressions)):
        parts = list(walk(expression))
        if not any(isinstance(part, PerLayer | WhenEqual | WhenNull) for part in parts):
            continue
        names = sorted(fields_of(expression))
        beside = lists if any(isinstance(part, PerLayer) for part in parts) else []
        pairs = [*itertools.combinations(names, 2), *itertools.product(names, sorted(set(beside) - set(names)))]
        for first, second in pairs:
            for one, other in itertools.product(_values(choices, first), _values(choices, second)):
                both = {**one, **other}
                if not one.keys() & other.keys() and both not in seen:
                    seen.append(both)
                    yield both


def _values(choices: Choices, name: str) -> list[dict[str, Any]]:
    """Return some changes of a field that were proven; resized lists are no changes of another field."""
    return [dict(each) for each in choices.get(name, ()) if len(each) == 1][:MOST_VALUES]


def _ways_to_numbers(
    expression: Expression, choices: Choices, base: Mapping[str, Any], way: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the values of fields, other than the base's, that lead to a number that is computed."""
    match expression:
        case Constant(value) if is_number(value):
            yield way
        case Product() | Sum() | Power():
            yield way
        case WhenNull(name, otherwise):
            if look_up(base, name) is None:
                yield from _ways_to_numbers(otherwise, choices, base, way)
            else:
                yield from _ways_to_numbers(otherwise, choices, base, {**way, name: None})
        case WhenEqual(name, value, then, otherwise):
            now = same(look_up(base, name), value)
            other = (
                value
                if not now
                else next((each[name] for each in choices.get(name, ()) if not same(each[name], value)), value)
            )
            yield from _ways_to_numbers(then, choices, base, way if now else {**way, name: other})
            if not now or not same(other, value):
                yield from _ways_to_numbers(otherwise, choices, base, {**way, name: other} if now else way)
