"""Other values for the fields of a config, by kind: what is tried to find out what a field does.

Nothing here knows whether a value is valid. The config class and the model refuse what is not, and the next one is
tried.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import ROTARY_FIELD, look_up

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Mapping


ACTIVATIONS: Final = ("gelu_pytorch_tanh", "relu", "silu", "gelu")
"""Tried in place of the name of an activation."""

LAYER_KINDS: Final = ("full_attention", "sliding_attention")
"""Tried in lists of kinds of layers, next to the kinds that are there."""

FEED_FORWARD_KINDS: Final = ("dense", "sparse")
"""Likewise, where entries are kinds of feed-forward layers."""

INDEXER_KINDS: Final = ("full", "shared")
"""Likewise, where entries say whether a layer chooses its tokens itself."""

LIKELY_NUMBERS: Final = (8, 24, 2, 16)
"""Tried for whole numbers that are null: a window, a size, a count."""


SIZABLE: Final = 60
"""A window of this size would not show in the sequences that judge: such numbers are also made small."""


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING: Final = _Missing()
"""In changes: the field is taken out. As a default: the class has none."""


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the config with other values; MISSING takes a field out. Dots reach into objects."""
    result: dict[str, Any] = _copied(dict(config))
    for name, value in changes.items():
        target, key = result, name
        if name not in result:
            *path, last = name.split(".")
            parents = target
            for part in path:
                parents = parents.setdefault(part, {})
            target, key = parents, last
        if value is MISSING:
            target.pop(key, None)
        else:
            target[key] = _copied(value)
    return result


def _copied(value: Any) -> Any:
    """Return a deep copy: of JSON, which configs are, several times as fast as `copy.deepcopy` makes it."""
    kind = type(value)
    if kind in (str, int, float, bool, NoneType):
        return value
    if kind is dict:
        return {key: _copied(each) for key, each in value.items()}
    if kind is list:
        return [_copied(each) for each in value]
    return copy.deepcopy(value)


def field_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of all fields; objects are entered, except that of rotary positions."""
    names: list[str] = []
    for name, value in config.items():
        if isinstance(value, dict) and value and name != ROTARY_FIELD and all(isinstance(key, str) for key in value):
            names += [f"{name}.{inner}" for inner in value]
        else:
            names.append(name)
    return names


def annotations_of(config_class: Any) -> dict[str, str]:
    """Return, by field, its type as written, as far as the class says so; fields of inner configs with their dots."""
    found: dict[str, str] = {}
    for name, inner in (getattr(config_class, "sub_configs", None) or {}).items():
        found |= {f"{name}.{field}": kind for field, kind in annotations_of(inner).items()}
    if dataclasses.is_dataclass(config_class):
        found |= {field.name: _written(field.type) for field in dataclasses.fields(config_class)}
    else:
        parameters = inspect.signature(config_class.__init__).parameters.values()
        found |= {each.name: _written(each.annotation) for each in parameters if each.annotation is not each.empty}
    return found


def defaults_of(config_class: Any) -> dict[str, Any]:
    """Return, by field, what the class takes when it is absent; MISSING where it insists on a value."""
    found: dict[str, Any] = {}
    for name, inner in (getattr(config_class, "sub_configs", None) or {}).items():
        found |= {f"{name}.{field}": value for field, value in defaults_of(inner).items()}
    if dataclasses.is_dataclass(config_class) and "__init__" not in vars(config_class):
        for field in dataclasses.fields(config_class):
            if field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory()
            else:
                found[field.name] = MISSING if field.default is dataclasses.MISSING else field.default
        return found
    for each in inspect.signature(config_class.__init__).parameters.values():
        if each.name != "self" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            found[each.name] = MISSING if each.default is each.empty else each.default
    return found


def _written(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)


# -------------------------------------------------------------------------------------------------------- alternatives


def alternatives(value: Any, annotation: str) -> list[Any]:
    """Return other values of a field, the most telling first. annotation: its type as written, "" where unknown."""
    found: list[Any] = []
    if isinstance(value, bool):
        found = [not value]
    elif isinstance(value, float) or (isinstance(value, int) and "float" in annotation):
        found = [0.3, 1.7] if value == 0 else [value * 1.5, value * 0.5, value + 0.25]
    elif isinstance(value, int):
        small = [8] if value >= SIZABLE else []
        found = [2 * value, *small, value // 2, value + 1, value - 1, 3 * value, value + 4, 1, 0]
        found = list(dict.fromkeys(number for number in found if number >= 0 and number != value))
        found = found if value else [1, 2, 4]
    elif isinstance(value, str):
        found = _literals(annotation, value) or [name for name in ACTIVATIONS if name != value]
    elif isinstance(value, list | tuple):
        found = _of_list(list(value), _literals(annotation, ""))
    elif value is None:
        found += LIKELY_NUMBERS if "int" in annotation or not annotation else []
        found += [1.3, 0.6] if "float" in annotation or not annotation else []
        found += [True, False] if "bool" in annotation else []
    if (value is not None and "None" in annotation) or "Optional" in annotation:
        found.append(None)
    return found


def _of_list(value: list[Any], choices: list[str]) -> list[Any]:
    if not value:
        return [[0], [1, 2]]
    if is_bounds(value):
        low, high = value
        return [[low + 0.4, high], [low, low + 0.6], [low + 0.3, low + 0.8]]
    kinds = list(dict.fromkeys(entry for entry in value if isinstance(entry, str | int | float | None)))
    found: list[Any] = [value[1:] + value[:1], value[::-1]]
    if all(isinstance(entry, str) for entry in value):
        for known in (choices, LAYER_KINDS, FEED_FORWARD_KINDS, INDEXER_KINDS):
            if set(kinds) & set(known):
                kinds += [kind for kind in known if kind not in kinds]
                break
        found += [[kind] * len(value) for kind in kinds]
        found += [[kind, *value[1:]] for kind in kinds]
    elif len(value) > 1 and len(kinds) == 1 and type(kinds[0]) is int and kinds[0] > 1:
        # The same size in all layers: another one in all of them, and in some.
        size = kinds[0]
        found += [[2 * size] * len(value), [*value[:-1], 2 * size], [2 * size, *value[1:]]]
    elif all(isinstance(entry, int) for entry in value):
        found += [[kind] * len(value) for kind in kinds]
        found += [[], value[:1], [0], [0, 2]]
    elif all(isinstance(entry, float) for entry in value):
        # Of each layer's own, of one layer only, and 0 where that may mean none.
        found += [[entry * (0.7 + 0.1 * place) for place, entry in enumerate(value)]]
        found += [[*value[:-1], value[-1] * 1.7], [*value[:-1], 0.0], [0.0, *value[1:]]]
    distinct: list[Any] = []
    for entry in found:
        if entry != value and entry not in distinct:
            distinct.append(entry)
    return distinct


def is_bounds(value: Any) -> bool:
    """Return whether a list is a range without an end, of which only its whole means something."""
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(type(each) in (int, float) for each in value)
    return numbers and math.isinf(value[1]) and math.isfinite(value[0])


def _is_pair(value: list[Any]) -> bool:
    """Return whether a list is two bounds, which are not of layers."""
    return len(value) == 2 and all(isinstance(entry, int | float) for entry in value) and isinstance(value[1], float)


def is_factors(value: Any, depth: Any) -> bool:
    """Return whether a list of numbers that are not whole has another length than the layers: factors of parts, say."""
    return isinstance(value, list) and any(isinstance(entry, float) for entry in value) and len(value) != depth


def _literals(annotation: str, value: str) -> list[str]:
    """Return the choices that a type such as Literal["a", "b"] names."""
    if "Literal[" not in annotation:
        return []
    inside = annotation.partition("Literal[")[2].partition("]")[0]
    return [choice for part in inside.split(",") if (choice := part.strip().strip("\"'")) and choice != value]


def resized(config: Mapping[str, Any], name: str, value: Any, depth_field: str) -> dict[str, Any]:
    """Return the changes for another value of a field; for the number of layers, lists of one entry per layer grow or
    are cut."""
    before = look_up(config, name)
    changes: dict[str, Any] = {name: value}
    if name == depth_field and isinstance(value, int) and value > 0:
        for other in field_names(config):
            entries = look_up(config, other)
            if isinstance(entries, list) and len(entries) == before and other != "architectures":
                changes[other] = [entries[index % before] for index in range(value)]
    return changes


# -------------------------------------------------------------------------------------------------------------- rotary


def rotary_alternatives(parameters: Mapping[str, Any], dim: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield other rotary settings with their names, for one entry of rope_parameters. dim: rotated dimensions."""
    kept = {key: parameters[key] for key in ("rope_theta", "partial_rotary_factor") if key in parameters}
    if parameters.get("rope_type") == "proportional":
        kept["partial_rotary_factor"] = 1.0  # a part of the angles there, and of the dimensions elsewhere
    theta = float(kept.get("rope_theta") or 10000.0)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    yield "default", {**kept, "rope_type": "default", "rope_theta": theta * 0.7}
    yield "linear", {**kept, "rope_type": "linear", "factor": 2.5}
    yield (
        "llama3",
        {
            **kept,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    )
    if parameters.get("rope_type") == "proportional":
        for share in (0.25, 0.75):
            changes = {"rope_theta": theta * 0.7, "partial_rotary_factor": share, "factor": 4 * share}
            yield "proportional", {"rope_type": "proportional", **changes}
    yield "yarn", {**kept, **yarn}
    yield "yarn", {**kept, **yarn, "attention_factor": 1.3, "beta_fast": 8, "beta_slow": 2, "truncate": False}
    yield "yarn", {**kept, **yarn, "mscale": 0.8, "mscale_all_dim": 0.6}
    for original in (16, 64):
        yield (
            "longrope",
            {
                **kept,
                "rope_type": "longrope",
                "factor": 4.0,
                "original_max_position_embeddings": original,
                "short_factor": [1.0 + 0.1 * index for index in range(dim // 2)],
                "long_factor": [1.5 + 0.3 * index for index in range(dim // 2)],
            },
        )


# --------------------------------------------------------------------------------------------------------------- joint


def joint(
    choices: Mapping[str, list[dict[str, Any]]],
    base: Mapping[str, Any],
    generator: random.Random,
    *,
    share: float,
    depth_field: str,
    sure: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the changes of many fields at once: each field takes one of its working changes with probability `share`.

    sure: fields that are certainly changed.
    """
    changes: dict[str, Any] = {}
    for name in sorted(choices):
        if choices[name] and (name in sure or generator.random() < share):
            changes |= generator.choice(choices[name])
    if depth_field in changes:
        # Lists over layers take the length of the new number of layers, with the entries that were chosen.
        depth, before = changes[depth_field], look_up(base, depth_field)
        lists = {
            name: value
            for name, value in changes.items()
            if isinstance(value, list) and not _is_pair(value) and not is_factors(look_up(base, name), before)
        }
        for name, value in lists.items():
            if len(value) > 0 and isinstance(look_up(base, name), list) and len(value) != depth:
                changes[name] = [value[index % len(value)] for index in range(depth)]
        kept = changed(base, {name: value for name, value in changes.items() if name != depth_field})
        changes = resized(kept, depth_field, depth, depth_field) | changes
    return changes
