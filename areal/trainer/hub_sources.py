"""Pin the hub names of a run's configuration to commits, and remember which in its directory.

    pinned = pin_sources(config, recorded_pins(config.directory))
    pinned.config.model.path     # "Qwen/Qwen2.5-0.5B@7ae557604adf67be50417f59c2c2f167def9a775"
    pinned.pins                  # {"model Qwen/Qwen2.5-0.5B@main": "7ae5..."}

A run works with the pinned configuration, so config.yaml and every checkpoint name the commits. A run that is continued
takes the same ones from hub.json in its directory, though branches have moved since. A class of configuration
says in `hub_fields` which of its fields take such names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from areal.api import HubError
from areal.hub.names import find_name, pinned
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from areal.hub.names import RepoKind
    from areal.trainer.configuration.source import ResolvedConfig

PINS_FILE: Final = "hub.json"
MODEL_REWARD: Final = "areal.engine.train.model_reward:ModelReward"
"""The reward whose option `path` is a model."""

_Config = TypeVar("_Config")


@dataclass(frozen=True, slots=True)
class PinnedSources(Generic[_Config]):
    """A configuration in which every hub name has a commit."""

    config: _Config
    pins: Mapping[str, str]
    """"model org/name@revision" as it was asked for to its commit."""


def recorded_pins(directory: Path) -> dict[str, str]:
    """Return the commits that the run in `directory` began with; none when it is new."""
    try:
        found = json.loads((directory / PINS_FILE).read_bytes())["commits"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def write_pins(directory: Path, pins: Mapping[str, str]) -> None:
    """Write what `recorded_pins` reads."""
    if pins:
        atomic_write(directory / PINS_FILE, json.dumps({"commits": dict(sorted(pins.items()))}, indent=2) + "\n")


def pin_sources(config: _Config, recorded: Mapping[str, str]) -> PinnedSources[_Config]:
    """Return the configuration with a commit in every hub name. recorded: commits to take before asking the hub.

    Raises HubError when a name is not known there, or cannot be asked for.
    """
    pins: dict[str, str] = {}

    def commit_of(path: Any, kind: RepoKind, *, asked: bool = True) -> Any:
        # No name has a colon, which says what is built on the spot: characters:0123456789+-*/
        may_be_name = isinstance(path, str) and "/" in path and ":" not in path
        name = find_name(path) if may_be_name else None
        if name is None or name.is_pinned or (not asked and "@" not in path):
            return path
        key = f"{kind} {name}"
        pins[key] = recorded.get(key) or pinned(name, kind).revision
        return f"{name.repo}@{pins[key]}"

    def reward_model(key: str, value: Any) -> Any:
        """Pin the model of one entry of a map of rewards."""
        if not isinstance(value, dict) or not isinstance(value.get("options"), dict):
            return value
        options = value["options"]
        if value.get("path", key) != MODEL_REWARD or not options.get("path"):
            return value
        return {**value, "options": {**options, "path": commit_of(options["path"], "model")}}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reward_model(key, walk(item)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(item) for item in value)
        if not is_dataclass(value) or isinstance(value, type):
            return value
        kinds: Mapping[str, RepoKind] = getattr(value, "hub_fields", {})
        # A loader of the user's own may mean anything by its path, except by one with a revision.
        asked = ":" not in getattr(value, "name", "")
        changed: dict[str, Any] = {}
        for item in fields(value):
            before = getattr(value, item.name)
            known = item.name in kinds
            after = commit_of(before, kinds[item.name], asked=asked) if known else walk(before)
            if after != before:
                changed[item.name] = after
        return replace(value, **changed) if changed else value

    return PinnedSources(walk(config), pins)


def with_pins(resolved: ResolvedConfig, *, restart: bool = False) -> ResolvedConfig:
    """Return the configuration with commits for hub names, as the run will begin with it.

    What the hub refuses is reported with the key it belongs to, and with all other problems, where checks read it.
    """
    from areal.trainer.configuration.validation import validate_run

    recorded = {} if restart else recorded_pins(resolved.config.directory)
    try:
        return replace(resolved, config=pin_sources(resolved.config, recorded).config)
    except HubError:
        validate_run(resolved.config, resolved.provenance)
        raise
