"""Finds the simplest expression over config fields that explains what was observed of one slot, without exception.

Names of fields mean nothing here but an order among equals: an architecture may call its width what it likes. A field
is a candidate because the slot changed when it was changed.
"""

from __future__ import annotations

import difflib
import itertools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.arithmetic import arithmetic, is_number, num_products
from areal.porting.bind.budget import AnalysisBudget, GaveUpError
from areal.porting.bind.expressions import EvaluationError, complexity, evaluate, look_up, same
from areal.porting.bind.layering import Layers, atoms, is_one_pattern, mask, most_different, pairs_of, triples_of
from areal.porting.bind.observing import SlotSample
from areal.porting.bind.rounding import ceiling, narrowed, rounded_up
from areal.porting.bind.slots import ABSENT, LayerValues
from areal.porting.family import Constant, Entry, Field, Length, PerLayer, Range, WhenEqual, WhenNull

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from areal.porting.bind.budget import Allowance
    from areal.porting.family import Condition, Expression


MOST_CHOICES: Final = 3
"""How deeply choices (WhenEqual, WhenNull, PerLayer) may be nested."""

MOST_DIFFERENT: Final = 3
"""Different values of one slot in the layers of a config; more than these are computed from the layer's number."""

SWITCHES: Final = (None, True, False, 0, 1, -1)
"""Values of a field, besides texts, that may decide between two expressions. Sizes do not decide."""


def fit(
    slot: str,
    samples: Sequence[SlotSample],
    names: Iterable[str],
    *,
    most_choices: int = MOST_CHOICES,
    budget: AnalysisBudget | None = None,
) -> Expression | None:
    """Return the simplest expression for all samples, or None. names: fields that may be read (`causes` narrows them).

    budget: that of the analysis. None is also the answer where the search would cost more than one may; the budget then
    says so. Raises UnsupportedError when nothing is left of it. Samples of configs that lack the slot's part must be
    left out.

    Example: layer.window of qwen2. The base config has layer_types [full, full, sliding, sliding] and sliding_window 8,
    so the slot is (None, None, 8, 8); with sliding_window 4 it is (None, None, 4, 4); with other layer_types other
    layers have the 8. No constant, field or product explains all three samples (choices = 0). With one choice, the
    condition Listed("layer_types", ("sliding_attention",)) splits the layers: inside, the value is
    Field("sliding_window"), outside Constant(None). The result is PerLayer(that condition, these two).
    """
    assert samples, f"nothing was observed of {slot}"
    ordered = sorted(names, key=lambda name: (-likeness(slot, name), name))
    search = _Search(ordered, samples, (budget or AnalysisBudget()).fit(slot, ordered))
    for choices in range(most_choices + 1):
        try:
            found = search.fit(search.samples, choices)
        except GaveUpError:
            return None
        if found is not None:
            return found
    return None


def explains(expression: Expression, sample: SlotSample) -> bool:
    """Return whether the expression gives the value of the sample; for layers, wherever a layer has one."""
    try:
        if isinstance(sample.value, LayerValues):
            return all(
                value is ABSENT or same(evaluate(expression, sample.config, layer), value)
                for layer, value in enumerate(sample.value)
            )
        return same(evaluate(expression, sample.config), sample.value)
    except (EvaluationError, OverflowError):
        return False


def causes(samples: Sequence[SlotSample], differences: Mapping[tuple[int, int], Iterable[str]]) -> set[str]:
    """Return the fields that differ between two samples that were one change apart and have different values.

    differences: for pairs of indices of samples that are one change apart, the fields in which they differ.
    """
    return {
        name
        for (first, second), names in differences.items()
        if not same(samples[first].value, samples[second].value)
        for name in names
    }


def likeness(slot: str, name: str) -> float:
    """Return how alike the names of a slot and of a field are, from 0 to 1; decides between equals only."""
    last = slot.rpartition(".")[2]
    return difflib.SequenceMatcher(a=last, b=name.rpartition(".")[2]).ratio()


class _Search:
    """Looks for an expression over `names`, the likelier ones first.

    Everything is read from tables: parts of the same samples come up again and again, below one choice and another.
    """

    def __init__(self, names: Sequence[str], samples: Sequence[SlotSample], allowance: Allowance) -> None:
        self.names = names
        # Without samples that say the same as an earlier one, as far as the fields go.
        distinct: dict[str, SlotSample] = {}
        for sample in samples:
            distinct.setdefault(repr((sample.value, [look_up(sample.config, name) for name in names])), sample)
        self.samples = list(distinct.values())
        self._allowance = allowance
        self._read = {
            id(sample.config): {name: look_up(sample.config, name) for name in names} for sample in self.samples
        }
        self._known: dict[tuple[Any, ...], Expression | None] = {}

    def fit(self, samples: list[SlotSample], choices: int) -> Expression | None:
        if most_different(samples) > min(choices + 1, MOST_DIFFERENT):
            return None
        # Values are parts of the samples of this search: none of them dies, so that an address names one.
        values = [each.value if isinstance(each.value, LayerValues) else (each.value,) for each in samples]
        key = (choices, *((id(each.config), *map(id, value)) for each, value in zip(samples, values, strict=True)))
        if key not in self._known:
            self._known[key] = self._fit(samples, choices)
        return self._known[key]

    def _fit(self, samples: list[SlotSample], choices: int) -> Expression | None:
        self._allowance.spend(len(samples) * (1 + len(self.names)))
        if not any(isinstance(sample.value, LayerValues) for sample in samples):
            return self._scalar(samples, choices)
        collapsed = collapse(samples)
        if collapsed is not None:
            return self.fit(collapsed, choices) or self._listed(samples)
        listed = self._listed(samples)
        if listed is not None:
            return listed
        found = self._per_layer(samples, choices) if choices else None
        return found or self._choice(samples, choices)

    def _listed(self, samples: list[SlotSample]) -> Expression | None:
        """Return a list over layers that holds the whole number of each layer."""
        for name in self.names:
            for lengths, sample in zip(self._column(name, samples), samples, strict=True):
                values = sample.value if isinstance(sample.value, LayerValues) else ()
                is_list = isinstance(lengths, list | tuple) and len(lengths) == len(values) > 0
                if not is_list or not all(
                    value is ABSENT or (type(entry) is int and same(entry, value))
                    for entry, value in zip(lengths, values, strict=True)
                ):
                    break
            else:
                return Entry(name)
        return None

    def _column(self, name: str, samples: Sequence[SlotSample]) -> list[Any]:
        return [self._read[id(sample.config)][name] for sample in samples]

    # -------------------------------------------------------------------------------------------- one value per config

    def _scalar(self, samples: list[SlotSample], choices: int) -> Expression | None:
        first = samples[0].value
        if all(same(sample.value, first) and type(sample.value) is type(first) for sample in samples):
            return Constant(first)
        for name in self.names:
            if all(
                same(value, sample.value) for value, sample in zip(self._column(name, samples), samples, strict=True)
            ):
                return Field(name)
        if all(isinstance(sample.value, tuple) and len(sample.value) == 2 for sample in samples):
            bounds = [self.fit([replace(each, value=each.value[place]) for each in samples], 0) for place in (0, 1)]
            if bounds[0] is not None and bounds[1] is not None:
                return Range(bounds[0], bounds[1])
        if all(is_number(sample.value) for sample in samples):
            for name in self.names:
                column = self._column(name, samples)
                if all(isinstance(each, list | tuple) for each in column) and [len(each) for each in column] == [
                    sample.value for sample in samples
                ]:
                    return Length(name)
            columns = {name: self._column(name, samples) for name in self.names}
            numbers = {name: values for name, values in columns.items() if all(map(is_number, values))}
            self._allowance.spend(num_products(len(numbers)))
            found = arithmetic(numbers, [sample.value for sample in samples])
            found = found or ceiling(numbers, [sample.value for sample in samples])
            found = found or rounded_up(numbers, [sample.value for sample in samples])
            found = found or narrowed(numbers, [sample.value for sample in samples])
            if found is not None:
                return found
        return self._choice(samples, choices)

    # ------------------------------------------------------------------------------------------------- choices by field

    def _choice(self, samples: list[SlotSample], choices: int) -> Expression | None:
        """Return the simplest split of the samples by the value of one field whose halves can both be explained."""
        if not choices:
            return None
        best: Expression | None = None
        for name in self.names:
            for found in self._splits(name, samples, choices):
                best = _simpler(best, found)
        return best

    def _splits(self, name: str, samples: list[SlotSample], choices: int) -> Iterator[Expression]:
        column = self._column(name, samples)
        values: list[Any] = []
        for value in column:
            is_switch = isinstance(value, str) or any(same(value, switch) for switch in SWITCHES)
            if is_switch and not any(same(value, other) for other in values):
                values.append(value)
        if len(values) == 2 and all(isinstance(value, bool) for value in values):
            values = [True]
        for value in values:
            chosen = [same(each, value) for each in column]
            inside = list(itertools.compress(samples, chosen))
            outside = list(itertools.compress(samples, map(operator.not_, chosen)))
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
        self, inside: list[SlotSample], outside: list[SlotSample], choices: int
    ) -> tuple[Expression | None, Expression | None]:
        """Explain both sides of a split. One of them must be simple: a chain of choices is found, a tree is not
        looked for, which keeps the search short.

        Example: `a if x else (b if y else c)` is found as a simple `a` and a rest with one choice. `(a if y else b) if
        x else (c if y else d)` needs one choice on each side; it is only looked for where two choices are left.
        """
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

    def _per_layer(self, samples: list[SlotSample], choices: int) -> Expression | None:
        configs, depths = [sample.config for sample in samples], [sample.depth for sample in samples]
        layout = Layers(samples)
        masks: dict[Condition, int] = {}
        seen: set[int] = set()
        for condition in atoms(configs, depths, self.names):
            self._allowance.spend(len(samples))
            bits = mask(condition, configs, depths)
            if bits is not None and bits & layout.present not in seen:
                seen.add(bits & layout.present)
                masks[condition] = bits
        # Both sides uniform, by one condition, two, or three of fields: no further choice between layers is needed.
        for find in (lambda: masks, lambda: pairs_of(masks, layout), lambda: triples_of(masks, layout)):
            conditions = find()
            self._allowance.spend(len(conditions) * len(samples))
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

    def _divided(self, layout: Layers, condition: Condition, bits: int, choices: int) -> Expression | None:
        if not bits & layout.present or not ~bits & layout.present:
            return None
        then = self.fit(layout.select(bits), choices - 1)
        if then is None:
            return None
        otherwise = self.fit(layout.select(layout.all_bits & ~bits), choices - 1)
        found = None if otherwise is None else PerLayer(condition, then, otherwise)
        # Several periods that no field says can be made to fit anything.
        depth = max(sample.depth for sample in layout.samples)
        return found if found is None or is_one_pattern(found, depth) else None


def _simpler(first: Expression | None, second: Expression | None) -> Expression | None:
    if first is None or second is None:
        return first or second
    return first if complexity(first) <= complexity(second) else second


def collapse(samples: Sequence[SlotSample]) -> list[SlotSample] | None:
    """Return one value per config where no config has layers that differ; else None."""
    collapsed = []
    for sample in samples:
        if not isinstance(sample.value, LayerValues):
            collapsed.append(sample)
            continue
        values = [value for value in sample.value if value is not ABSENT]
        if not all(same(value, values[0]) for value in values):
            return None
        collapsed.append(SlotSample(sample.config, values[0], sample.depth))
    return collapsed
