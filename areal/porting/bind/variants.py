"""Which of the proven configs a generated test runs again: few, and each for a reason that its name says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.accounting import SKIPPED
from areal.porting.bind.expressions import ROTARY_FIELD, fields_of, look_up
from areal.porting.bind.variations import MISSING, changed
from areal.porting.family import Variant

if TYPE_CHECKING:
    from areal.porting.bind.binder import Binder
    from areal.porting.bind.observing import Outcome

MOST: Final = 12
MOST_JOINT: Final = 2
STEADY: Final = 1 / 4
"""Part of the tolerance that rounding may take in a config of the test: it has other tokens, which round otherwise."""


def choose(binder: Binder) -> list[Variant]:
    """Flipped flags, other rotary types, nulls, lists, other numbers, in this order, then some of many changes."""
    # Others were proven as well, but no expressions explain them: families refuse them.
    explained = [dict(each.changes) for each in binder.observations]
    proven, joint = (
        [
            each
            for each in outcomes
            if each.kind == "proven"
            and each.parity <= STEADY * each.tolerance
            and dict(each.changes) in explained
            and MISSING not in each.changes.values()
            and not set(each.changes) & (binder.restricted.keys() | SKIPPED)
        ]
        for outcomes in (binder.outcomes, binder.joint_outcomes)
    )
    # Rotary settings may be proven and yet refused, since no expression says what they change.
    rotary = [changes[ROTARY_FIELD] for changes in binder.choices.get(ROTARY_FIELD, ())]
    proven = [each for each in proven if ROTARY_FIELD not in each.changes or each.changes[ROTARY_FIELD] in rotary]
    ranked = sorted(proven, key=lambda each: _rank(binder, each))
    chosen: dict[str, Variant] = {}
    for outcome in ranked:
        name = _name(binder, outcome)
        if name not in chosen and len(chosen) < MOST - MOST_JOINT:
            chosen[name] = _variant(binder, name, outcome)
    joint.sort(key=lambda each: -len(each.changes))
    for number, outcome in enumerate(joint[:MOST_JOINT], 1):
        name = f"many changes {number}"
        chosen[name] = _variant(binder, name, outcome)
    return list(chosen.values())


def _variant(binder: Binder, name: str, outcome: Outcome) -> Variant:
    """Its overrides are whole fields: an object in which one entry changes is written out."""
    whole = changed(binder.observer.base, outcome.changes)
    tops = {key if key in whole else key.partition(".")[0] for key in outcome.changes}
    overrides = {key: whole[key] for key in sorted(tops, key=list(whole).index)}
    return Variant(name=name, overrides=overrides, parity=outcome.parity, tolerance=outcome.tolerance)


def _main_field(outcome: Outcome) -> str:
    return next((name for name, value in outcome.changes.items() if not isinstance(value, list)), min(outcome.changes))


def _rank(binder: Binder, outcome: Outcome) -> tuple[int, int]:
    """Changes that decide something before those of sizes; the more slots read the field, the later."""
    name = _main_field(outcome)
    value = outcome.changes[name]
    kind = 5
    if isinstance(value, bool):
        kind = 0
    elif name == ROTARY_FIELD:
        kind = 1
    elif value is None or look_up(binder.observer.base, name) is None:
        kind = 2
    elif isinstance(value, list):
        kind = 3
    elif value in (0, 1):
        kind = 2
    elif isinstance(value, str):
        kind = 4
    readers = sum(name in fields_of(expression) for expression in binder.expressions.values())
    return kind, readers if kind == 5 else 0


def _name(binder: Binder, outcome: Outcome) -> str:
    name = _main_field(outcome)
    value: Any = outcome.changes[name]
    if name == ROTARY_FIELD:
        kinds = [entry.get("rope_type") for entry in value.values() if isinstance(entry, dict)] or [
            value.get("rope_type")
        ]
        base = look_up(binder.observer.base, ROTARY_FIELD)
        if isinstance(base, dict) and value.get("partial_rotary_factor") != base.get("partial_rotary_factor"):
            return f"partial rotary {value.get('partial_rotary_factor')}"
        return "rotary " + " ".join(dict.fromkeys(str(kind) for kind in kinds))
    if isinstance(value, list):
        return f"other {name}"
    return f"{name} {value}".lower() if isinstance(value, bool | None) else f"{name} {value}"
