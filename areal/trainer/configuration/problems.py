"""Problems of a configuration, in words: which key, where it was written, what was expected, what was probably
meant.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from areal.api import Config, ConfigError, UsageError
from areal.trainer.configuration import schema as schema_of
from areal.utils.suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


KeyPath = tuple[str, ...]
DEFAULT: Final = "default"
"""Origin of a value that was not written anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong in a configuration."""

    key: str
    """Dotted key, empty when the problem is not about one."""
    where: str
    """"gsm8k.yaml:12", "command line", or empty when unknown."""
    message: str
    fix: str = ""
    """What to write instead, as an instruction; empty when the message is all that is known."""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.key}{where}: {self.message}" if self.key else f"{self.message}{where}"

    def with_fix(self, indent: str = "") -> str:
        """Return the problem in words, with a line about the fix where the message does not contain it."""
        return str(self) if not self.fix or self.fix in self.message else f"{self}\n{indent}fix: {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The class a mapping is checked against, and its alternatives (for keys that only another `kind` has)."""

    cls: type[Config]
    others: tuple[type[Config], ...] = ()


def raise_all(problems: Sequence[Problem]) -> NoReturn:
    """Raise one ConfigError that lists all problems."""
    details = tuple(asdict(problem) for problem in problems)
    if len(problems) == 1:
        where = problems[0].where or problems[0].key
        raise ConfigError(problems[0].with_fix(), where=where, fix=problems[0].fix, problems=details)
    listing = "\n".join(f"  - {problem.with_fix('    ')}" for problem in problems)
    places = ", ".join(dict.fromkeys(problem.where or problem.key for problem in problems))
    fixes = "; ".join(problem.fix for problem in problems if problem.fix)
    message = f"{len(problems)} problems in the configuration:\n{listing}"
    raise ConfigError(message, where=places, fix=fixes, problems=details)


def explain(detail: Mapping[str, Any], schema: Schema, origins: Mapping[KeyPath, str]) -> Problem:
    """Turn one error of pydantic (an entry of `ValidationError.errors()`) into a Problem."""
    path: KeyPath = tuple(str(part) for part in detail["loc"])
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):
        where = _mentioned(str(cause), path, origins)
        return Problem(key=".".join(path), where=where, message=str(cause), fix=cause.fix)
    key, where = ".".join(path), _origin(path, origins)
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        meant = _meant(path, schema)
        return Problem(key=key, where=where, message=f"unknown key; {meant}", fix=meant)
    if detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return Problem(key=key, where=where, message="required key is missing", fix=f"set {key}")
    expected, message = _mismatch(path, detail, schema)
    return Problem(key=key, where=where, message=message, fix=f"set {key} to {expected}")


def remove(value: dict[str, Any], location: Sequence[str | int]) -> KeyPath:
    """Take the key at a pydantic location (or the list it points into) out of `value`; returns the key, () when there
    is none.
    """
    node: Any = value
    path: KeyPath = ()
    for part in location:
        path = (*path, str(part))
        inner = node.get(part) if isinstance(node, dict) else None
        if not isinstance(inner, dict) or len(path) == len(location):
            if not isinstance(node, dict) or part not in node:
                return ()
            del node[part]
            return path
        node = inner
    return ()


def repeats(detail: Mapping[str, Any], removed: Sequence[KeyPath]) -> bool:
    """Whether an error is only a consequence of keys that were taken out: it argues about one of them by name."""
    cause = str(detail.get("ctx", {}).get("error", detail["msg"]))
    return any(re.search(rf"\b{re.escape(path[-1])}\b", cause) for path in removed)


def _mismatch(path: KeyPath, detail: Mapping[str, Any], schema: Schema) -> tuple[str, str]:
    """Return what a value had to be, and the message about what it is."""
    found = schema_of.lookup(schema.cls, path)
    if found is not None:
        expected = schema_of.describe(found.annotation)
    elif len(path) > 1 and path[-1].isdigit() and (outer := schema_of.lookup(schema.cls, path[:-1])):
        expected = schema_of.describe(outer.annotation)
    else:
        expected = str(detail["msg"])
    value = detail["input"]
    hint = ""
    if isinstance(value, str) and found is not None and found.annotation in (int, float):
        hint = " (remove the quotes)" if re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", value) else ""
    elif value is None and found is not None and found.section is not None:
        hint = "; remove the key to keep its defaults"
    elif isinstance(value, str) and found is not None and expected.startswith("one of"):
        near = nearest(value, re.findall(r'"([^"]+)"', expected), limit=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
    return expected, f"expected {expected}, got {_show(value)}{hint}"


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _meant(path: KeyPath, schema: Schema) -> str:
    """Return what to write instead of an unknown key: the same name elsewhere, else a similar one here, else one
    anywhere.
    """
    *parents, leaf = path
    section = schema_of.lookup(schema.cls, tuple(parents)).section if parents else schema.cls  # type: ignore[union-attr]  # only sections have children
    beside = list(schema_of.fields_of(section)) if section else []
    prefix = "".join(f"{part}." for part in parents)
    same = [key for key in schema_of.key_paths(schema.cls) if key.rpartition(".")[2] == leaf]
    kinds = [other for other in schema.others if schema_of.lookup(other, path) is not None]
    if kinds:
        names = [schema_of.fields_of(other)["kind"].default for other in kinds]
        hint = f"; did you mean {' or '.join(same[:3])}?" if same else ""
        return f"it exists only with kind: {' or '.join(names)}{hint}"
    near = list(same)
    near += [f"{prefix}{name}" for name in nearest(leaf, beside)]
    if not near:
        by_leaf: dict[str, list[str]] = {}
        for key in schema_of.key_paths(schema.cls):
            by_leaf.setdefault(key.rpartition(".")[2], []).append(key)
        near = [key for name in nearest(leaf, by_leaf) for key in by_leaf[name]]
    if near:
        return f"did you mean {' or '.join(near[:3])}?"
    return f"known keys here are {', '.join(beside)}"


def _origin(path: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    """Return where a key was written; for an item of a list, where the list was; for a section, where its first key
    was.
    """
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    # A section that only exists because one of its keys was set from the command line.
    return next((origin for key, origin in origins.items() if key[: len(path)] == path), "") if path else ""


def _mentioned(message: str, path: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    """Return where the fields that a message names were written."""
    places: list[str] = []
    for key, place in origins.items():
        name = ".".join(key[len(path) :]) if key[: len(path)] == path else ""
        if name and place not in places and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", message):
            places.append(place)
    return ", ".join(places) or origins.get(path, "")
