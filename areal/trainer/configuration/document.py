"""YAML as configuration needs it: YAML 1.2 scalars, no duplicate keys, and the line of every key.

No types, no defaults.

Unlike YAML 1.1, `1e-4` is a number, and `no`, `on` and `12:30:00` are text. Only plain data: tags that build objects
are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KeyPath = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_TAG_PROBLEM = "tag {!r} is not supported: a configuration holds plain values only"
# The YAML 1.2 core schema (yaml.org/spec/1.2.2, section 10.3.2): tag, pattern, characters a match can start with.
_CORE_SCHEMA: tuple[tuple[str, str, str], ...] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Content of one file, with the line (from 1) of every key."""

    value: dict[str, Any]
    lines: Mapping[KeyPath, int]


def read_document(path: Path) -> Document:
    """Read a file whose top level is a mapping; an empty file is an empty mapping.

    Raises ConfigError with file, line and column for anything that is not such a file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = sorted(other.name for other in path.parent.glob("[!.]*.yaml")) if path.parent.is_dir() else []
        hint = f"; that folder has {', '.join(near[:8])}" if near else ""
        raise ConfigError(f"{path}: no such config file{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the config file as UTF-8 text: {error}") from error
    reader = _Reader(str(path))
    value = reader.read(text)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}:1: expected a mapping of configuration keys at the top level, got {value!r}")
    return Document(value=value, lines=reader.lines)


def parse_value(text: str, *, where: str) -> Any:
    """Read one YAML value such as "1e-4", "[1, 2]" or "{tau_pos: 2}"; `where` opens the error message.

    Nothing at all, as in `model.path=`, is the empty text: null says null.
    """
    if not text.strip():
        return ""
    return _Reader(where).read(text)


def dump(value: Mapping[str, Any]) -> str:
    """YAML text that `read_document` and YAML 1.1 readers both take for `value`; keys keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by the core schema only."""

    # A class attribute in PyYAML too, which its type information calls an instance one.
    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}  # type: ignore[misc]  # as PyYAML has it


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write shared values out: anchors in a saved configuration only confuse."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds these line breaks of Unicode into spaces unless they are escaped.
    style = '"' if set(text) & {"\x85", "\u2028", "\u2029", "\ufeff"} else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _first in _CORE_SCHEMA:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"{_TAG}{_name}", re.compile(rf"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
        )


class _Reader:
    """Turns one YAML text into plain values and remembers where keys stood."""

    def __init__(self, source: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._source = source
        self._open: set[int] = set()

    def read(self, text: str) -> Any:
        try:
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
            raise ConfigError(f"{self._source}{position}: not valid YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{self._source}: not valid YAML: {error}") from error
        return None if node is None else self._value(node, ())

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in (f"{_TAG}seq", f"{_TAG}map"):
            raise self._error(node, _TAG_PROBLEM.format(node.tag))
        if id(node) in self._open:
            raise self._error(node, "an alias that contains itself has no finite value")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._value(item, (*path, str(index))) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._error(
                    key_node, f"keys must be text, got {getattr(key_node, 'value', None)!r}; put it in quotes"
                )
            if key in result:
                raise self._error(key_node, f"duplicate key {key!r}, first given in line {first_lines[key]}; keep one")
            first_lines[key] = key_node.start_mark.line + 1
            self.lines[*path, key] = first_lines[key]
            result[key] = self._value(value_node, (*path, key))
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" | "float" as kind:
                return self._number(node, kind)
        raise self._error(node, _TAG_PROBLEM.format(node.tag))

    def _number(self, node: yaml.ScalarNode, kind: str) -> int | float:
        text: str = node.value
        try:
            if kind == "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError as error:  # Only an explicit tag such as `!!int abc` gets here.
            raise self._error(node, f"{text!r} is not of type {kind}") from error

    def _error(self, node: yaml.Node, problem: str) -> ConfigError:
        return ConfigError(f"{self._source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}: {problem}")
