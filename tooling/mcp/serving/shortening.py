"""JSON objects that fit: long texts and lists are cut until they do, and each cut is named.

shortened({"plan": [{"diff": "..."}], ...}, 1000)["truncated"]  ->  [{"path": "plan[0].diff", "kept": 256, "of": 9000}]
"""

from __future__ import annotations

import json
from typing import Any, Final

_NAMED: Final = 20
"""Most cuts that are named; the last entry counts the others."""
_PATH: Final = 100


def shortened(document: dict[str, Any], most: int) -> dict[str, Any]:
    """The object itself when it fits; else a copy with `truncated`. Its top level keeps all keys."""
    if _size(document) <= most:
        return document
    limit = 1 << 15
    while True:
        cuts: list[dict[str, Any]] = []
        cut = {key: _cut(value, key, limit, cuts) for key, value in document.items()}
        named = cuts[:_NAMED]
        if len(cuts) > _NAMED:
            named.append({"path": "", "kept": 0, "of": len(cuts) - _NAMED})
        found = cut | {"truncated": named}
        if _size(found) <= most or limit <= 1:
            return found
        limit //= 2


def _cut(value: Any, path: str, limit: int, cuts: list[dict[str, Any]]) -> Any:
    """Of an object, as many entries stay as of a text characters; of a list fewer, since entries are longer."""
    if isinstance(value, str) and len(value) > limit:
        cuts.append({"path": path[:_PATH], "kept": limit, "of": len(value)})
        return f"{value[:limit]}... [{len(value) - limit} more characters]"
    if isinstance(value, list):
        kept = max(1, limit // 16)
        if len(value) > kept:
            cuts.append({"path": path[:_PATH], "kept": kept, "of": len(value)})
        return [_cut(item, f"{path}[{number}]", limit, cuts) for number, item in enumerate(value[:kept])]
    if isinstance(value, dict):
        kept = limit
        if len(value) > kept:
            cuts.append({"path": path[:_PATH], "kept": kept, "of": len(value)})
        names = list(value)[:kept]
        return {name: _cut(value[name], f"{path}.{name}", limit, cuts) for name in names}
    return value


def _size(document: dict[str, Any]) -> int:
    return len(json.dumps(document))
