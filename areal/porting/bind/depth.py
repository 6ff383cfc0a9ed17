"""Which field says how many layers there are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from areal.porting.bind.expressions import look_up
from areal.porting.bind.variations import changed, field_names, resized
from areal.porting.probe.instance import construct, read
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from areal.porting.probe.subject import Subject


def depth_field(subject: Subject, base: dict[str, Any], num_layers: int) -> str:
    """The field whose change gives the model one layer more; "" where none does."""
    for name in field_names(base):
        value = look_up(base, name)
        if type(value) is not int or value != num_layers:
            continue
        for changes in (resized(base, name, value + 1, name), {name: value + 1}):
            if _has_layer(subject, changed(base, changes), num_layers):
                return name
    return ""


def _has_layer(subject: Subject, config: dict[str, Any], number: int) -> bool:
    try:
        with torch.device("meta"):
            model = construct(subject, read(subject, config))
    except SubjectError:
        return False
    return any(re.search(rf"(^|\.){number}\.", name) for name, _ in model.named_parameters())
