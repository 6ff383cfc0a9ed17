"""Values that a config class computes and writes out, but that no config.json needs: they are left out of the base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.porting.bind.expressions import ROTARY_FIELD, same
from areal.porting.bind.variations import MISSING, changed, defaults_of
from areal.porting.probe.instance import read
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from areal.porting.probe.subject import Subject


def without_derived(subject: Subject, config: dict[str, Any]) -> dict[str, Any]:
    """The config without fields that the class does not declare and computes itself: kept, they would stay behind when
    what they are computed from is changed. rope_parameters stays: it is how files are written that the class wrote."""
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


def computed_names(subject: Subject, base: dict[str, Any]) -> list[str]:
    """Undeclared fields that the class writes out beside those of the config: files that it wrote hold them."""
    known = {*defaults_of(subject.config_class), *(getattr(subject.config_class, "attribute_map", None) or {}), *base}
    try:
        written = read(subject, base).to_dict()
    except SubjectError:
        return []
    plain = (name for name, value in written.items() if isinstance(value, int | float | str))
    return sorted({*plain} - known)
