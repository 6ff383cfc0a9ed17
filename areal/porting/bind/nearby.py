"""What a single change of a field may mean where the expressions of the moment are wrong about it.

A guess that is tried by parity takes a fraction of the time of an inference, and most wrong expressions are wrong about
one slot: a bias that is not there, a width that is a multiple, a scale that is a power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import fields_of, look_up, same
from areal.porting.bind.slots import ABSENT, ROTARY_SLOT, LayerValues
from areal.porting.family import Constant, Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.porting.bind.observations import Observation
    from areal.porting.family import Expression

MOST: Final = 8
"""Guesses for one config."""

POWERS: Final = (-1.0, -0.5, 0.5)
"""Of a field, that a factor may be."""


def nearby(
    expressions: Mapping[str, Expression], base: Observation, changes: Mapping[str, Any]
) -> Iterator[dict[str, Expression]]:
    """The expressions with another one for one slot each; nothing for several changes at once, or none to a value."""
    if len(changes) != 1:
        return
    (name, now), was = next(iter(changes.items())), look_up(base.config, next(iter(changes)))
    if type(was) not in (bool, int, float, str) or type(now) is not type(was):
        return
    found: list[dict[str, Expression]] = []
    slots = expressions.keys() & base.values.keys() - {ROTARY_SLOT}
    # What no field is known for yet is the likeliest to be wrong.
    for slot in sorted(slots, key=lambda slot: (not isinstance(expressions[slot], Constant), slot)):
        value = common_value(base.values[slot])
        if value is ABSENT:
            continue
        if name in fields_of(expressions[slot]):
            found.append({slot: Constant(value)})
        else:
            found += [{slot: other} for other in _readings(name, was, now, value)]
    yield from ({**expressions, **each} for each in found[:MOST])


def common_value(value: Any) -> Any:
    """The value of a slot, in all layers that have it; ABSENT where these differ."""
    entries = [entry for entry in value if entry is not ABSENT] if isinstance(value, LayerValues) else [value]
    alike = bool(entries) and all(type(entry) is type(entries[0]) and same(entry, entries[0]) for entry in entries)
    return entries[0] if alike else ABSENT


def _readings(name: str, was: Any, now: Any, value: Any) -> Iterator[Expression]:
    """What a slot may be that was this value before the field was changed."""
    if type(value) is type(was) and same(value, was):
        yield Field(name)
    if isinstance(was, bool | str) or isinstance(value, bool) or was <= 1 or now <= 0:
        return
    if isinstance(value, int) and isinstance(was, int) and value > was and value % was == 0:
        yield Constant(value // was * now)
    if isinstance(value, float):
        yield from (Constant(now**power) for power in POWERS if same(value, was**power))
