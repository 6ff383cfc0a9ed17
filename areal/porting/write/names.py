"""Checks what goes from a report into source code.

Reports are made from configs and modeling files of strangers: every name of a config field or parameter, every literal
and one-line text that reaches a template passes through here.
"""

from __future__ import annotations

import keyword
import math
import re
from typing import Any, Final

from areal.porting.records import ReportError

_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_PARAMETER: Final = re.compile(r"[A-Za-z_*{][A-Za-z0-9_*{}]*(\.[A-Za-z0-9_*{},]+)*")
_MODEL_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME: Final = 120
_MAX_TEXT: Final = 400
_TRIPLE: Final = '"' * 3


def field_name(name: Any) -> str:
    """Check the name of a config field; a dot reaches into an object."""
    return _matching(name, _FIELD, "a config field")


def parameter_name(name: Any) -> str:
    """Check the name of a module or parameter; `*` is the number of the layer, `{expert}` that of the expert, and
    `{q,k,v}` is one of several."""
    return _matching(name, _PARAMETER, "a parameter")


def model_type_name(name: Any) -> str:
    """Check a model_type, which becomes a key of the registry."""
    return _matching(name, _MODEL_TYPE, "a model_type")


def class_name(name: Any) -> str:
    """Check the name of a class of transformers, or of a modeling file."""
    return _matching(name, _CLASS, "a class")


def attribute_name(field: str) -> str:
    """Return the attribute of a field: its last part, never a keyword, never private."""
    name = field.rpartition(".")[2].strip("_").lower() or "field"
    name = name if name[0].isalpha() else f"field_{name}"
    return f"{name}_" if keyword.iskeyword(name) or keyword.issoftkeyword(name) else name


def literal(value: Any) -> str:
    """Return a JSON scalar, list or object as ASCII source of Python."""
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return f'float("{value}")'
        return re.sub(r"e([+-])0", r"e\1", repr(value))
    if isinstance(value, str):
        text = ascii(value)
        return text if '"' in value else f'"{text[1:-1]}"' if "'" not in value else text
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        # Sorted, as in a receipt: what is written must not depend on where a report was kept.
        items = sorted((str(key), item) for key, item in value.items())
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in items)}}}"
    raise ReportError(f"the analysis reports a value of type {type(value).__name__}")


def tuple_literal(values: Any) -> str:
    """Values as a tuple."""
    items = [literal(value) for value in values]
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def one_line(text: Any, limit: int = _MAX_TEXT) -> str:
    """Text for a docstring or a comment: printable ASCII in one line, without backslashes and triple quotation marks.
    It is read by people only."""
    plain = " ".join(str(text).split()).encode("ascii", "replace").decode()
    plain = "".join(character if character.isprintable() else "?" for character in plain)
    return plain.replace("\\", "/").replace(_TRIPLE, "'''")[:limit].rstrip('"').strip()


def _matching(name: Any, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(name, str) or len(name) > _MAX_NAME or not pattern.fullmatch(name):
        raise ReportError(
            f"{str(name)[:_MAX_NAME]!a} cannot be written into source code as the name of {what}",
            fix="rename it in the config or the modeling file: ASCII letters, digits, '_' and '.'",
        )
    return name
