"""All layers of all samples as bits in one row, and the sets of conditions that pick layers out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import EvaluationError, holds, look_up, same, walk
from areal.porting.bind.slots import ABSENT, LayerValues
from areal.porting.family import (
    All,
    AtLeast,
    AtMost,
    Cycled,
    First,
    FromEnd,
    LayerInField,
    Listed,
    Multiple,
    Negation,
    PerLayer,
    Remainder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from areal.porting.bind.observing import SlotSample
    from areal.porting.family import Condition, Expression


class Layers:
    """All layers of all samples as positions in one row of bits."""

    def __init__(self, samples: list[SlotSample]) -> None:
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
        """Return whether the chosen layers of each sample all have the same value."""
        return all(sum(1 for group in groups if group & bits) <= 1 for groups in self.groups)

    def select(self, bits: int) -> list[SlotSample]:
        """Return the samples with all other layers taken out; those without any layer left are dropped."""
        chosen, position = [], 0
        for sample in self.samples:
            values = LayerValues(
                value if bits >> (position + offset) & 1 else ABSENT for offset, value in enumerate(sample.value)
            )
            position += sample.depth
            if any(value is not ABSENT for value in values):
                chosen.append(replace(sample, value=values))
        return chosen


def most_different(samples: Sequence[SlotSample]) -> int:
    """Return the values that the layers of one config have at most."""
    most = 1
    for sample in samples:
        if isinstance(sample.value, LayerValues):
            distinct: list[Any] = []
            for value in sample.value:
                if value is not ABSENT and not any(same(value, other) for other in distinct):
                    distinct.append(value)
            most = max(most, len(distinct))
    return most


def pairs_of(masks: Mapping[Condition, int], layout: Layers) -> dict[Condition, int]:
    """Return two conditions at once, each possibly negated; those that say something about the layers that count."""
    single: list[tuple[Condition, int]] = []
    for condition, bits in masks.items():
        if isinstance(condition, First):
            continue  # beside others it would only make an exception of what they do not explain
        single += [(condition, bits), (Negation(condition), layout.all_bits & ~bits)]
    pairs: dict[Condition, int] = {}
    seen = {bits & layout.present for _, bits in single}
    for (first, first_bits), (second, second_bits) in itertools.combinations(single, 2):
        bits = first_bits & second_bits
        if bits & layout.present and bits & layout.present not in seen:
            seen.add(bits & layout.present)
            if len(_unsaid(first) | _unsaid(second)) < 2:
                pairs[All((first, second))] = bits
    return pairs


def triples_of(masks: Mapping[Condition, int], layout: Layers) -> dict[Condition, int]:
    """Return three conditions of different fields at once: every so many layers, from one layer on, up to another."""
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


def periods_of(expression: Expression) -> set[Condition]:
    """Return the conditions on every so many layers, by numbers of which no field says anything."""
    return {
        condition for part in walk(expression) if isinstance(part, PerLayer) for condition in _unsaid(part.condition)
    }


def is_one_pattern(expression: Expression, depth: int) -> bool:
    """Return whether all conditions on every so many layers say one pattern, as often as `depth` layers show it."""
    conditions = periods_of(expression)
    if len(conditions) < 2:
        return True
    lengths = {_length_of(condition) for condition in conditions}
    return len(lengths) == 1 and depth >= OFTEN * max(lengths) > 0


def _length_of(condition: Condition) -> int:
    """Return the layers of a period that no field says; 0 for what is none."""
    match condition:
        case Multiple(int(of), _):
            return of
        case All((Multiple(int(of), 0), Negation(First()))):
            return of
    return 0


def _unsaid(condition: Condition) -> set[Condition]:
    match condition:
        case Negation(inner):
            return _unsaid(inner)
        case All((Multiple(), Negation(First()))):
            return {condition}  # layer N, 2 N, 3 N: one pattern
        case All(conditions):
            return set().union(*map(_unsaid, conditions))
        case First() | FromEnd(1, _):
            return {condition}
        case Multiple(of, _) if isinstance(of, int):
            return {condition}
    return set()


# ----------------------------------------------------------------------------------------------------------- conditions

# Which conditions on layers a set of configs offers, and which layers each of them picks out.


OFTEN: Final = 4
"""Times that layers have to show a pattern of several kinds."""

MOST_LAYERS_IN_A_PERIOD: Final = 6
"""Longest pattern that repeats every so many layers without a field that says so."""

Config = "Mapping[str, Any]"


def atoms(configs: Sequence[Mapping[str, Any]], depths: Sequence[int], names: Iterable[str]) -> Iterator[Condition]:
    """Yield the conditions of a single field, or of none, that can be asked of every one of the configs.

    depths: number of layers for each config.
    """
    names = list(names)
    for name in names:
        values = [look_up(config, name) for config in configs]
        if all(isinstance(value, list | tuple) for value in values):
            entries = [entry for value in values for entry in value]
            if all(len(value) >= depth for value, depth in zip(values, depths, strict=True)):
                distinct: list[Any] = []
                for entry in entries:
                    if isinstance(entry, str | bool | int | float | None) and entry not in distinct:
                        distinct.append(entry)
                yield from (Listed(name, (entry,)) for entry in distinct)
            elif all(values) and all(isinstance(entry, str) for entry in entries):
                yield from (Cycled(name, (entry,)) for entry in dict.fromkeys(entries))
            if all(isinstance(entry, int) and not isinstance(entry, bool) for entry in entries):
                yield LayerInField(name)
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            yield AtLeast(name)
            yield AtMost(name)
    yield from last_layers(configs, depths, names)
    yield First()
    for name in names:
        values = [look_up(config, name) for config in configs]
        if all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in values):
            yield from (Multiple(name, shift) for shift in (0, 1, -1))
            # Others of nearly its name may say from which layer on: attn_layer_period, attn_layer_offset.
            for other in (each for each in names if each != name and _stem(each) == _stem(name) != ""):
                offsets = [look_up(config, other) for config in configs]
                if all(type(value) is int and value >= 0 for value in offsets):
                    yield Remainder(name, other)
    periods = range(2, MOST_LAYERS_IN_A_PERIOD + 1)
    for period in periods:
        yield from (Multiple(period, shift) for shift in range(period))
    yield from (All((Multiple(period, 0), Negation(First()))) for period in periods)


def last_layers(
    configs: Sequence[Mapping[str, Any]], depths: Sequence[int], names: Sequence[str]
) -> Iterator[Condition]:
    """Yield the conditions that a layer is one of the last so many, of numbers of layers that are not that of all; and
    that it is the last one, which classes make an exception of in lists over layers (Gemma 4)."""
    found = {name: [look_up(config, name) for config in configs] for name in (*names, *configs[0]) if "layers" in name}
    counted = next((name for name, values in found.items() if values == list(depths)), None)
    if counted is not None and any(isinstance(look_up(configs[0], name), list) for name in names):
        yield FromEnd(1, counted)
    found = {name: values for name, values in found.items() if name in names}
    for name, values in found.items():
        known = counted is not None and name != counted and all(type(value) is int for value in values)
        if known and all(0 <= value <= depth for value, depth in zip(values, depths, strict=True)):
            yield FromEnd(name, str(counted))


def _stem(name: str) -> str:
    """Return a name without its last word."""
    return name.rpartition("_")[0]


def mask(condition: Condition, configs: Sequence[Mapping[str, Any]], depths: Sequence[int]) -> int | None:
    """Return the layers for which it holds as bits, all layers of the first config first; None where it cannot be
    asked."""
    bits, position = 0, 0
    for config, depth in zip(configs, depths, strict=True):
        for layer in range(depth):
            try:
                bits |= holds(condition, config, layer) << position
            except EvaluationError:
                return None
            position += 1
    return bits
