"""Undeclared fields that a config class turns into rope_parameters.partial_rotary_factor, and that no model reads.

What was written there is what counts afterwards, so a base config that kept the field would hide what it does.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import ROTARY_FIELD, look_up, same
from areal.porting.bind.rotary import PARTIAL, is_layered
from areal.porting.bind.variations import MISSING, changed, defaults_of
from areal.porting.probe.instance import read
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.porting.probe.subject import Subject

_DIMS: Final = (12, 6)
"""Numbers of rotated dimensions that are tried; heads of tiny configs have more."""
_READ_ELSEWHERE: Final = frozenset({PARTIAL, ROTARY_FIELD, "rope_scaling", "rope_theta", "model_type", "architectures"})


@dataclass(frozen=True)
class RotatedField:
    """One such field."""

    name: str
    size: str | None
    """The part is the field's value over that of this field; None where it is made in another way."""


def rotated_fields(subject: Subject, base: Mapping[str, Any]) -> list[RotatedField]:
    """Return the undeclared fields that decide the rotated part where rope_parameters does not say it. base: a whole
    config.

    Example: the class of minimax_m2 turns {"rotary_dim": 12, "head_dim": 24} into rope_parameters.partial_rotary_factor
    0.5 and no model reads rotary_dim. It is found by writing rotary_dim 12 and 6 into a config that does not say the
    factor: the class writes two different factors, 12/24 and 6/24. The answer is [RotatedField("rotary_dim",
    "head_dim")].
    """
    entries = base.get(ROTARY_FIELD)
    if not isinstance(entries, dict) or is_layered(entries):
        return []
    known = {*defaults_of(subject.config_class), *(getattr(subject.config_class, "attribute_map", None) or {})}
    candidates = sorted({*base, *_texts_of_class(subject)} - known - _READ_ELSEWHERE)
    silent = {name: value for name, value in entries.items() if name != PARTIAL}
    bare = changed({**base, ROTARY_FIELD: silent}, dict.fromkeys(candidates, MISSING))
    found = []
    for name in candidates:
        parts = [_part(subject, {**bare, name: dim}) for dim in _DIMS]
        written = {**bare, name: _DIMS[0], ROTARY_FIELD: {**silent, PARTIAL: 0.25}}
        if None not in parts and not same(*parts) and same(_part(subject, written), 0.25):
            # The field of which `name` over the field is the part, whatever their values.
            size = None
            for other, value in bare.items():
                if size is None and type(value) is int and value > 1:
                    sizes = [{**bare, name: dim, other: n} for dim in _DIMS for n in (value, 2 * value, 4 * value)]
                    if all(same(_part(subject, each), each[name] / each[other]) for each in sizes):
                        size = other
            found.append(RotatedField(name, size))
    return found


def without_rotated_fields(base: dict[str, Any], folded: list[RotatedField]) -> dict[str, Any]:
    """Return the config without them: what they mean was written into its rope_parameters when it was completed."""
    return changed(base, dict.fromkeys([each.name for each in folded if each.name in base], MISSING))


def _part(subject: Subject, config: Mapping[str, Any]) -> float | None:
    """Return the rotated part that the class writes; None where it refuses or says nothing."""
    try:
        found = look_up(read(subject, dict(config)).to_dict(), f"{ROTARY_FIELD}.{PARTIAL}")
    except SubjectError:
        return None
    return float(found) if isinstance(found, int | float) else None


def _texts_of_class(subject: Subject) -> set[str]:
    """Return the literals in the file of the config class that may be names of fields that it asks for."""
    name = subject.config_class.__module__.rpartition(".")[2]
    found: set[str] = set()
    for path in (path for path in subject.source_files if path.stem == name):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        literals = [each.value for call in calls for each in call.args if isinstance(each, ast.Constant)]
        found |= {text for text in literals if isinstance(text, str) and text.isidentifier()}
    return found
