"""Load a run configuration: YAML file, then `key=value` overrides, then validation.

Every value knows where it came from.

    resolved = load_config(Path("gsm8k.yaml"), ["actor.lr=1e-4", "objective.surrogate.clip_high=0.28"])
    resolved.config.actor.lr          # 0.0001
    resolved.provenance["actor.lr"]   # "command line"; others say "gsm8k.yaml:12" or "default"

All problems are reported together in one ConfigError. Nothing is coerced: "64" is not a number and true is not 1.
Whether a valid configuration can also be *run* is the question of `areal.trainer.configuration.report.validate_run`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.trainer.config import DPOConfig, PPOConfig, RewardModelConfig, RowsConfig, RunConfig, SFTConfig
from areal.trainer.configuration import document as yaml_document
from areal.trainer.configuration import schema as schema_of
from areal.trainer.configuration.problems import Problem, Schema, explain, raise_all, remove, repeats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from areal.trainer.configuration.document import KeyPath

KINDS: Final[dict[str, type[PPOConfig] | type[RowsConfig]]] = {
    "rl": PPOConfig,
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "reward_model": RewardModelConfig,
}
"""Value of the top-level key `kind`, which selects the trainer, to its configuration class."""

COMMAND_LINE: Final = "command line"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A valid configuration and the origin of each of its values."""

    config: PPOConfig | RowsConfig
    provenance: Mapping[str, str]
    """Dotted key of every leaf to "default", "<file name>:<line>" or "command line"."""
    source: Path | None
    """The file that was read."""


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Resolved:
    """Read `path` (None starts from the defaults), apply `overrides` in order, validate.

    overrides: "dotted.key=value" with the value in YAML; the value replaces what the key had, so
    `model.init.hidden_size=64` changes one entry of a free-form mapping and `model.init={}` empties it.

    Raises ConfigError with all problems: unknown keys (and the nearest known ones), wrong types, contradictory fields.
    """
    document = yaml_document.Document(value={}, lines={}) if path is None else yaml_document.read_document(path)
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
    return Resolved(config=config, provenance=MappingProxyType(provenance), source=path)


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
    """Dotted key of every leaf to its value, in order; the keys are those of `Resolved.provenance`."""
    return {".".join(key): value for key, value in _leaves(mapping, ())}


def dump_yaml(config: RunConfig) -> str:
    """YAML text that `load_config` reads back as an equal configuration; starts with `kind`."""
    mapping = to_mapping(config)
    return yaml_document.dump({"kind": mapping.pop("kind"), **mapping})


@dataclass(slots=True)
class _Draft:
    """What was asked for, before any schema is applied."""

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
            value = yaml_document.parse_value(raw, where=COMMAND_LINE)
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


def _validate(
    cls: type[PPOConfig] | type[RowsConfig], draft: _Draft, problems: list[Problem]
) -> PPOConfig | RowsConfig:
    from pydantic import TypeAdapter, ValidationError  # 50 ms that `areal --help` should not pay

    for key, value in _leaves(draft.value, ()):
        if any(
            isinstance(item, float) and not math.isfinite(item)
            for item in (value if isinstance(value, list) else [value])
        ):
            where = draft.origins.get(key, "")
            problems.append(Problem(key=".".join(key), where=where, message=f"expected a finite number, got {value}"))
    schema = Schema(cls=cls, others=tuple(other for other in KINDS.values() if other is not cls))
    adapter = TypeAdapter(cls)
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
