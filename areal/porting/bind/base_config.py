"""Fields that modeling code reads although no config class declares them, as in `getattr(config, "head_dim", None)`.

A config.json may hold them, and published ones do; so the base config gets a value for each that has an effect, and
what the code takes without it is found by looking at models without it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from areal.porting.bind.expressions import ROTARY_FIELD, look_up, same
from areal.porting.bind.fitting import fit
from areal.porting.bind.legacy_rope import idle_spellings
from areal.porting.bind.observing import SlotSample, shapes
from areal.porting.bind.slots import ABSENT, LayerValues
from areal.porting.bind.variations import MISSING, changed, defaults_of, field_names, resized
from areal.porting.probe.instance import build, construct, logits, make_tokens, read
from areal.porting.probe.meanings import hinted
from areal.porting.probe.source import config_reads
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from areal.porting.bind.observing import Observer
    from areal.porting.bind.reading import ConfigReader
    from areal.porting.probe.subject import Subject


LENGTH: Final = 24
"""Of the sequences that two configs are compared by."""

TRIED: Final = (24, 12, True, 0.5)
"""Values that an undeclared field may have: no other size of a tiny config is 24."""


def with_undeclared(subject: Subject, base: dict[str, Any], skipped: Collection[str]) -> dict[str, Any]:
    """Return the config with a value for every undeclared field that changes the model. skipped: fields that are not
    asked. Nor are those that the class takes for older spellings of other fields: its configs do not hold them.

    Example: code reads `getattr(config, "head_dim", None)` and the config class does not declare head_dim. A model of
    {"head_dim": 24} has other shapes, so the field has an effect: the base config keeps that value, and
    `learn_absences` finds what the code takes without it (hidden_size // num_attention_heads).
    """
    try:
        instance = build(subject, base)
        tokens = make_tokens(instance, batch=1, length=12, seed=0)
        expected = logits(instance, tokens)
    except SubjectError:
        return base
    known = {*base, *field_names(base), *skipped, *dir(instance.hf_config), *vars(instance.hf_config)}
    known |= {*(getattr(subject.config_class, "attribute_map", None) or {})}
    for name in sorted(config_reads(subject).keys() - known):
        # What its name asks for, if no other size is that: a small one may be rounded to what others are.
        hint = hinted(name)
        for value in (*([hint] if hint > 0 and hint not in base.values() else []), *TRIED):
            trial = {**base, name: value}
            if name.startswith("_") or not _holds(subject, trial, name):
                continue
            found = _working_logits(subject, trial, tokens)
            if found is not None and not torch.equal(expected, found):
                base, expected = trial, found
                break
    return base


def without_aliases(subject: Subject, base: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the names that the class itself uses, where transformers accepts others: those of
    attribute_map, and legacy fields beside rope_parameters."""
    aliases = getattr(subject.config_class, "attribute_map", None) or {}
    older = idle_spellings(subject, base)
    return {
        name if aliases.get(name, name) in base else aliases[name]: value
        for name, value in base.items()
        if name not in older
    }


def _holds(subject: Subject, trial: dict[str, Any], name: str) -> bool:
    """Return whether a config that is made of the trial holds the field."""
    try:
        return name in read(subject, trial).to_dict()
    except SubjectError:
        return False


def _working_logits(subject: Subject, config: dict[str, Any], tokens: Tensor) -> Tensor | None:
    """Return what a config computes, None where it makes no working model."""
    try:
        found = logits(build(subject, config), tokens)
    except SubjectError:
        return None
    return found if bool(torch.isfinite(found).all()) else None


def learn_absences(observer: Observer, reader: ConfigReader) -> list[str]:
    """Give the reader the rules for undeclared fields that are absent, as if their class filled them; their names."""
    learned = []
    for name in reader.names:
        value = observer.base.get(name)
        if reader.defaults.get(name, MISSING) is not MISSING or value not in TRIED or name in reader.rules:
            continue
        slot = None
        for each, found in observer.values.items():
            entries = _present(found)
            if entries and all(same(entry, value) for entry in entries):
                slot = each
                break
        if slot is None:
            continue
        samples = _samples_without(observer, reader, name, slot)
        others = [other for other in reader.names if other != name]
        rule = fit(slot, samples, others, budget=observer.budget) if samples else None
        if rule is not None:
            reader.defaults[name] = None
            reader.rules[name] = rule
            learned.append(name)
    return learned


def _present(value: Any) -> list[Any]:
    """Return the values of a slot, of the layers that have the part."""
    return [entry for entry in value if entry is not ABSENT] if isinstance(value, LayerValues) else [value]


def _samples_without(observer: Observer, reader: ConfigReader, name: str, slot: str) -> list[SlotSample]:
    """Return the slot in configs that lack the field: the base, and one for each number that it may be made of,
    doubled."""
    found = _sample(observer, reader, slot, {name: MISSING})
    if not found:
        return []
    for other in _parts(found[0].value, {each: observer.base.get(each) for each in reader.names if each != name}):
        resizing = resized(observer.base, other, observer.base[other] * 2, reader.depth_field)
        found += _sample(observer, reader, slot, {name: MISSING, **resizing})
    return found


def _parts(value: Any, numbers: Mapping[str, Any]) -> list[str]:
    """Return the fields that a size may be made of: those that are equal to it, and those that give it when divided."""
    size = next(iter(_present(value)), None)
    if type(size) is not int:
        return []
    whole = {name: number for name, number in numbers.items() if type(number) is int and number > 1}
    found = {name for name, number in whole.items() if number == size}
    for name, number in whole.items():
        divisors = [other for other, divisor in whole.items() if divisor * size == number]
        found |= {name, *divisors} if divisors else set()
    return sorted(found)


def _sample(observer: Observer, reader: ConfigReader, slot: str, changes: dict[str, Any]) -> list[SlotSample]:
    config = reader.complete(changed(observer.base, changes))
    written = absent_value(observer, changes)
    if written is not None:
        return [SlotSample(config, written, 1)]
    outcome = observer.observe(changes)
    if outcome.kind not in ("proven", "no_effect") or slot not in outcome.values:
        return []
    value = outcome.values[slot]
    return [SlotSample(config, value, len(value) if isinstance(value, LayerValues) else 1)]


def absent_value(observer: Observer, changes: Mapping[str, Any]) -> Any:
    """Return the value of the field whose absence does the same as that value; None where none is found.

    Modules usually keep what they made of it under the same name. Weights and logits show whether it is the value: they
    must be the same to the last bit. That takes a tenth of an inference.
    """
    name = next(name for name, value in changes.items() if value is MISSING)
    try:
        without = build(observer.subject, changed(observer.base, changes))
        tokens = make_tokens(without, batch=2, length=LENGTH, seed=0)
        expected = logits(without, tokens)
    except SubjectError:
        return None
    kept = [getattr(module, name, None) for module in without.model.modules()]
    for value in dict.fromkeys(each for each in kept if type(each) in (bool, int, float)):
        try:
            beside = build(observer.subject, changed(observer.base, {**changes, name: value}))
            if shapes(beside) == shapes(without) and torch.equal(logits(beside, tokens), expected):
                return value
        except SubjectError:
            continue
    return None


# -------------------------------------------------------------------------------------------------------------- derived

# Values that a config class computes and writes out, but that no config.json needs: they are left out of the base.


def without_derived(subject: Subject, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config without fields that the class does not declare and computes itself: kept, they would stay
    behind when what they are computed from is changed. rope_parameters stays: it is how files are written that the
    class wrote."""
    declared = {*defaults_of(subject.config_class), *(subject.raw_config or {}), "model_type", "architectures"}
    declared.add(ROTARY_FIELD)
    for name in [name for name in config if name not in declared]:
        fewer = changed(config, {name: MISSING})
        try:
            before, after = (read(subject, each).to_dict() for each in (config, fewer))
        except SubjectError:
            continue
        if name in after and same(before[name], after[name]):
            config = fewer
    return config


# ---------------------------------------------------------------------------------------------------------------- depth

# Which field says how many layers there are.


_COUNTS: Final = re.compile(r"layer|block|depth")
"""In names of fields that count layers."""


def depth_field(subject: Subject, base: dict[str, Any], num_layers: int) -> str:
    """Return the field whose change gives the model one layer more; "" where none does, or only lists over layers that
    grow with it do."""
    for name in field_names(base):
        value = look_up(base, name)
        if type(value) is not int or value != num_layers:
            continue
        together = resized(base, name, value + 1, name)
        lists = {other: entries for other, entries in together.items() if other != name}
        if lists and not _COUNTS.search(name) and _has_layer(subject, changed(base, lists), num_layers):
            continue  # the lists count by themselves; a number of heads that equals theirs is nothing to them
        for changes in (together, {name: value + 1}):
            if _has_layer(subject, changed(base, changes), num_layers):
                return name
    return ""


def _has_layer(subject: Subject, config: dict[str, Any], number: int) -> bool:
    try:
        with torch.device("meta"):
            model = construct(subject, read(subject, config))
    except SubjectError:
        return False
    return any(re.search(rf"(^|\.){number}\.", name) for name, _ in model.named_parameters())
