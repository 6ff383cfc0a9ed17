"""Load a run configuration: YAML file, then `key=value` overrides, then validation.

Every value knows where it came from.

    resolved = load_config(Path("gsm8k.yaml"), ["actor.lr=1e-4", "objective.surrogate.clip_high=0.28"])
    resolved.config.actor.lr          # 0.0001
    resolved.provenance["actor.lr"]   # "command line"; others say "gsm8k.yaml:12" or "default"

All problems are reported together in one ConfigError. Nothing is coerced: "64" is not a number and true is not 1.
Whether a valid configuration can also be *run* is decided by `areal.trainer.configuration.validation.validate_run`.

The YAML is of version 1.2, without duplicate keys: unlike in 1.1, `1e-4` is a number, and `no`, `on` and `12:30:00` are
text. Only plain data: tags that build objects are errors.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import yaml

from areal.api import ConfigError
from areal.trainer.config import DPOConfig, PPOConfig, RewardModelConfig, RowsConfig, RunConfig, SFTConfig
from areal.trainer.configuration import schema as schema_of
from areal.trainer.configuration.problems import DEFAULT, KeyPath, Problem, Schema, explain, raise_all, remove, repeats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic import TypeAdapter


KINDS: Final[dict[str, type[PPOConfig] | type[RowsConfig]]] = {
    "rl": PPOConfig,
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "reward_model": RewardModelConfig,
}
"""Value of the top-level key `kind`, which selects the trainer, to its configuration class."""

COMMAND_LINE: Final = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """A valid configuration and the origin of each of its values."""

    config: PPOConfig | RowsConfig
    provenance: Mapping[str, str]
    """Dotted key of every leaf to "default", "<file name>:<line>" or "command line"."""
    source: Path | None
    """The file that was read."""


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Read `path` (None starts from the defaults), apply `overrides` in order, validate.

    overrides: "dotted.key=value" with the value in YAML; the value replaces what the key had, so
    `model.init.hidden_size=64` changes one entry of a free-form mapping and `model.init={}` empties it.

    Raises ConfigError with all problems: unknown keys (and the nearest known ones), wrong types, contradictory fields.
    """
    document = Document(value={}, lines={}) if path is None else read_document(path)
    draft = _Draft(
        value=document.value,
        origins={} if path is None else {key: f"{path}:{line}" for key, line in document.lines.items()},
    )
    problems = [problem for text in overrides for problem in draft.override(text)]
    cls = _select_class(draft, problems)
    config = _validate(cls, draft, problems)
    provenance = {".".join(key): draft.origins.get(key, DEFAULT) for key, _ in _leaves(to_mapping(config), ())}
    if path is not None:
        # The folder of the file is the same for all of them; the name is what a reader looks for.
        provenance = {key: origin.replace(f"{path}:", f"{path.name}:", 1) for key, origin in provenance.items()}
    return ResolvedConfig(config=config, provenance=MappingProxyType(provenance), source=path)


def config_from_mapping(value: Mapping[str, Any], *, source: str = "configuration") -> PPOConfig | RowsConfig:
    """Validate a plain mapping, such as what `to_mapping` returned; inverse of it. `source` names it in error
    messages.
    """
    keys = [key for key, _ in _all_keys(dict(value), ())]
    draft = _Draft(value=dict(value), origins=dict.fromkeys(keys, source))
    problems: list[Problem] = []
    return _validate(_select_class(draft, problems), draft, problems)


def to_mapping(config: RunConfig) -> dict[str, Any]:
    """Plain dicts, lists and scalars, ready for JSON or YAML."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def flatten(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key of every leaf to its value, in order; the keys are those of `ResolvedConfig.provenance`."""
    return {".".join(key): value for key, value in _leaves(mapping, ())}


def dump_yaml(config: RunConfig) -> str:
    """YAML text that `load_config` reads back as an equal configuration; starts with `kind`."""
    mapping = to_mapping(config)
    return dump({"kind": mapping.pop("kind"), **mapping})


@dataclass(slots=True)
class _Draft:
    """Configuration as it was written, before any schema is applied."""

    value: dict[str, Any]
    origins: dict[KeyPath, str]

    def override(self, text: str) -> Iterator[Problem]:
        """Apply one `dotted.key=value`; yields what is wrong with it."""
        dotted, separator, raw = text.partition("=")
        key = tuple(dotted.strip().split("."))
        if not separator or not all(key) or text.startswith("-"):
            hint = "write key=value without dashes" if text.startswith("-") else "for example actor.lr=1e-4"
            yield Problem(
                key="", where=COMMAND_LINE, message=f"{text!r} is not an override: expected dotted.key=value, {hint}"
            )
            return
        try:
            value = parse_value(raw, where=COMMAND_LINE)
        except ConfigError as error:
            yield Problem(key=dotted, where="", message=str(error))
            return
        node = self.value
        for depth, part in enumerate(key[:-1], start=1):
            if node.get(part) is None:
                node[part] = {}
                self.origins.pop(key[:depth], None)
            elif isinstance(node[part], str) and (found := schema_of.lookup(PPOConfig, key[:depth])) and found.blocks:
                node[part] = {"name": node[part]}  # `surrogate: sapo` in the file, `objective.surrogate.tau_pos=2` here
                self.origins[*key[:depth], "name"] = self.origins[key[:depth]]
            node = node[part]
            if not isinstance(node, dict):
                parent = ".".join(key[:depth])
                yield Problem(
                    key=dotted, where=COMMAND_LINE, message=f"{parent} is {node!r}, which has no keys of its own"
                )
                return
        node[key[-1]] = value
        self.origins = {known: origin for known, origin in self.origins.items() if known[: len(key)] != key}
        for written, _ in _all_keys(value, key):
            self.origins[written] = COMMAND_LINE


def _select_class(draft: _Draft, problems: list[Problem]) -> type[PPOConfig] | type[RowsConfig]:
    kind = draft.value.get("kind", "rl")
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    where = draft.origins.get(("kind",), "")
    raise_all(
        [*problems, Problem(key="kind", where=where, message=f"expected one of {', '.join(KINDS)}, got {kind!r}")]
    )


@cache
def validator_of(kind: str) -> TypeAdapter[PPOConfig | RowsConfig]:
    """Return the validator of one kind of run. It takes 30 ms to build, so all files of a process share one."""
    from pydantic import TypeAdapter

    return TypeAdapter(KINDS[kind])


def _validate(
    cls: type[PPOConfig] | type[RowsConfig], draft: _Draft, problems: list[Problem]
) -> PPOConfig | RowsConfig:
    from pydantic import ValidationError  # 50 ms that `areal --help` should not pay

    for key, value in _leaves(draft.value, ()):
        if any(
            isinstance(item, float) and not math.isfinite(item)
            for item in (value if isinstance(value, list) else [value])
        ):
            where = draft.origins.get(key, "")
            problems.append(Problem(key=".".join(key), where=where, message=f"expected a finite number, got {value}"))
    schema = Schema(cls=cls, others=tuple(other for other in KINDS.values() if other is not cls))
    adapter = validator_of(draft.value.get("kind", "rl"))
    value = copy.deepcopy(draft.value)
    removed: list[KeyPath] = []
    while True:
        try:
            # JSON mode is what makes strict validation accept a list for a tuple and a mapping for a dataclass, nothing
            # else.
            config = adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            details = error.errors(include_url=False)
        else:
            break
        problems += [explain(detail, schema, draft.origins) for detail in details if not repeats(detail, removed)]
        # Contradictions between fields show only when all fields of a section fit: look again without what was wrong.
        faulty = [remove(value, detail["loc"]) for detail in details]
        if not all(faulty):
            break
        removed += faulty
    if problems:
        raise_all(problems)
    return config


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Keys that hold something other than further keys; an empty mapping counts as a value."""
    for key, leaf in _all_keys(value, path):
        if not (isinstance(leaf, dict) and leaf):
            yield key, leaf


def _all_keys(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Every key below `path` and, unless it is the root, `path` itself."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _all_keys(inner, (*path, key))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


_TAG = "tag:yaml.org,2002:"
_MOST_VALUES = 100_000
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
        fix = f"name one of {', '.join(near[:8])} in {path.parent}" if near else "name a YAML file that exists"
        raise ConfigError(f"{path}: no such config file{hint}", where=str(path), fix=fix) from error
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: cannot read the config file as UTF-8 text: {error}"
        raise ConfigError(message, where=str(path), fix="make it a readable text file in UTF-8") from error
    reader = _YamlReader(str(path))
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
    return _YamlReader(where).read(text)


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


class _YamlReader:
    """Turns one YAML text into plain values and remembers where keys stood."""

    def __init__(self, source: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._source = source
        self._open: set[int] = set()
        self._count = 0

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
        self._count += 1
        if self._count > _MOST_VALUES:
            raise self._error(node, f"more than {_MOST_VALUES} values; aliases of aliases multiply, write fewer")
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
