"""Which conditions on layers a set of configs offers, and which layers each of them picks out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import EvaluationError, holds, look_up
from areal.porting.family import AtLeast, AtMost, First, Listed, Member, Multiple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from areal.porting.family import Condition

MOST_LAYERS_IN_A_PERIOD: Final = 6
"""Longest pattern that repeats every so many layers without a field that says so."""

Config = "Mapping[str, Any]"


def atoms(configs: Sequence[Mapping[str, Any]], depths: Sequence[int], names: Iterable[str]) -> Iterator[Condition]:
    """Conditions of a single field, or of none, that can be asked of every one of the configs.

    depths: number of layers for each config.
    """
    names = list(names)
    for name in names:
        values = [look_up(config, name) for config in configs]
        if all(isinstance(value, list | tuple) for value in values):
            yield from _of_lists(name, values, depths)
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            yield AtLeast(name)
            yield AtMost(name)
    yield First()
    for name in names:
        values = [look_up(config, name) for config in configs]
        if all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in values):
            yield from (Multiple(name, shift) for shift in (0, 1, -1))
    for period in range(2, MOST_LAYERS_IN_A_PERIOD + 1):
        yield from (Multiple(period, shift) for shift in range(period))


def _of_lists(name: str, values: Sequence[Sequence[Any]], depths: Sequence[int]) -> Iterator[Condition]:
    if all(len(value) >= depth for value, depth in zip(values, depths, strict=True)):
        entries: list[Any] = []
        for entry in (entry for value in values for entry in value):
            if isinstance(entry, str | bool | int | float | None) and entry not in entries:
                entries.append(entry)
        yield from (Listed(name, (entry,)) for entry in entries)
    if all(isinstance(entry, int) and not isinstance(entry, bool) for value in values for entry in value):
        yield Member(name)


def mask(condition: Condition, configs: Sequence[Mapping[str, Any]], depths: Sequence[int]) -> int | None:
    """The layers for which it holds as bits, all layers of the first config first; None where it cannot be asked."""
    bits, position = 0, 0
    for config, depth in zip(configs, depths, strict=True):
        for layer in range(depth):
            try:
                bits |= holds(condition, config, layer) << position
            except EvaluationError:
                return None
            position += 1
    return bits
