"""Changes to a tiny config that works, so that more of the architecture shows in it, and each choice on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.porting.probe.instance import construct, read
from areal.porting.probe.meanings import hinted
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from areal.porting.probe.subject import Subject

    Works = Callable[[dict[str, Any]], bool]


def with_parts(
    subject: Subject, config: dict[str, Any], *, defaults: Mapping[str, Any], given: frozenset[str], works: Works
) -> dict[str, Any]:
    """The config with counts of parts that are 0 by default, where the model then has further weights besides all that
    it had: shared experts. given: fields that stay as they are."""
    for name, value in _counts(config, defaults, given):
        before, after = _weights(subject, config), _weights(subject, {**config, name: value})
        if before < after and works({**config, name: value}):
            config = {**config, name: value}
    return config


def without_parts(config: dict[str, Any], *, defaults: Mapping[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """The config with the counts of parts that `with_parts` may have added at 0 again."""
    zeros = {name: 0 for name, value in config.items() if type(value) is int and _is_count(name, defaults)}
    return {**config, **{name: zero for name, zero in zeros.items() if name not in given}}


def crossed(config: dict[str, Any], *, given: frozenset[str], works: Works) -> dict[str, Any]:
    """The config with lists over layers that do not change their entries in step: what follows from one of them would
    seem to follow from the other. given: fields that stay as they are."""
    seen: list[list[int]] = []
    for name, entries in list(config.items()):
        if not _is_pattern(entries):
            continue
        partition = _partition(entries)
        if partition in seen and name not in given:
            blocks = {**config, name: sorted(entries, key=entries.index)}
            if _partition(blocks[name]) not in seen and works(blocks):
                config, partition = blocks, _partition(blocks[name])
        seen.append(partition)
    return config


def _counts(config: Mapping[str, Any], defaults: Mapping[str, Any], given: frozenset[str]) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if type(value) is int and value == 0 and name not in given and _is_count(name, defaults):
            yield name, int(hinted(name))


def _is_count(name: str, defaults: Mapping[str, Any]) -> bool:
    return type(defaults.get(name)) is int and defaults[name] == 0 and hinted(name) > 0


def _weights(subject: Subject, config: dict[str, Any]) -> set[str]:
    """Names of all parameters; none where nothing builds."""
    try:
        with torch.device("meta"):
            return {name for name, _ in construct(subject, read(subject, config)).named_parameters()}
    except SubjectError:
        return set()


def _is_pattern(entries: Any) -> bool:
    """Whether it is a list of texts, of more than one kind and long enough for two such lists to differ."""
    return (
        isinstance(entries, list)
        and len(entries) > 3
        and all(isinstance(entry, str) for entry in entries)
        and len(set(entries)) > 1
    )


def _partition(entries: list[str]) -> list[int]:
    """Which entries are alike, whatever they are called."""
    return [entries.index(entry) for entry in entries]
