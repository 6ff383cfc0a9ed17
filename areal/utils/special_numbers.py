"""Infinite numbers in JSON, which has none: written as transformers writes them, `{"__float__": "Infinity"}`.

Python reads and writes a bare `Infinity` as well, which no other reader takes; older config.json files hold that.
"""

from __future__ import annotations

import math
from typing import Any, Final

TAG: Final = "__float__"
_NUMBERS: Final = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def tagged(value: Any) -> Any:
    """Return JSON values with numbers that JSON lacks in their tagged form; tuples become lists."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return {TAG: name}
    if isinstance(value, dict):
        return {key: tagged(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [tagged(each) for each in value]
    return value


def untagged(value: Any) -> Any:
    """Return JSON values with tagged numbers as numbers: the inverse of `tagged`."""
    if isinstance(value, dict):
        if value.keys() == {TAG} and value[TAG] in _NUMBERS:
            return _NUMBERS[value[TAG]]
        return {key: untagged(each) for key, each in value.items()}
    if isinstance(value, list):
        return [untagged(each) for each in value]
    return value
