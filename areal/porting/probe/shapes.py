"""What config fields with unknown names do to the shapes of a model: their meaning for a tiny config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from areal.porting.probe.instance import construct, read
from areal.porting.probe.meanings import HIDDEN, LAYERS, VOCABULARY, WINDOW
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from areal.porting.probe.library import Subject

EXPERTS = 8
HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 24
SIZES = (112, 40, 56, 28, 36, 20, 88)
"""For sizes of no known role, in the order of the fields, largest original first."""
MANY_HEADS = 64
LONG = 256

Shapes = dict[str, tuple[int, ...]]


def sizes_by_shape(subject: Subject, fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Small values for the integer fields `names`, by what changes when each of them changes.

    The model is built without data, at its original size; a config that does not build at all gives nothing.
    """
    fields = dict(fields)
    before = _shapes(subject, fields)
    if before is None:
        return {}
    embedding, shapes = before
    found: dict[str, Any] = {}
    direct: list[str] = []
    counts: list[str] = []
    for name in sorted(names, key=lambda name: int(fields[name])):
        changed = _changed(subject, fields, name, shapes)
        value = int(fields[name])
        if changed is None:
            continue
        if not changed:
            found[name] = _without_footprint(value)
            continue
        role = _role(changed, shapes, embedding, value)
        if role is not None:
            found[name] = role
            fewer = _shapes(subject, {**fields, name: role}) if role == LAYERS else None
            if fewer is not None:  # the rest goes faster with few layers
                fields[name], shapes = role, fewer[1]
        elif all(size % value == 0 and size > value for size in _changed_sizes(changed, shapes)):
            counts.append(name)
        else:
            direct.append(name)
    found |= _sizes_of_factors(counts, fields)
    ordered = sorted(direct, key=lambda name: -int(fields[name]))
    return found | {name: SIZES[place % len(SIZES)] for place, name in enumerate(ordered)}


def _sizes_of_factors(names: list[str], fields: Mapping[str, Any]) -> dict[str, int]:
    """Fields that are factors of sizes: many are a head's width, few are numbers of heads, fewer of key heads."""
    numbers = sorted({int(fields[name]) for name in names if int(fields[name]) < MANY_HEADS}, reverse=True)
    values = {}
    for name in names:
        value = int(fields[name])
        values[name] = HEAD_DIM if value >= MANY_HEADS else HEADS if value == numbers[0] else KEY_HEADS
    return values


def _without_footprint(value: int) -> int:
    """A field that changes no shape: long ones are windows, short ones are numbers of heads or of chosen experts."""
    if value >= LONG:
        return WINDOW
    return min(value, HEADS)


def _role(changed: Shapes, before: Shapes, embedding: str, value: int) -> int | None:
    """A value for layers, experts, the vocabulary and the hidden size; None for other roles."""
    added = [name for name in changed if name not in before]
    if added:
        first = [re.search(r"\.(\d+)\.", name) for name in added]
        layers = {int(match.group(1)) for match in first if match}
        return LAYERS if layers and min(layers) >= value else EXPERTS
    stacked = [name for name, shape in changed.items() if len(shape) >= 3 and shape[0] != before[name][0]]
    if stacked and all(before[name][0] == value for name in stacked):
        return EXPERTS
    if embedding in changed:
        return VOCABULARY if changed[embedding][0] != before[embedding][0] else HIDDEN
    return None


def _changed_sizes(changed: Shapes, before: Shapes) -> list[int]:
    """Original sizes of the dimensions that changed."""
    return [
        old
        for name, shape in changed.items()
        if name in before and len(shape) == len(before[name])
        for old, new in zip(before[name], shape, strict=True)
        if old != new
    ]


def _changed(subject: Subject, fields: Mapping[str, Any], name: str, before: Shapes) -> Shapes | None:
    """Parameters that have another shape or are new when the field is larger; None when it does not build."""
    value = int(fields[name])
    for other in (2 * value, value // 2, value + 1):
        after = _shapes(subject, {**fields, name: other}) if other else None
        if after is not None:
            return {key: shape for key, shape in after[1].items() if before.get(key) != shape}
    return None


def _shapes(subject: Subject, config: dict[str, Any]) -> tuple[str, Shapes] | None:
    """Name of the embedding, and the shape of every parameter and buffer; None when the model does not build."""
    try:
        with torch.device("meta"):
            model = construct(subject, read(subject, config))
    except SubjectError:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    table = model.get_input_embeddings().weight
    embedding = next((name for name, tensor in model.named_parameters() if tensor is table), "")
    return embedding, shapes
