"""Turn the keywords of a Python call into the configuration that a YAML file would give.

    built = build("rl", {"model": "models/Qwen3-0.6B", "reward": score, "train": rows, "actor": {"lr": 1e-6}}, ...)
    built.config          # a PPOConfig, validated like a file
    built.objects         # {"score": score}, when it cannot be imported
    built.rows            # files to write before the run

Every key of the YAML is a keyword. Wherever it takes an importable path, the object itself does, too; wherever it takes
a dataset, rows do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.dataset.config import DatasetConfig
from areal.dataset.files import SUFFIXES
from areal.infra.checkpoint.archive import INPUTS_FOLDER
from areal.trainer.config import SourceConfig
from areal.trainer.configuration.source import config_from_mapping, dump_yaml, flatten, to_mapping
from areal.trainer.evaluation_config import EvalSetConfig
from areal.trainer.python.rows import GivenRows, given_rows
from areal.utils.given import PREFIX, is_given

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from areal.trainer.config import PPOConfig, RowsConfig

_SHORT: Final = {"train": "train_dataset", "valid": "valid_dataset"}
"""Keywords that stand for a section."""
_WITH_ROWS: Final = {"eval_sets": EvalSetConfig, "sources": SourceConfig}
"""Sections by name, each with a dataset."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The configuration of a run; its fields can be read here as well: `settings.actor.lr`."""

    values: PPOConfig | RowsConfig

    def __getattr__(self, name: str) -> Any:
        """Return a field or property of the configuration."""
        if name.startswith("__") or name == "values":
            raise AttributeError(name)
        return getattr(self.values, name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and values."""
        return to_mapping(self.values)

    def to_yaml(self) -> str:
        """Return the text of a file for `areal train`; comments say which functions it cannot import."""
        lines = [f"#   {key}: {value.removeprefix(PREFIX)}" for key, value in _given_in(to_mapping(self.values))]
        if not lines:
            return dump_yaml(self.values)
        head = [
            "# Not importable: these were functions of the Python program that started the run. Before `areal train`",
            "# can read this file, move each into a module and write its path, e.g. my_module:score.",
        ]
        return "\n".join([*head, *lines, ""]) + dump_yaml(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What the keywords of a call say."""

    config: PPOConfig | RowsConfig
    objects: Mapping[str, Any]
    """Objects that no other process can import, by name (`areal.utils.given`)."""
    rows: tuple[GivenRows, ...]
    """Rows that were given in memory; they belong into `inputs/` of the run directory."""
    mapping: Mapping[str, Any]
    """What was given, as a file would say it; all else in `config` are defaults."""

    def write_rows(self) -> None:
        """Write the rows to where the configuration says they are."""
        for rows in self.rows:
            rows.write(self.config.directory / INPUTS_FOLDER)


def build(kind: str, values: Mapping[str, Any], *, source: str, objects: Mapping[str, Any] | None = None) -> Built:
    """Return what `values` say about a run of a kind. source: names the call in messages, e.g. "GRPO(...)". objects:
    those that have their names already.

    Raises ConfigError with all problems and their keys, DataError for rows that are none.
    """
    draft = _Draft(_directory(values) / INPUTS_FOLDER, objects or {})
    mapping: dict[str, Any] = {"kind": kind}
    for key, value in values.items():
        if key in _SHORT:
            continue
        mapping[key] = draft.section(key, value)
    for short, key in _SHORT.items():
        if values.get(short) is not None:
            mapping[key] = {**draft.dataset(short, values[short]), **_as_section(mapping.get(key), key)}
    config = config_from_mapping(mapping, source=source)
    return Built(config=config, objects=draft.objects, rows=tuple(draft.rows), mapping=mapping)


class _Draft:
    """Collects objects and rows while values are made plain."""

    def __init__(self, folder: Path, objects: Mapping[str, Any]) -> None:
        """folder: of the files that rows become."""
        self.objects: dict[str, Any] = dict(objects)
        self.rows: list[GivenRows] = []
        self._folder = folder

    def section(self, key: str, value: Any) -> Any:
        """Return the plain value of a top-level key."""
        if key == "model":
            return self._model(value)
        if key in _SHORT.values():
            return self.dataset(key, value)
        if key in _WITH_ROWS and isinstance(value, Mapping):
            return {
                self._name(key, name): self._with_rows(f"{key}.{name}", chosen, _WITH_ROWS[key])
                for name, chosen in value.items()
            }
        return self.plain(key, value)

    def dataset(self, key: str, value: Any) -> dict[str, Any]:
        """Return the section of a dataset: rows become a file, a text is the name or the path of one."""
        if is_dataclass(value) or (isinstance(value, Mapping) and not _is_library(value, "datasets")):
            section: dict[str, Any] = self.plain(key, value)
            return section
        if isinstance(value, (str, PurePath)):
            text = str(value)
            return {"name": "jsonl", "path": text} if text.endswith(tuple(SUFFIXES)) else {"name": text}
        if callable(value) and not hasattr(value, "__iter__"):
            return {"name": self._path_of(key, value)}
        if value is None:
            raise ConfigError(f"{key} is None, expected rows or the name of a dataset", where=key, fix="give rows")
        what = key.removesuffix("_dataset")
        rows = given_rows(value, what=what, prefix=what.replace("eval_sets.", "eval-").replace("sources.", "source-"))
        self.rows.append(rows)
        return {"name": "jsonl", "path": str(self._folder / rows.file_name)}

    def plain(self, key: str, value: Any) -> Any:
        """Return what YAML would hold in place of `value`. Raises ConfigError for what it cannot hold, with the key."""
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        if isinstance(value, PurePath):
            return str(value)
        if is_dataclass(value) and not isinstance(value, type):
            return {item.name: self.plain(f"{key}.{item.name}", getattr(value, item.name)) for item in fields(value)}
        if isinstance(value, Mapping):
            return {self._name(key, name): self.plain(f"{key}.{name}", inner) for name, inner in value.items()}
        if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (bytes, bytearray)):
            return [self.plain(f"{key}.{index}", inner) for index, inner in enumerate(value)]
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            return value.item()
        if callable(value):
            return self._path_of(key, value)
        raise ConfigError(
            f"{key} is a {type(value).__name__}, expected what YAML can hold: text, a number, a list, a dict, or a "
            f"function or class",
            where=key,
            fix=f"set {key} to such a value",
        )

    def _model(self, value: Any) -> Any:
        if isinstance(value, (str, PurePath)):
            return {"path": str(value)}
        if isinstance(value, Mapping) and "model_type" in value:
            return {"init": self.plain("model", value)}
        return self.plain("model", value)

    def _with_rows(self, key: str, value: Any, section: type[EvalSetConfig | SourceConfig]) -> dict[str, Any]:
        """Return a section that has a dataset among its keys; rows alone, and the name or section of a dataset, stand
        for that."""
        if isinstance(value, section):
            value = {item.name: getattr(value, item.name) for item in fields(value)}
        names = {item.name for item in fields(DatasetConfig)} - {item.name for item in fields(section)}
        is_section = isinstance(value, Mapping) and not _is_library(value, "datasets") and not names & set(value)
        if not is_section:
            return {"dataset": self.dataset(key, value)}
        if "dataset" not in value and {item.name for item in fields(section)} >= set(value):
            raise ConfigError(
                f"{key} has no dataset, expected rows or the name of one", where=key, fix="give the key dataset"
            )
        found: dict[str, Any] = {}
        for name, inner in value.items():
            found[name] = self.dataset(key, inner) if name == "dataset" else self.plain(f"{key}.{name}", inner)
        return found

    def _name(self, key: str, name: Any) -> str:
        if isinstance(name, str):
            return name
        if callable(name):
            return self._path_of(key, name)  # {score: 1.0, short: 0.2}
        raise ConfigError(f"{key} has the key {name!r:.80}, expected text", where=key, fix=f"write {str(name)!r}")

    def _path_of(self, key: str, value: Callable[..., Any]) -> str:
        """Return the path by which configurations name the object; one that cannot be imported is kept."""
        if path := importable_path(value):
            return path
        known = next((name for name, other in self.objects.items() if other is value), None)
        if known is not None:
            return f"{PREFIX}{known}"
        named = getattr(value, "func", value)
        own = getattr(named, "__name__", type(value).__name__)
        # A lambda has no name of its own: it goes by that of its component, of its source or set, or by its key.
        parts = [part for part in reversed(key.split(".")) if part.isidentifier()]
        named_by = (part for part in parts if part not in {"path", "reward", *_WITH_ROWS})
        first = own if own.isidentifier() else next(named_by, "reward" if "reward" in parts else "function")
        name, number = first, 1
        while name in self.objects:
            number += 1
            name = f"{first}_{number}"
        self.objects[name] = value
        return f"{PREFIX}{name}"


def importable_path(value: Any) -> str:
    """Return "module:name" of an object that other processes can import; "" of a lambda, a nested function, an instance
    and whatever is in `__main__`.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return ""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else ""


def _given_in(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keys of a configuration that hold objects of a Python program, and the paths of these."""
    found: list[tuple[str, str]] = []
    for key, value in flatten(mapping).items():
        found += [(key, item) for item in (value if isinstance(value, list) else [value]) if is_given(item)]
        if PREFIX in key:  # {score: 1.0}
            section, _, path = key.partition(PREFIX)
            found.append((section.rstrip("."), PREFIX + path.partition(".")[0]))
    return found


def _as_section(value: Any, key: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping) or value is None:
        return value or {}
    raise ConfigError(f"{key} is {value!r:.80}, expected a section", where=key, fix="give a dict")


def _directory(values: Mapping[str, Any]) -> Path:
    """Return the folder of the run, from values of which whatever is wrong is said later."""
    own = {key: str(values[key]) for key in ("output_dir", "experiment_name", "trial_name") if values.get(key)}
    return config_from_mapping(own).directory


def _is_library(value: Any, package: str) -> bool:
    return type(value).__module__.partition(".")[0] == package
