"""Names in published checkpoints that hold nothing of the model: declared by the class, or computed by code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from areal.porting.probe import instance as oracle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from areal.porting.probe.instance import Instance

PLAIN = re.compile(r"(\w|\\\.|\.|\\d\+|\(\^\|\\\.\))+")
"""A declaration that is a name, or its beginning: with dots, escaped or not, and numbers."""
ANCHORS = ("^", r"(^|\.)", r"(?:^|\.)")


def tables(instance: Instance) -> frozenset[str]:
    """Buffers in `state_dict()` that the code computes from the config (masks, frequencies): no weights.

    What is a weight was given random values; what is a table still has those of a new model."""
    persistent = instance.model.state_dict()
    buffers = {name: tensor for name, tensor in instance.model.named_buffers() if name in persistent}
    if not buffers:
        return frozenset()
    new = oracle.construct(instance.subject, instance.hf_config).state_dict()
    return frozenset(name for name, tensor in buffers.items() if name in new and torch.equal(new[name], tensor))


def skipped_names(instance: Instance, needed: Iterable[str]) -> tuple[str, ...]:
    """Regular expressions of names on disk that are passed over: what the class ignores when it loads a checkpoint, and
    tables. needed: names on disk; an expression that matches one that is no table is left out."""
    declared = getattr(instance.model, "_keys_to_ignore_on_load_unexpected", None) or ()
    patterns = [anchored(str(pattern)) for pattern in sorted(declared)]
    computed = tables(instance)
    patterns += [rf"^{re.sub(r'[0-9]+', r'[0-9]+', re.escape(name))}$" for name in sorted(computed)]
    names = [name for name in needed if name not in computed]
    return tuple(dict.fromkeys(each for each in patterns if not any(re.search(each, name) for name in names)))


def anchored(pattern: str) -> str:
    """A declaration as an expression that matches whole parts of names: "model\\.layers\\.61.*" is meant for layer 61,
    and would as it stands match layer 610 of another config."""
    core = next((pattern.removeprefix(anchor) for anchor in ANCHORS if pattern.startswith(anchor)), pattern)
    core = core.removesuffix("$").removesuffix(".*").removesuffix(r"\.").removeprefix(".*")
    if not PLAIN.fullmatch(core):
        return pattern
    core = re.sub(r"(?<!\\)\.", r"\\.", core)
    start = "^" if pattern.startswith("^") or core.startswith("model") else r"(^|\.)"
    return rf"{start}{core}(\.|$)"
