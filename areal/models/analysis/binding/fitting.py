"""Finds the simplest expression over config fields that explains what was observed of one slot, without exception.

Names of fields mean nothing here but an order among equals: an architecture may call its width what it likes. A field
is a candidate because the slot changed when it was changed.
"""

from __future__ import annotations

import difflib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.models.analysis.binding.arithmetic import arithmetic, is_number
from areal.models.analysis.binding.conditions import atoms, mask
from areal.models.analysis.binding.expressions import (
    EvaluationError,
    complexity,
    evaluate,
    look_up,
    same,
    walk,
)
from areal.models.analysis.binding.slots import ABSENT, LayerValues
from areal.models.analysis.family import (
    All,
    AtLeast,
    AtMost,
    Constant,
    Field,
    Multiple,
    Not,
    PerLayer,
    WhenEqual,
    WhenNull,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from areal.models.analysis.family import Condition, Expression

MOST_CHOICES: Final = 3
"""How deeply choices (WhenEqual, WhenNull, PerLayer) may be nested."""

MOST_DIFFERENT: Final = 3
"""Different values of one slot in the layers of a config; more than these are computed from the layer's number."""

SWITCHES: Final = (None, True, False, 0, 1, -1)
"""Values of a field, besides texts, that may decide between two expressions. Sizes do not decide."""


@dataclass(frozen=True)
class Sample:
    """What a slot was for one config. value: `LayerValues` for slots of layers."""

    config: Mapping[str, Any]
    value: Any
    depth: int
    """Number of layers."""


def fit(
    slot: str, samples: Sequence[Sample], names: Iterable[str], *, most_choices: int = MOST_CHOICES
) -> Expression | None:
    """The simplest expression for all samples, or None. names: fields that may be read (`causes` narrows them).

    Samples of configs that lack the slot's part must be left out.
    """
    assert samples, f"nothing was observed of {slot}"
    ordered = sorted(names, key=lambda name: (-likeness(slot, name), name))
    search = _Search(ordered)
    for choices in range(most_choices + 1):
        found = search.fit(list(samples), choices)
        if found is not None:
            return found
    return None


def explains(expression: Expression, sample: Sample) -> bool:
    """Whether the expression gives the value of the sample; for layers, wherever a layer has one."""
    try:
        if isinstance(sample.value, LayerValues):
            return all(
                value is ABSENT or same(evaluate(expression, sample.config, layer), value)
                for layer, value in enumerate(sample.value)
            )
        return same(evaluate(expression, sample.config), sample.value)
    except (EvaluationError, OverflowError):
        return False


def causes(samples: Sequence[Sample], differences: Mapping[tuple[int, int], Iterable[str]]) -> set[str]:
    """Fields that differ between two samples that were one change apart and have different values.

    differences: for pairs of indices of samples that are one change apart, the fields in which they differ.
    """
    return {
        name
        for (first, second), names in differences.items()
        if not same(samples[first].value, samples[second].value)
        for name in names
    }


def likeness(slot: str, name: str) -> float:
    """How alike the names of a slot and of a field are, from 0 to 1; decides between equals only."""
    last = slot.rpartition(".")[2]
    return difflib.SequenceMatcher(a=last, b=name.rpartition(".")[2]).ratio()


class _Search:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def fit(self, samples: list[Sample], choices: int) -> Expression | None:
        if _most_different(samples) > min(choices + 1, MOST_DIFFERENT):
            return None
        if not any(isinstance(sample.value, LayerValues) for sample in samples):
            return self._scalar(samples, choices)
        collapsed = collapse(samples)
        if collapsed is not None:
            return self._scalar(collapsed, choices)
        found = self._per_layer(samples, choices) if choices else None
        return found or self._choice(samples, choices)

    # -------------------------------------------------------------------------------------------- one value per config

    def _scalar(self, samples: list[Sample], choices: int) -> Expression | None:
        first = samples[0].value
        if all(same(sample.value, first) and type(sample.value) is type(first) for sample in samples):
            return Constant(first)
        for name in self.names:
            if all(same(look_up(sample.config, name), sample.value) for sample in samples):
                return Field(name)
        if all(is_number(sample.value) for sample in samples):
            found = self._arithmetic(samples)
            if found is not None:
                return found
        return self._choice(samples, choices)

    def _arithmetic(self, samples: list[Sample]) -> Expression | None:
        columns = {name: [look_up(sample.config, name) for sample in samples] for name in self.names}
        numbers = {name: values for name, values in columns.items() if all(map(is_number, values))}
        return arithmetic(numbers, [sample.value for sample in samples])

    # ------------------------------------------------------------------------------------------------- choices by field

    def _choice(self, samples: list[Sample], choices: int) -> Expression | None:
        """The simplest split of the samples by the value of one field whose halves can both be explained."""
        if not choices:
            return None
        best: Expression | None = None
        for name in self.names:
            for found in self._splits(name, samples, choices):
                best = _simpler(best, found)
        return best

    def _splits(self, name: str, samples: list[Sample], choices: int) -> Iterator[Expression]:
        values: list[Any] = []
        for sample in samples:
            value = look_up(sample.config, name)
            if _is_switch(value) and not any(same(value, other) for other in values):
                values.append(value)
        if len(values) == 2 and {True, False} == set(values):
            values = [True]
        for value in values:
            inside = [sample for sample in samples if same(look_up(sample.config, name), value)]
            outside = [sample for sample in samples if not same(look_up(sample.config, name), value)]
            if not inside or not outside:
                continue
            then, otherwise = self._halves(inside, outside, choices)
            if then is None or otherwise is None:
                continue
            if value is None and otherwise == Field(name):
                yield WhenNull(name, then)
            else:
                yield WhenEqual(name, value, then, otherwise)

    def _halves(
        self, inside: list[Sample], outside: list[Sample], choices: int
    ) -> tuple[Expression | None, Expression | None]:
        """Explains both sides of a split. One of them must be simple: a chain of choices is found, a tree is not
        looked for, which keeps the search short."""
        then = self.fit(inside, 0)
        if then is not None:
            return then, self.fit(outside, choices - 1)
        otherwise = self.fit(outside, 0)
        if otherwise is not None:
            return self.fit(inside, choices - 1), otherwise
        if choices < 2:
            return None, None
        then = self.fit(inside, 1)
        return then, None if then is None else self.fit(outside, 1)

    # ------------------------------------------------------------------------------------------------ choices by layer

    def _per_layer(self, samples: list[Sample], choices: int) -> Expression | None:
        configs, depths = [sample.config for sample in samples], [sample.depth for sample in samples]
        layout = _Layers(samples)
        masks: dict[Condition, int] = {}
        seen: set[int] = set()
        for condition in atoms(configs, depths, self.names):
            bits = mask(condition, configs, depths)
            if bits is not None and bits & layout.present not in seen:
                seen.add(bits & layout.present)
                masks[condition] = bits
        # Both sides uniform, by one condition, two, or three of fields: no further choice between layers is needed.
        for find in (lambda: masks, lambda: _pairs(masks, layout), lambda: _triples(masks, layout)):
            conditions = find()
            best: Expression | None = None
            for condition, bits in conditions.items():
                if layout.uniform(bits) and layout.uniform(layout.all_bits & ~bits):
                    best = _simpler(best, self._divided(layout, condition, bits, choices))
            if best is not None:
                return best
        if choices < 2:
            return None
        for condition, bits in masks.items():
            if layout.uniform(bits):
                best = _simpler(best, self._divided(layout, condition, bits, choices))
        return best

    def _divided(self, layout: _Layers, condition: Condition, bits: int, choices: int) -> Expression | None:
        if not bits & layout.present or not ~bits & layout.present:
            return None
        then = self.fit(layout.select(bits), choices - 1)
        if then is None:
            return None
        otherwise = self.fit(layout.select(layout.all_bits & ~bits), choices - 1)
        found = None if otherwise is None else PerLayer(condition, then, otherwise)
        # Several periods that no field says can be made to fit anything.
        return found if found is None or len(_periods(found)) < 2 else None


class _Layers:
    """All layers of all samples as positions in one row of bits."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples
        self.all_bits = (1 << sum(sample.depth for sample in samples)) - 1
        self.groups: list[list[int]] = []
        self.present = 0
        position = 0
        for sample in samples:
            distinct: list[tuple[Any, int]] = []
            for offset, value in enumerate(sample.value):
                if value is ABSENT:
                    continue
                bit = 1 << (position + offset)
                self.present |= bit
                index = next((i for i, (other, _) in enumerate(distinct) if same(other, value)), None)
                if index is None:
                    distinct.append((value, bit))
                else:
                    distinct[index] = (value, distinct[index][1] | bit)
            self.groups.append([bits for _, bits in distinct])
            position += sample.depth

    def uniform(self, bits: int) -> bool:
        """Whether the chosen layers of each sample all have the same value."""
        return all(sum(1 for group in groups if group & bits) <= 1 for groups in self.groups)

    def select(self, bits: int) -> list[Sample]:
        """The samples with all other layers taken out; those without any layer left are dropped."""
        chosen, position = [], 0
        for sample in self.samples:
            values = LayerValues(
                value if bits >> (position + offset) & 1 else ABSENT for offset, value in enumerate(sample.value)
            )
            position += sample.depth
            if any(value is not ABSENT for value in values):
                chosen.append(Sample(sample.config, values, sample.depth))
        return chosen


def _most_different(samples: Sequence[Sample]) -> int:
    """Values that the layers of one config have at most."""
    most = 1
    for sample in samples:
        if isinstance(sample.value, LayerValues):
            distinct: list[Any] = []
            for value in sample.value:
                if value is not ABSENT and not any(same(value, other) for other in distinct):
                    distinct.append(value)
            most = max(most, len(distinct))
    return most


def _pairs(masks: Mapping[Condition, int], layout: _Layers) -> dict[Condition, int]:
    """Two conditions at once, each possibly negated; those that say something about the layers that count."""
    single: list[tuple[Condition, int]] = []
    for condition, bits in masks.items():
        single += [(condition, bits), (Not(condition), layout.all_bits & ~bits)]
    pairs: dict[Condition, int] = {}
    seen = {bits & layout.present for _, bits in single}
    for (first, first_bits), (second, second_bits) in itertools.combinations(single, 2):
        bits = first_bits & second_bits
        if bits & layout.present and bits & layout.present not in seen:
            seen.add(bits & layout.present)
            if len(_unsaid(first) | _unsaid(second)) < 2:
                pairs[All((first, second))] = bits
    return pairs


def _triples(masks: Mapping[Condition, int], layout: _Layers) -> dict[Condition, int]:
    """Three conditions of different fields at once: every so many layers, from one layer on, up to another."""
    ranges = {condition: bits for condition, bits in masks.items() if isinstance(condition, AtLeast | AtMost)}
    periods = {c: bits for c, bits in masks.items() if isinstance(c, Multiple) and isinstance(c.of, str)}
    triples: dict[Condition, int] = {}
    seen: set[int] = set()
    for (period, bits), (first, lower), (last, upper) in itertools.product(
        periods.items(), ranges.items(), ranges.items()
    ):
        if not isinstance(first, AtLeast) or not isinstance(last, AtMost):
            continue
        chosen = bits & lower & upper
        if len({period.of, first.field, last.field}) == 3 and chosen & layout.present not in seen:
            seen.add(chosen & layout.present)
            triples[All((period, first, last))] = chosen
    return triples


def _periods(expression: Expression) -> set[Condition]:
    """Conditions on every so many layers, by numbers of which no field says anything."""
    return {
        condition for part in walk(expression) if isinstance(part, PerLayer) for condition in _unsaid(part.condition)
    }


def _unsaid(condition: Condition) -> set[Condition]:
    match condition:
        case Not(inner):
            return _unsaid(inner)
        case All(conditions):
            return set().union(*map(_unsaid, conditions))
        case Multiple(of, _) if isinstance(of, int):
            return {condition}
    return set()


def _simpler(first: Expression | None, second: Expression | None) -> Expression | None:
    if first is None or second is None:
        return first or second
    return first if complexity(first) <= complexity(second) else second


def collapse(samples: Sequence[Sample]) -> list[Sample] | None:
    """One value per config where no config has layers that differ; else None."""
    collapsed = []
    for sample in samples:
        if not isinstance(sample.value, LayerValues):
            collapsed.append(sample)
            continue
        values = [value for value in sample.value if value is not ABSENT]
        if not all(same(value, values[0]) for value in values):
            return None
        collapsed.append(Sample(sample.config, values[0], sample.depth))
    return collapsed


def _is_switch(value: Any) -> bool:
    return isinstance(value, str) or any(same(value, switch) for switch in SWITCHES)
