"""Older spellings of rotary settings: rope_theta and rope_scaling, beside or instead of rope_parameters.

Published configs have them, and most classes turn them into rope_parameters. Some read one of them only beside the
other, or declare one that they never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import ROTARY_FIELD, same
from areal.porting.bind.variations import defaults_of
from areal.porting.probe.instance import read
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.porting.probe.subject import Subject

LEGACY_ROPE_FIELDS: Final = frozenset({"rope_scaling", "rope_theta"})
_THETA: Final = 4321.0
_SCALING: Final = {"rope_type": "linear", "factor": 2.5}


def idle_spellings(subject: Subject, base: Mapping[str, Any]) -> frozenset[str]:
    """Return those that do not count in this config, since it has rope_parameters."""
    if not base.get(ROTARY_FIELD):
        return frozenset()
    alone = _rotary(subject, {name: value for name, value in base.items() if name not in LEGACY_ROPE_FIELDS})
    if same(alone, base[ROTARY_FIELD]):
        return LEGACY_ROPE_FIELDS
    return LEGACY_ROPE_FIELDS - defaults_of(subject.config_class).keys()


def unread_spellings(subject: Subject, base: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the class overlooks, as `take_rotary` names it. A spelling that the class refuses is none that it
    overlooks. Beside rope_parameters all classes do; that matters for those which write out what is not true then.

    Example: {"rope_theta": 4321.0} without rope_parameters. A class that answers with rope_parameters {"rope_theta":
    4321.0} reads the legacy field; one that answers 10000.0 overlooks it, and "rope_theta" is part of the answer:
    families of that type then refuse configs that have rope_theta alone, since transformers would compute with another
    value.
    """
    bare = {name: value for name, value in base.items() if name not in (ROTARY_FIELD, *LEGACY_ROPE_FIELDS)}
    alone = _rotary(subject, {**bare, "rope_theta": _THETA})
    scaled = _rotary(subject, {**bare, "rope_scaling": _SCALING, "rope_theta": _THETA})
    entries = {"rope_type": "default", "rope_theta": _THETA}
    beside = _written(subject, {**bare, ROTARY_FIELD: entries})
    unread = {
        "rope_parameters+rope_theta": (beside.get(ROTARY_FIELD) or {}).get("rope_theta") == _THETA
        and beside.get("rope_theta", _THETA) != _THETA,
        "rope_theta": isinstance(alone, dict) and alone.get("rope_theta") != _THETA,
        "rope_scaling": isinstance(scaled, dict) and scaled.get("factor") != _SCALING["factor"],
        "rope_scaling+rope_theta": isinstance(scaled, dict) and scaled.get("rope_theta") != _THETA,
    }
    return tuple(name for name, overlooked in unread.items() if overlooked)


def _rotary(subject: Subject, config: dict[str, Any]) -> Any:
    """Return what the class makes of it; None where it refuses."""
    return _written(subject, config).get(ROTARY_FIELD)


def _written(subject: Subject, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config as the class writes it; nothing where it refuses."""
    try:
        found: dict[str, Any] = read(subject, config).to_dict()
    except SubjectError:
        return {}
    return found
