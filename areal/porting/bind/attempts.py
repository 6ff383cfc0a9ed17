"""Changes that go with another value of a field where the class or the model refuses that value alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.porting.bind.expressions import look_up

if TYPE_CHECKING:
    from areal.porting.bind.reading import ConfigReader


def attempts(reader: ConfigReader, name: str, changes: dict[str, Any], value: Any) -> list[dict[str, Any]]:
    """The changes, and others that may go with the value where these are refused: lists over layers that were resized
    with it stay as they are, or are left to the class to fill."""
    found = [changes]
    if len(changes) > 1:
        found.append({name: value})
    filled = {other: None for other in reader.per_layer & reader.rules.keys() if other != name}
    if filled and all(reader.defaults.get(other) is None for other in filled):
        found.append({name: value, **filled})
    if value is None:
        # Layers of some kinds cannot do without it: then all layers are of another kind.
        for other in sorted(reader.per_layer - {name}):
            entries = look_up(reader.base, other)
            if isinstance(entries, list):
                kinds = dict.fromkeys(entry for entry in entries if isinstance(entry, str))
                found += [{name: None, other: [kind] * len(entries)} for kind in kinds]
    return found
