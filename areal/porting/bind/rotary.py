"""Binds the rotary tables of layers to rope_parameters, or theta to a field where a config has no such object."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import ModelError
from areal.models.blocks.rotary import attention_magnitude, inverse_frequencies
from areal.models.decoder_args import ROTARY_TYPES, RotaryArgs
from areal.porting.bind.expressions import (
    ROTARY_FIELD,
    SCORE_FACTOR,
    EvaluationError,
    evaluate,
    look_up,
    same,
    walk,
)
from areal.porting.bind.fitting import fit
from areal.porting.bind.observing import SlotSample, same_value
from areal.porting.bind.slots import ABSENT, LayerValues
from areal.porting.bind.variations import MISSING, changed, rotary_alternatives
from areal.porting.family import Constant, Field, PerLayer, Product, RotaryField, WhenEqual, WhenNull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from areal.porting.bind.reading import ConfigReader
    from areal.porting.family import Expression
    from areal.porting.spec import ArchitectureSpec

PARTIAL: Final = "partial_rotary_factor"
_ORIGINAL: Final = "original_max_position_embeddings"
_KNOWN: Final = frozenset({"rope_theta", "rope_type", "type", PARTIAL}).union(
    *(a | b for a, b in ROTARY_TYPES.values())
)
_DIM: Final = 16
"""Tables are compared at this size, where the type leaves it open."""


THETA: Final = Field(f"{ROTARY_FIELD}.rope_theta")
"""The base of all tables, where no layer has its own."""


def thetas_of(expressions: Iterable[Expression]) -> set[str]:
    """Return the lists that hold the theta of each layer."""
    return {part.thetas for each in expressions for part in walk(each) if isinstance(part, RotaryField) and part.thetas}


def filled_with_theta(reader: ConfigReader, base: Mapping[str, Any], name: str) -> bool:
    """Return whether the class makes a list over layers of the theta in rope_parameters where it is null or absent."""
    entries = look_up(base, ROTARY_FIELD)
    if not isinstance(entries, dict) or is_layered(entries):
        return False
    for theta in (4321.0, 56789.0):
        for value in (None, MISSING):
            written = changed(base, {ROTARY_FIELD: {**entries, "rope_theta": theta}, name: value})
            found = look_up(reader.normal(written) or {}, name)
            depth = look_up(written, reader.depth_field)
            if not isinstance(found, list) or found != [theta] * len(found) or len(found) != depth:
                return False
    return True


def is_layered(entries: object) -> bool:
    """Return whether rope_parameters holds one object (or null) per layer type."""
    return isinstance(entries, dict) and bool(entries) and all(isinstance(e, dict | None) for e in entries.values())


def with_rotary_values(config: dict[str, Any]) -> dict[str, Any]:
    """Return the completed config with partial_rotary_factor as a field, 1.0 where it is not said."""
    entries = config.get(ROTARY_FIELD)
    if not isinstance(entries, dict):
        return config
    if not is_layered(entries):
        known = {name: value for name, value in entries.items() if value is not None}
        args = RotaryArgs(rotary_type=str(entries.get("rope_type", "default")), parameters=known)
        extra = {f"{ROTARY_FIELD}.{name}": entries[name] for name in extra_names(entries)}
        return config | extra | {f"{ROTARY_FIELD}.{PARTIAL}": _or_whole(entries), SCORE_FACTOR: args.score_factor}
    return config | {
        f"{ROTARY_FIELD}.{name}.{PARTIAL}": _or_whole(entry) for name, entry in entries.items() if entry is not None
    }


def extra_names(entries: object) -> tuple[str, ...]:
    """Return the numbers in rope_parameters that no rotary type has. What reads them may read the length of the
    original context as well, which then has to be there for all types."""
    if not isinstance(entries, dict) or is_layered(entries):
        return ()
    found = [key for key, value in entries.items() if key not in _KNOWN and type(value) in (int, float)]
    return (*sorted(found), *([_ORIGINAL] if found and type(entries.get(_ORIGINAL)) is int else []))


def without_score_factor(samples: Sequence[SlotSample]) -> list[SlotSample] | None:
    """Return the samples with values divided by the factor on scores; None where there is none."""
    factors = [float(sample.config.get(SCORE_FACTOR, 1.0)) for sample in samples]
    if all(factor == 1.0 for factor in factors):
        return None
    divided = []
    for sample, factor in zip(samples, factors, strict=True):
        values = sample.value if isinstance(sample.value, LayerValues) else (sample.value,)
        plain = [value if not isinstance(value, float) else value / factor for value in values]
        value = LayerValues(plain) if isinstance(sample.value, LayerValues) else plain[0]
        divided.append(SlotSample(sample.config, value, sample.depth))
    return divided


def rotated_by_table(tables: Expression | None, width: Expression | None) -> Expression | None:
    """Return the number of rotated dimensions where each kind of layers has its own table, each with its own part of a
    head. width: of a head. None where layers share a table, or where heads are not as wide as one field says."""
    if not isinstance(width, Field):
        return None
    match tables:
        case RotaryField(str(layer_type)):
            part = f"{ROTARY_FIELD}.{layer_type}.{PARTIAL}"
            return Product(1.0, ((width.name, 1.0), (part, 1.0)), integer=True)
        case PerLayer(condition, then, otherwise):
            first, second = rotated_by_table(then, width), rotated_by_table(otherwise, width)
            return None if first is None or second is None else PerLayer(condition, first, second)
        case Constant(None):
            return tables
    return None


def _or_whole(entry: Mapping[str, Any]) -> float:
    value = entry.get(PARTIAL)
    return 1.0 if value is None else value


def rotary_changes(
    entries: Mapping[str, Any], spec: ArchitectureSpec
) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
    """Yield the layer type (None where all are alike), rotary type, and another content of rope_parameters."""
    dim = min((rotary.dim for rotary in spec.rotaries if rotary.dim), default=_DIM)
    if not is_layered(entries):
        kept = {name: entries[name] for name in extra_names(entries)}
        for name, changes in _entry_changes(entries, dim):
            # What is said in base configs is seen in short sequences: types with a length of their own keep it.
            yield None, name, {**changes, **kept}
        kind = str(entries.get("rope_type", "default"))
        for name, value in kept.items():
            yield None, kind, {**entries, name: value + 5 if type(value) is int else value * 1.7}
        return
    for layer_type, entry in entries.items():
        if entry is not None:
            for name, changes in _entry_changes(entry, dim):
                # Inside an entry it is refused at load, since transformers does not find it there.
                found = {key: value for key, value in changes.items() if key != "truncate"}
                yield layer_type, name, {**entries, layer_type: found}


def rotary_kind(entries: Mapping[str, Any], layer_type: str | None) -> str:
    """Return the rotary type of the entry for layers of a type."""
    entry = entries if layer_type is None else entries.get(layer_type) or {}
    return str(entry.get("rope_type", "default"))


def has_type(entries: Any, rotary_type: str) -> bool:
    """Return whether an entry of rope_parameters is of this type."""
    return any(isinstance(entry, dict) and entry.get("rope_type") == rotary_type for entry in _entries(entries))


def rotary_parts(entries: Any) -> list[float]:
    """Return the rotated part of each entry of rope_parameters."""
    return [_or_whole(entry) for entry in _entries(entries) if isinstance(entry, dict)]


def nested_entries(entries: Any) -> list[dict[str, Any]]:
    """Return the entries of rope_parameters that say something: one, or one for each layer type."""
    return [entry for entry in _entries(entries) if isinstance(entry, dict) and entry]


def _entries(entries: Any) -> list[Any]:
    return list(entries.values()) if is_layered(entries) else [entries]


def _entry_changes(entry: Mapping[str, Any], dim: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from rotary_alternatives(entry, dim)
    kept = {key: value for key, value in entry.items() if key != PARTIAL}
    kind = str(entry.get("rope_type", "default"))
    for part in (0.5, 1.0, 0.25):
        if part != _or_whole(entry):
            yield kind, {**kept, PARTIAL: part}


@dataclass(frozen=True)
class RotaryFit:
    """Explains the slot layer.rotary. types: layer type (None: all) to the rotary types to allow."""

    names: Sequence[str]
    types: Mapping[str | None, Sequence[str]]
    extra: tuple[str, ...] = ()
    """Numbers in rope_parameters that no rotary type has."""

    def fit(self, samples: Sequence[SlotSample]) -> Expression | None:
        """Return the simplest expression for all samples, or None."""
        whole = self._field(None)
        for expression in (Constant(None), whole):
            if all(self.explains(expression, sample) for sample in samples):
                return expression
        for name in self.names:  # one table of rope_parameters but for its theta, which a list has for each layer
            if all(isinstance(look_up(sample.config, name), list) for sample in samples):
                listed = replace(whole, thetas=name)
                if all(self.explains(listed, sample) for sample in samples):
                    return listed
        kinds = [_kind_samples(sample, self._candidates(sample)) for sample in samples]
        if all(kind is not None for kind in kinds):
            named = [kind for kind in kinds if kind is not None and any(value is not ABSENT for value in kind.value)]
            if not named:  # all tables alike so far: any one does, until a config tells them apart
                return next((self._field(name) for sample in samples for name in self._candidates(sample)), None)
            # Lists over layers decide in nearly all families; a deep search over all fields takes minutes.
            lists = [name for name in self.names if any(isinstance(look_up(s.config, name), list) for s in named)]
            found = (
                fit("layer.rotary", named, lists)
                or fit("layer.rotary", named, [*lists, *self._switches(named)])
                or fit("layer.rotary", named, self.names, most_choices=2)
            )
            spoken = self._spoken(found) if found else None
            if spoken is not None and all(self.explains(spoken, sample) for sample in samples):
                return spoken
        return self._theta(samples)

    @staticmethod
    def explains(expression: Expression, sample: SlotSample) -> bool:
        """Return whether the expression means the tables that were observed, however they are spelled."""
        try:
            return all(
                value is ABSENT or same_table(evaluate(expression, sample.config, layer), value)
                for layer, value in enumerate(sample.value)
            )
        except EvaluationError:
            return False

    def retyped(self, expression: Expression) -> Expression:
        """Return the expression with the current types."""
        match expression:
            case RotaryField(layer_type, _, theta, _, thetas, _):
                return expression if theta is not None else replace(self._field(layer_type), thetas=thetas)
            case PerLayer(condition, then, otherwise):
                return PerLayer(condition, self.retyped(then), self.retyped(otherwise))
            case WhenEqual(name, value, then, otherwise):
                return WhenEqual(name, value, self.retyped(then), self.retyped(otherwise))
        return expression

    def _field(self, layer_type: str | None) -> RotaryField:
        return RotaryField(layer_type, tuple(sorted(self.types.get(layer_type, ()))), extra=self.extra)

    def _candidates(self, sample: SlotSample) -> list[str | None]:
        entries = look_up(sample.config, ROTARY_FIELD)
        return [name for name, entry in entries.items() if entry is not None] if is_layered(entries) else [None]

    def _switches(self, samples: Sequence[SlotSample]) -> list[str]:
        """Return the fields with a value other than the first sample's where the tables are others, too."""
        first = samples[0]
        others = [each for each in samples[1:] if not same_value(each.value, first.value)]
        return [
            name
            for name in self.names
            if any(not same(look_up(each.config, name), look_up(first.config, name)) for each in others)
            and not isinstance(look_up(first.config, name), list)
        ]

    def _spoken(self, expression: Expression) -> Expression:
        """Return the names of tables back to tables."""
        match expression:
            case Constant(value):
                return Constant(None) if value == _NONE else self._field(None if value == _ALL else value)
            case PerLayer(condition, then, otherwise):
                return PerLayer(condition, self._spoken(then), self._spoken(otherwise))
            case WhenEqual(name, value, then, otherwise):
                return WhenEqual(name, value, self._spoken(then), self._spoken(otherwise))
        raise AssertionError(f"a table was named by {expression!r}")

    def _theta(self, samples: Sequence[SlotSample]) -> Expression | None:
        """For configs without rope_parameters: tables whose theta, and what positions are divided by, are expressions
        over any fields, or always the same; different ones for different layers too."""
        if any(look_up(sample.config, ROTARY_FIELD) is not None for sample in samples):
            return None
        tables = [value for sample in samples for value in sample.value if value not in (None, ABSENT)]
        if not tables or any(table["type"] not in ("default", "linear") for table in tables):
            return None
        theta = self._over_layers("theta", samples, lambda table: table["theta"])
        where = self._over_layers("layer.rotary", samples, lambda _: True, absent=None)
        stretched = any(table["type"] == "linear" for table in tables)
        factor = self._over_layers("factor", samples, lambda table: float(table["parameters"].get("factor", 1.0)))
        stretch = factor if stretched else None
        if theta is None or where is None or (stretched and stretch is None):
            return None
        found = _with_table(where, _own_table(theta, stretch))
        return found if all(self.explains(found, sample) for sample in samples) else None

    def _over_layers(
        self, slot: str, samples: Sequence[SlotSample], of: Callable[[Mapping[str, Any]], Any], absent: Any = ABSENT
    ) -> Expression | None:
        """Return an expression for one number of the tables. absent: that of layers without a table."""
        values = [
            [ABSENT if v is ABSENT else absent if v is None else of(v) for v in sample.value] for sample in samples
        ]
        seen = [
            SlotSample(sample.config, LayerValues(each), sample.depth)
            for sample, each in zip(samples, values, strict=True)
            if any(value is not ABSENT for value in each)
        ]
        return fit(slot, seen, self.names)


_NONE: Final = "-"
_ALL: Final = "+"


def _own_table(theta: Expression, stretch: Expression | None) -> Expression:
    """Return the table of these numbers; choices between numbers become choices between tables."""
    match theta:
        case PerLayer(condition, then, otherwise):
            return PerLayer(condition, _own_table(then, stretch), _own_table(otherwise, stretch))
        case WhenEqual(name, value, then, otherwise):
            return WhenEqual(name, value, _own_table(then, stretch), _own_table(otherwise, stretch))
    match stretch:
        case PerLayer(condition, then, otherwise):
            return PerLayer(condition, _own_table(theta, then), _own_table(theta, otherwise))
        case WhenEqual(name, value, then, otherwise):
            return WhenEqual(name, value, _own_table(theta, then), _own_table(theta, otherwise))
    plain = stretch is None or stretch == Constant(1.0)
    return RotaryField(None, ("default",), theta, stretch=None if plain else stretch)


def _with_table(expression: Expression, table: Expression) -> Expression:
    """Return the table where an expression says that there is one."""
    match expression:
        case Constant(value):
            return Constant(None) if value is None else table
        case PerLayer(condition, then, otherwise):
            return PerLayer(condition, _with_table(then, table), _with_table(otherwise, table))
        case WhenEqual(name, value, then, otherwise):
            return WhenEqual(name, value, _with_table(then, table), _with_table(otherwise, table))
        case WhenNull(name, otherwise):
            return WhenNull(name, _with_table(otherwise, table))
    return expression


def _kind_samples(sample: SlotSample, candidates: Sequence[str | None]) -> SlotSample | None:
    """Return the sample with the name of a table in place of each table; None where a table is none of the config's.
    Layers whose table has several names are left out: other configs, where the tables differ, say which it is."""
    values: list[Any] = []
    extra = extra_names(look_up(sample.config, ROTARY_FIELD))
    tables = {}
    for name in candidates:
        with contextlib.suppress(EvaluationError):
            tables[name] = evaluate(RotaryField(name, _ALL_TYPES, extra=extra), sample.config)
    for value in sample.value:
        if value is ABSENT or value is None:
            values.append(ABSENT if value is ABSENT else _NONE)
            continue
        found = [name for name, table in tables.items() if same_table(table, value)]
        if not found:
            return None
        values.append(ABSENT if len(found) > 1 else _ALL if found[0] is None else found[0])
    return SlotSample(sample.config, LayerValues(values), sample.depth)


_ALL_TYPES: Final = ("default", "linear", "llama3", "longrope", "proportional", "yarn")


def same_table(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Return whether two settings give the same rotations."""
    if first is None or second is None:
        return first is second
    if first == second:
        return True
    if not same(first["theta"], second["theta"]) and first["type"] == second["type"] == "default":
        return False
    tables = [_table(each) for each in (first, second)]
    if tables[0] is None or tables[1] is None:
        return False
    (left, left_magnitude), (right, right_magnitude) = tables[0], tables[1]
    return (
        same(left_magnitude, right_magnitude)
        and len(left) == len(right)
        and all(
            a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=0) for a, b in zip(left, right, strict=True)
        )
    )


def _table(settings: Mapping[str, Any]) -> tuple[tuple[torch.Tensor, ...], float] | None:
    args = RotaryArgs(theta=settings["theta"], rotary_type=settings["type"], parameters=dict(settings["parameters"]))
    dim = 2 * len(args.parameters["short_factor"]) if args.rotary_type == "longrope" else _DIM
    try:
        return inverse_frequencies(args, dim), attention_magnitude(args)
    except (ModelError, KeyError, ValueError, ZeroDivisionError):
        return None
