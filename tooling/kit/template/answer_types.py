"""The types that answers may have: values from text, checked values, and values from copier.yml.

    parsed("int", "3", "workers")        # 3; from the command line
    typed("float", 3, "weight")          # 3.0; from JSON, where types are there already
    cast("str", 3, "label")              # "3"; as a template's author wrote it

Each raises UsageError with the given `where` (the question's name) for a value that is not of its type.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tooling.cli.errors import UsageError
from tooling.kit.template.expressions import FALSE_WORDS, TRUE_WORDS

TYPES = ("bool", "float", "int", "json", "path", "str", "yaml")


def parsed(kind: str, text: str, where: str) -> Any:
    """A value of the type, from text."""
    try:
        if kind == "bool":
            return _bool(text)
        if kind == "int":
            return int(text)
        if kind == "float":
            return _finite(float(text))
        if kind == "json":
            return json.loads(text, parse_constant=_no_constant)
        return _yaml(text) if kind == "yaml" else text
    except ValueError as error:
        said = f": {error}" if kind in {"json", "yaml"} else ""
        raise UsageError(f"{text!r} is no {kind}{said}", where=where, fix=f"expected {kind}") from error


def _bool(text: str) -> bool:
    folded = text.strip().lower()
    if folded not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError(text)
    return folded in TRUE_WORDS


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def typed(kind: str, value: Any, where: str) -> Any:
    """A given value, which has to be of the type already (an int passes as a float)."""
    fits: tuple[type, ...] = {"bool": (bool,), "int": (int,), "float": (float, int)}.get(kind, (str,))
    if kind in {"json", "yaml"}:
        return value
    if not isinstance(value, fits) or (isinstance(value, bool) and kind != "bool"):
        raise UsageError(f"got {value!r} of type {type(value).__name__}", where=where, fix=f"expected {kind}")
    return parsed("float", str(value), where) if kind == "float" else value


def cast(kind: str, value: Any, where: str) -> Any:
    """A value as the template's author wrote it: text is parsed, numbers become text where text is asked for."""
    if isinstance(value, str):
        return parsed(kind, value, where)
    if kind in {"str", "path"} and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if kind == "bool" and isinstance(value, (int, float)):
        return bool(value)
    return typed(kind, value, where)
