"""Learns how a config class reads a config.json: defaults, nulls filled from other fields, lists that it computes.

All of this is found by running the class alone, which is cheap, so that fitted rules rest on many observations.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.models.blocks.mlp import ACTIVATION_NAMES
from areal.models.config_fields import HARMLESS_FIELDS
from areal.porting.bind.budget import AnalysisBudget
from areal.porting.bind.expressions import ROTARY_FIELD, EvaluationError, evaluate, look_up, same, walk
from areal.porting.bind.fitting import fit
from areal.porting.bind.legacy_rope import LEGACY_ROPE_FIELDS
from areal.porting.bind.observing import SlotSample
from areal.porting.bind.slots import LayerValues
from areal.porting.bind.variations import (
    MISSING,
    alternatives,
    annotations_of,
    changed,
    defaults_of,
    field_names,
    joint,
    resized,
)
from areal.porting.family import AllLayers, Constant, PerLayer, WhenEqual, WhenNull
from areal.porting.probe.instance import read
from areal.porting.probe.layer_values import folded, layer_values
from areal.porting.probe.source import layer_kinds
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from areal.porting.family import Expression
    from areal.porting.probe.subject import Subject

NUM_JOINT: Final = 24
"""Random changes of many fields on which a rule must hold."""

DEPTHS: Final = (2, 3, 11, 29)
"""Layers of further configs on which the rule of a list over layers must hold: few layers show no period for sure, nor
where it begins, and some classes make an exception of them."""


@dataclass
class ConfigReader:
    """Reads configs as the class of a subject does, and knows the rules by which it fills what is null."""

    subject: Subject
    base: dict[str, Any]
    """A whole config.json."""
    names: list[str] = field(default_factory=list)
    """Fields that may be varied, those of inner objects with dots."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """MISSING where the class has none."""
    placeholders: dict[str, str] = field(default_factory=dict)
    """Number to the text that stands for it by default ("auto"): the class fills it in, like a null."""
    annotations: dict[str, str] = field(default_factory=dict)
    rules: dict[str, Expression] = field(default_factory=dict)
    """Field to what fills it where it is null."""
    rewritten: set[str] = field(default_factory=set)
    """Fields whose value in the config object is not the one in config.json: expressions read config.json."""
    computed: frozenset[str] = frozenset()
    """Fields that the class does not declare but computes: they are left out rather than null."""
    unfilled: set[str] = field(default_factory=set)
    """Fields that are filled where they are null, by no rule that could be found: config.json must hold them."""
    _normal: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """What was read before; a config class takes milliseconds."""

    def normal(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the class makes of a config.json, not to be changed; None where it refuses."""
        key = json.dumps(config, sort_keys=True, default=repr)
        if key not in self._normal:
            try:
                values = folded(read(self.subject, dict(config)).to_dict(), layer_values(self.subject))
            except SubjectError:
                self._normal[key] = None
            else:
                lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
                self._normal[key] = values | lists
        return self._normal[key]

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config with defaults and rules filled in, flat: what expressions are evaluated on.

        rope_parameters is what the class makes of it, since its reader has the same rules for all families.
        """
        values = {name: look_up(config, name) for name in self.names if _present(config, name)}
        for name in self.names:
            default = self.defaults.get(name, MISSING)
            if name not in values and default is not MISSING:
                values[name] = default
        values |= dict.fromkeys((name for name, text in self.placeholders.items() if values.get(name) == text), None)
        open_rules = {name: rule for name, rule in self.rules.items() if values.get(name) is None}
        for _ in range(len(open_rules)):
            for name, rule in list(open_rules.items()):
                filled = self._fill(name, rule, values)
                if filled is not MISSING:
                    values[name] = filled
                    del open_rules[name]
        if ROTARY_FIELD in values:
            values[ROTARY_FIELD] = copy.deepcopy((self.normal(config) or {}).get(ROTARY_FIELD))
        return values

    def _fill(self, name: str, rule: Expression, values: Mapping[str, Any]) -> Any:
        try:
            if name not in self.per_layer:
                return evaluate(rule, values)
            depth = look_up(values, self.depth_field) if self.depth_field else None
            if not isinstance(depth, int):
                return MISSING
            return [evaluate(rule, values, layer) for layer in range(depth)]
        except EvaluationError:
            return MISSING

    per_layer: set[str] = field(default_factory=set)
    """Fields that are filled with lists of one entry per layer."""
    depth_field: str = ""
    """The field that says how many layers there are."""


def learn(
    subject: Subject,
    base: dict[str, Any],
    depth_field: str,
    ignored: Iterable[str],
    budget: AnalysisBudget | None = None,
) -> ConfigReader:
    """Find what the class does with fields that are null or absent. ignored: fields that are not looked at."""
    config_class = subject.config_class
    skipped = {*ignored, "model_type", "architectures"}
    reader = ConfigReader(subject=subject, base=base, depth_field=depth_field)
    reader.defaults = defaults_of(config_class)
    reader.defaults |= {each.field: each.default for each in layer_values(subject)}
    numbers = {name for name in field_names(base) if type(look_up(base, name)) in (int, float)}
    reader.placeholders = {name: reader.defaults[name] for name in numbers if type(reader.defaults.get(name)) is str}
    reader.defaults |= dict.fromkeys(reader.placeholders, None)
    reader.annotations = annotations_of(config_class)
    reader.annotations |= {each.field: "int | None" for each in layer_values(subject) if each.default is None}
    reader.annotations |= _choices_in_source(subject, reader)
    names = [*field_names(base), *(name for name in reader.defaults if "." not in name)]
    reader.computed = frozenset(computed_names(subject, base)) - skipped
    names += sorted(reader.computed)
    reader.defaults |= dict.fromkeys(reader.computed)
    containers = {name.partition(".")[0] for name in names if "." in name}
    skipped |= {*containers, *(getattr(config_class, "attribute_map", None) or {})}
    skipped |= LEGACY_ROPE_FIELDS - base.keys() if base.get(ROTARY_FIELD) else frozenset()
    # What transformers adds to every config stands in those inside others, too.
    inner = {name for name in names if "." in name and name.rpartition(".")[2] in HARMLESS_FIELDS}
    reader.names = [name for name in dict.fromkeys(names) if name not in skipped | inner]
    _Learner(reader, budget or AnalysisBudget()).run()
    return reader


def _choices_in_source(subject: Subject, reader: ConfigReader) -> dict[str, str]:
    """Return new types for fields that the source compares with several texts, as if their class had declared them.

    Example: where modeling code asks `config.router_act == "sigmoid"` and `== "softmax"`, router_act gets the type
    "str | Literal['sigmoid', 'softmax']". Asked of fields that hold a text which is not the name of an activation, or a
    list of texts that are all alike.
    """
    found = {}
    for name in field_names(reader.base):
        value = look_up(reader.base, name)
        alike = isinstance(value, list) and len(set(map(repr, value))) == 1 and isinstance(value[0], str)
        if alike or (isinstance(value, str) and value not in ACTIVATION_NAMES):
            choices = layer_kinds(subject.source_files, name.rpartition(".")[2])
            written = reader.annotations.get(name, "")
            if len(choices) > 1 and "Literal[" not in written:
                found[name] = f"{written} | Literal[{', '.join(map(repr, choices))}]"
    return found


class _Learner:
    def __init__(self, reader: ConfigReader, budget: AnalysisBudget) -> None:
        self.reader = reader
        self.budget = budget
        self.generator = random.Random(0)
        self.fields = [name for name in reader.names if name != ROTARY_FIELD]

    def run(self) -> None:
        working = self._working()
        configs = [
            changed(self.reader.base, resized(self.reader.base, name, value, self.reader.depth_field))
            for name, values in working.items()
            for value in values
        ]
        configs += [self._joint(working, {}) for _ in range(NUM_JOINT)]
        pairs = [(config, normal) for config in configs if (normal := self.reader.normal(config)) is not None]
        for name in self.fields:
            if any(
                (value := look_up(config, name)) is not None and not same(value, look_up(normal, name))
                for config, normal in pairs
                if _present(config, name)
            ):
                self.reader.rewritten.add(name)
        for name in self.fields:
            self._learn_null(name, working)

    def _working(self) -> dict[str, list[Any]]:
        """Return, by field, other values that the class accepts, maybe where it fills in what it checks them with."""
        base = self.reader.base
        found: dict[str, list[Any]] = {}
        for name in self.fields:
            value = look_up(base, name)
            tried = alternatives(value, self.reader.annotations.get(name, ""))
            trials = [(each, resized(base, name, each, self.reader.depth_field)) for each in tried]
            filled = {other: text for other, text in self.reader.placeholders.items() if other != name}
            accepted = [each for each, trial in trials if self._accepts(trial) or self._accepts(filled | trial)]
            found[name] = accepted[:3] + [None for each in accepted[3:] if each is None]
        return found

    def _accepts(self, changes: Mapping[str, Any]) -> bool:
        return self.reader.normal(changed(self.reader.base, changes)) is not None

    def _joint(self, working: Mapping[str, list[Any]], fixed: Mapping[str, Any]) -> dict[str, Any]:
        choices = {name: [{name: value} for value in values] for name, values in working.items()}
        changes = joint(choices, self.reader.base, self.generator, share=0.3, depth_field=self.reader.depth_field)
        return changed(self.reader.base, {**changes, **fixed})

    def _learn_null(self, name: str, working: Mapping[str, list[Any]]) -> None:
        """Find the rule by which a null is filled, if it is."""
        reader, base = self.reader, self.reader.base
        absent: list[Any] = [
            value for value in (MISSING, None) if value is None or reader.defaults.get(name, MISSING) is None
        ]
        absent = [MISSING] if name in reader.computed else absent
        absent += [reader.placeholders[name]] if name in reader.placeholders else []
        nulls = [value for value in absent if self._accepts({name: value})]
        if not nulls:
            return
        start = changed(base, {name: nulls[0]})
        normal = reader.normal(start)
        if normal is None or look_up(normal, name) is None:
            if normal is not None and self._is_every_layer(name, start):
                reader.rules[name] = AllLayers(reader.depth_field)
            return
        found = self._around(name, start, working)
        found.configs += self._deeper(name, start)
        many = [self._joint(working, {name: null}) for null in nulls for _ in range(NUM_JOINT)]
        rule = self._rule(name, [start, *found.configs, *many], found.causes)
        if rule is None and type(look_up(normal, name)) is int:
            found.configs += self._beside(start, found.causes)
            rule = self._rule(name, [start, *found.configs, *many], found.causes)
        if rule is None:
            # A cause may show only beside another change: find the smallest changes that show one, and look around.
            for config in many[::3]:
                small = self._smallest(name, start, config)
                if small is not None:
                    further = self._around(name, small, working)
                    found.causes |= further.causes | {
                        other for other in self.fields if _differ(start, small, other)
                    } - {name}
                    found.configs += further.configs
                    rule = self._rule(name, [start, *found.configs, *many], found.causes)
                if rule is not None:
                    break
        if rule is None:
            reader.unfilled.add(name)
        else:
            reader.rules[name] = rule

    def _is_every_layer(self, name: str, start: dict[str, Any]) -> bool:
        """Return whether a null becomes the list of all layers where another list over layers is null as well, which
        makes that list of it. Left alone, it means nothing while the other one is there."""
        depth = look_up(self.reader.base, self.reader.depth_field) if self.reader.depth_field else None
        if not isinstance(depth, int) or not isinstance(look_up(self.reader.base, name), list):
            return False
        others = (other for other in self.fields if other != name and isinstance(look_up(start, other), list))
        for other in others:
            read = [
                look_up(normal, name)
                for layers in (depth, depth + 1)
                for normal in [self.reader.normal(changed(start, {other: None, self.reader.depth_field: layers}))]
                if normal is not None
            ]
            if read == [list(range(depth)), list(range(depth + 1))]:
                return True
        return False

    def _around(self, name: str, start: dict[str, Any], working: Mapping[str, list[Any]]) -> _Around:
        """Return all single changes of a config, and the fields that changed what `name` becomes."""
        origin = look_up(self.reader.normal(start) or {}, name)
        found = _Around([], set())
        for other, values in working.items():
            for value in values if other != name else []:
                changes = {
                    key: entry
                    for key, entry in resized(start, other, value, self.reader.depth_field).items()
                    if key != name
                }
                config = changed(start, changes)
                normal = self.reader.normal(config)
                if normal is not None:
                    found.configs.append(config)
                    if not same(look_up(normal, name), origin):
                        found.causes.add(other)
        return found

    def _deeper(self, name: str, start: dict[str, Any]) -> list[dict[str, Any]]:
        """Return configs of few and of many layers, where `name` becomes a list of one entry per layer."""
        depth_field, normal = self.reader.depth_field, self.reader.normal(start) or {}
        value = look_up(normal, name)
        if not depth_field or not isinstance(value, list) or len(value) != look_up(normal, depth_field):
            return []
        changes = [resized(start, depth_field, depth, depth_field) for depth in DEPTHS]
        return [changed(start, {key: each for key, each in one.items() if key != name}) for one in changes]

    def _beside(self, start: dict[str, Any], causes: Iterable[str]) -> list[dict[str, Any]]:
        """Return configs with each whole number among the causes one more and one less: where something is rounded,
        they say by what."""
        numbers = {name: value for name in sorted(causes) if type(value := look_up(start, name)) is int}
        return [changed(start, {name: value + step}) for name, value in numbers.items() for step in (1, -1)]

    def _smallest(self, name: str, start: dict[str, Any], config: dict[str, Any]) -> dict[str, Any] | None:
        """Return a config between `start` and `config` that still gives `name` another value than `start` does."""
        origin = look_up(self.reader.normal(start) or {}, name)

        def differs(values: Mapping[str, Any]) -> bool:
            normal = self.reader.normal(values)
            return normal is not None and not same(look_up(normal, name), origin)

        if not differs(config):
            return None
        for other in self.fields:
            if other != name and _differ(start, config, other) and _present(start, other):
                without = changed(config, {other: look_up(start, other)})
                if differs(without):
                    config = without
        return config

    def _rule(self, name: str, configs: list[dict[str, Any]], causes: set[str]) -> Expression | None:
        pairs = [(config, normal) for config in configs if (normal := self.reader.normal(config)) is not None]
        # No layers at all say nothing.
        pairs = [(config, normal) for config, normal in pairs if look_up(normal, name) != []]
        # Whether the class fills the field with one entry per layer; other lists are values like all others.
        filled = [(look_up(normal, name), look_up(normal, self.reader.depth_field)) for _, normal in pairs]
        layered = bool(pairs) and all(isinstance(value, list) and len(value) == depth for value, depth in filled)
        if layered:
            self.reader.per_layer.add(name)
        samples: list[SlotSample] = []
        for config, normal in pairs:
            value = look_up(normal, name)
            value = LayerValues(value) if layered else value
            values = {other: look_up(normal, other) for other in self.reader.names}
            values |= {other: look_up(config, other) for other in self.reader.rewritten if _present(config, other)}
            samples.append(SlotSample(values, value, len(value) if isinstance(value, LayerValues) else 1))
        return fit(name, samples, causes, budget=self.budget) if samples else None


@dataclass
class _Around:
    configs: list[dict[str, Any]]
    causes: set[str]


def _differ(first: Mapping[str, Any], second: Mapping[str, Any], name: str) -> bool:
    return not same(look_up(first, name), look_up(second, name))


def _present(config: Mapping[str, Any], name: str) -> bool:
    if name in config:
        return True
    container, _, inner = name.partition(".")
    return bool(inner) and isinstance(config.get(container), dict) and inner in config[container]


# -------------------------------------------------------------------------------------------------------------- filling

# Nulls that no config class fills but the modeling code does: `head_dim or hidden_size // num_attention_heads`.


def branches(expressions: Mapping[str, Expression]) -> list[tuple[str, Any]]:
    """Return the fields and the values of them on which an expression takes another way: few random configs would have
    them."""
    found: list[tuple[str, Any]] = []
    for part in (part for each in expressions.values() for part in walk(each)):
        if isinstance(part, WhenNull):
            branch = (part.field, None)
        elif isinstance(part, WhenEqual) and not isinstance(part.value, bool):
            branch = (part.field, part.value)
        else:
            continue
        if branch not in found:
            found.append(branch)
    return found


def filling_rules(expressions: Mapping[str, Expression], known: Mapping[str, Expression]) -> dict[str, Expression]:
    """Return, by field, what replaces its null, where all slots that are the field agree on it. known: rules so
    far."""
    found: dict[str, set[Expression]] = {}
    for each in expressions.values():
        if not isinstance(each, WhenNull) or each.field in known:
            continue
        # What means nothing, or something else in each layer, is no value that could be filled in.
        parts = list(walk(each.otherwise))
        if Constant(None) not in parts and not any(isinstance(part, PerLayer) for part in parts):
            found.setdefault(each.field, set()).add(each.otherwise)
    return {name: next(iter(rules)) for name, rules in sorted(found.items()) if len(rules) == 1}


def filled(config: Mapping[str, Any], name: str, rule: Expression) -> Mapping[str, Any]:
    """Return the completed config with the rule's value in place of a null."""
    return config if look_up(config, name) is not None else {**config, name: evaluate(rule, config)}


def computed_names(subject: Subject, base: dict[str, Any]) -> list[str]:
    """Return the undeclared fields that the class writes out beside those of the config: files that it wrote hold
    them."""
    known = {*defaults_of(subject.config_class), *(getattr(subject.config_class, "attribute_map", None) or {}), *base}
    try:
        written = read(subject, base).to_dict()
    except SubjectError:
        return []
    plain = (name for name, value in written.items() if isinstance(value, int | float | str))
    return sorted({*plain} - known)
