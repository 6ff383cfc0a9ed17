"""Fields that give one kind of layers a value of its own, where transformers writes the values of single layers.

A Gemma 4 config.json says `global_head_dim: 512`. Its class declares no such field: it makes `per_layer_config:
{"5": {"head_dim": 512}, ...}` of it, for the layers of one kind, and writes that. Analyses and families keep the field.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.porting.probe.instance import read
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from areal.porting.probe.subject import Subject

LAYERED: Final = "per_layer_config"
"""Where configs of transformers hold what single layers have in place of the values of all."""

PROBED: Final = 96
"""Value that no class has by default: even, since heads are turned in pairs."""

LARGE: Final = 16
"""From this value on, a number is the size of something, below the count of something."""


@dataclass(frozen=True)
class LayerValue:
    """A field that says what layers of one kind have in place of another field."""

    field: str
    attribute: str
    """The field of all other layers: head_dim."""
    kinds: str
    """The list that says the kind of each layer: layer_types."""
    kind: str
    flag: str
    """A field that has to be true for this one to be read; "" where it always is."""
    default: Any
    """What the class takes where the field is absent; None: the value of all layers."""

    def as_said(self) -> dict[str, str]:
        """Return what `FieldUse.layered` says."""
        return {"attribute": self.attribute, "kinds": self.kinds, "kind": self.kind, "flag": self.flag}


def layer_values(subject: Subject) -> tuple[LayerValue, ...]:
    """Return the fields of a class that are values of one kind of layers; found by giving it other values."""
    found = _FOUND.get(subject.config_class)
    if found is None:
        found = _FOUND[subject.config_class] = _find(subject)
    return found


def folded(values: Mapping[str, Any], fields: Collection[LayerValue]) -> dict[str, Any]:
    """Return the fields of a config with `per_layer_config` as the fields that say it. What they cannot say stays."""
    layered = values.get(LAYERED)
    if not fields or not isinstance(layered, dict):
        return dict(values)
    said: dict[str, Any] = {}
    known: set[tuple[int, str]] = set()
    for each in fields:
        kinds = values.get(each.kinds)
        own = _own_values(layered, kinds, each) if isinstance(kinds, list) else None
        if own is None or len(own) > 1:
            return dict(values)
        fallback = None if each.default is None else values.get(each.attribute)
        said[each.field] = next(iter(own), fallback)
        known |= {(layer, each.attribute) for layer, kind in enumerate(kinds or ()) if kind == each.kind}
    if any((int(layer), name) not in known for layer, inner in layered.items() for name in inner):
        return dict(values)
    return {name: value for name, value in values.items() if name != LAYERED} | said


def _own_values(layered: Mapping[str, Mapping[str, Any]], kinds: list[Any], each: LayerValue) -> list[Any] | None:
    """Return the one value that the layers of a kind have, or none where they have that of all; None where they
    differ."""
    by_layer = {int(layer): inner for layer, inner in layered.items()}
    found = [by_layer.get(layer, {}).get(each.attribute) for layer, kind in enumerate(kinds) if kind == each.kind]
    if any(value != found[0] for value in found):
        return None
    return [value for value in found[:1] if value is not None]


def with_layer_values(
    subject: Subject, config: dict[str, Any], *, given: Collection[str], works: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return a tiny config with a value of its own for each of these fields, in place of `per_layer_config`; their
    flags are on. given: fields that stay as they are."""
    fields = layer_values(subject)
    if not fields or LAYERED in given:
        return config
    config = {name: value for name, value in config.items() if name != LAYERED}
    for each in fields:
        usual = config.get(each.attribute)
        if type(usual) is not int or each.field in given:
            continue
        on = {each.flag: True} if each.flag and each.flag not in given else {}
        for value in (usual + LARGE,) if usual >= LARGE else (usual // 2, usual * 2):
            trial = {**config, **on, each.field: value}
            if value > 0 and works(trial):
                config = trial
                break
    return config


_FOUND: Final[dict[type, tuple[LayerValue, ...]]] = {}
"""By class: an analysis asks often."""


def _find(subject: Subject) -> tuple[LayerValue, ...]:
    try:
        usual = read(subject, {}).to_dict()
        source = inspect.getsource(subject.config_class)
    except (SubjectError, OSError, TypeError):
        return ()
    if not isinstance(usual.get(LAYERED), dict):
        return ()
    names = dict.fromkeys(re.findall(r"kwargs\.(?:pop|get)\(\s*[\"'](\w+)[\"']", source))
    flags = ["", *(name for name, value in usual.items() if value is False)]
    found = []
    for name in (name for name in names if name not in usual and name != LAYERED):
        value = next((each for flag in flags if (each := _value_of(subject, name, flag)) is not None), None)
        if value is not None:
            found.append(value)
    return tuple(found)


def _value_of(subject: Subject, name: str, flag: str) -> LayerValue | None:
    """Return what a field says, beside a flag that is on; None where it says nothing of layers of one kind."""
    on = {flag: True} if flag else {}
    try:
        values = read(subject, {**on, name: PROBED}).to_dict()
        without = read(subject, on).to_dict()
    except SubjectError:
        return None
    layered = {int(layer): inner for layer, inner in (values.get(LAYERED) or {}).items()}
    attributes = {key for inner in layered.values() for key, value in inner.items() if value == PROBED}
    if len(attributes) != 1:
        return None
    attribute = attributes.pop()
    layers = {layer for layer, inner in layered.items() if inner.get(attribute) == PROBED}
    for kinds, entries in values.items():
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            continue
        for kind in dict.fromkeys(entries):
            if {layer for layer, entry in enumerate(entries) if entry == kind} == layers:
                absent = {int(layer): inner for layer, inner in (without.get(LAYERED) or {}).items()}
                default = absent.get(min(layers), {}).get(attribute)
                return LayerValue(name, attribute, kinds, kind, flag, default)
    return None
