"""The table of names on disk: found by value in one instance or several, generalised over layers, and made short.

A table is what `areal.models.adapter.TableAdapter` reads; modules whose name on disk is "model." and the canonical one
(or the canonical one, for the head) need no row: their entries are marked as implied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from areal.models.adapter import TableAdapter
from areal.porting import reference
from areal.porting.family import LayoutEntry
from areal.porting.infer.skipped import tables
from areal.porting.infer.stored import StoredTensors, find_all, row_of
from areal.porting.infer.table import shortest_table
from areal.porting.probe import instance as oracle
from areal.porting.records import UnsupportedError
from areal.porting.spec import AttentionSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor

    from areal.porting.infer.stored import Found
    from areal.porting.probe.instance import Instance
    from areal.porting.records import Inference
    from areal.porting.spec import ArchitectureSpec

HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class _Options:
    """Ways to store the tensors `ours` (layers as `*`) that hold in every layer seen so far, the preferred first."""

    ours: tuple[str, ...]
    entries: tuple[LayoutEntry, ...]
    seen: tuple[str, ...]
    """Stored names of the layers, for messages."""


def infer_layout(
    instance: Instance, inference: Inference, *, others: Sequence[tuple[Instance, Inference]] = ()
) -> tuple[LayoutEntry, ...]:
    """How the canonical tensors are stored by `save_pretrained`, and in memory where that differs.

    others: further configs of the same family; a layout that is ambiguous for one (a single key head) is chosen such
    that it holds for all. Raises UnsupportedError when a tensor of either side is not explained."""
    pairs = [(instance, inference), *others]
    on_disk = _common([_options(found, oracle.export(each), tables(each)) for each, found in pairs])
    in_memory = _in_memory(pairs)
    entries = [options.entries[0] for options in on_disk.values()]
    if (HEAD,) not in on_disk:
        # Tied in all configs. Some tools store it nevertheless, under the name of its module.
        entries.append(LayoutEntry(kind="renamed", ours=(HEAD,), on_disk=f"{inference.roles.head}.weight"))
    return shortest_table(entries, [*_parameters(pairs), HEAD], in_memory)


def canonical(
    layout: Sequence[LayoutEntry], tensors: Mapping[str, Tensor], spec: ArchitectureSpec, *, skipped: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Canonical weights from tensors on disk (or in memory), read by the adapter that a family with this layout has.

    Raises ModelError naming what is missing, unexpected or of another shape."""
    return adapter(layout, spec, skipped=skipped).from_hf(tensors)


def adapter(layout: Sequence[LayoutEntry], spec: ArchitectureSpec, *, skipped: Sequence[str] = ()) -> TableAdapter:
    """The adapter of a family with this layout, for one config."""
    rows = tuple(row_of(entry) for entry in layout if not entry.implied)
    members = {"model_class": staticmethod(_built), "table": rows, "skipped": tuple(skipped)}
    made: type[TableAdapter] = type("AnalysedStateDictAdapter", (TableAdapter,), members)
    return made(_Arguments(spec))  # type: ignore[arg-type]  # as much of a family's arguments as an adapter reads


@dataclass(frozen=True)
class _Arguments:
    spec: ArchitectureSpec
    model_type: str = "analysed"


def _built(args: _Arguments) -> Any:
    return reference.build(args.spec)


def _parameters(pairs: Sequence[tuple[Instance, Inference]]) -> list[str]:
    return list(dict.fromkeys(starred(name) for _, inference in pairs for name in inference.weights))


def starred(name: str) -> str:
    """A canonical name with `*` for its layer."""
    return re.sub(r"^layers\.\d+", "layers.*", name)


def _options(
    inference: Inference, tensors: Mapping[str, Tensor], inert: Collection[str]
) -> dict[tuple[str, ...], _Options]:
    """Of one instance. Raises UnsupportedError for tensors that are on one side only."""
    stored = StoredTensors(tensors)
    found = find_all(
        inference.weights,
        stored,
        {
            f"layers.{number}.self_attn": layer.attention.head_dim
            for number, layer in enumerate(inference.spec.layers)
            if isinstance(layer.attention, AttentionSpec)
        },
    )
    explained = {name for match in found for name in match.ours}
    absent = [name for name in inference.weights if name not in explained]
    if absent:
        raise UnsupportedError(
            "weights stored in an unknown arrangement",
            where=absent[0],
            detail=f"{len(absent)} tensors are nowhere on disk as they are, nor stacked: {', '.join(absent[:6])}",
        )
    used = frozenset().union(*(match.stored for match in found))
    left = [
        name for name in tensors if name not in used and name not in inert and not _repeats(tensors[name], inference)
    ]
    if left:
        raise UnsupportedError(
            "tensors on disk that nothing of the spec reads",
            where=left[0],
            detail=f"{len(left)} unexplained: {', '.join(left[:6])}",
        )
    return _generalised(found)


def _repeats(tensor: Tensor, inference: Inference) -> bool:
    """Whether it is the embedding again, as a tied head that is stored nevertheless."""
    embedding = inference.weights[EMBEDDING]
    return inference.spec.tied and tensor.shape == embedding.shape and torch.equal(tensor, embedding)


def _generalised(found: Sequence[Found]) -> dict[tuple[str, ...], _Options]:
    """Entries with `*` for the layer, as far as they are the same in all layers."""
    merged: dict[tuple[str, ...], _Options] = {}
    for match in found:
        layer = re.match(r"layers\.(\d+)\.", match.ours[0])
        ours = tuple(starred(name) for name in match.ours)
        entries = tuple(
            replace(entry, ours=ours, on_disk=on_disk)
            for entry in match.entries
            for on_disk in (_starred_on_disk(entry.on_disk, layer[1]) if layer else [entry.on_disk])
        )
        options = _Options(ours, entries, tuple(sorted(match.stored))[:1])
        merged[ours] = _both(merged[ours], options) if ours in merged else options
    return merged


def _starred_on_disk(name: str, layer: str) -> list[str]:
    """The name with `*` in place of the layer's number, wherever that number stands."""
    return [f"{name[: match.start()]}*{name[match.end() :]}" for match in re.finditer(rf"(?<!\d){layer}(?!\d)", name)]


def _both(left: _Options, right: _Options) -> _Options:
    entries = tuple(entry for entry in left.entries if entry in right.entries)
    seen = tuple(dict.fromkeys((*left.seen, *right.seen)))
    if not entries:
        raise UnsupportedError(
            "names on disk that depend on the layer or the config",
            where=", ".join(left.ours),
            detail=f"stored as {' and as '.join(seen[:4])}, which no one row says",
        )
    return _Options(left.ours, entries, seen)


def _common(each: Sequence[dict[tuple[str, ...], _Options]]) -> dict[tuple[str, ...], _Options]:
    merged = dict(each[0])
    for options in each[1:]:
        for ours, option in options.items():
            merged[ours] = _both(merged[ours], option) if ours in merged else option
    return merged


def _in_memory(pairs: Sequence[tuple[Instance, Inference]]) -> dict[str, LayoutEntry]:
    """Canonical name (starred) to its entry in the layout of `state_dict()`; empty where that cannot be said."""
    try:
        options = _common([_options(found, each.model.state_dict(), tables(each)) for each, found in pairs])
    except UnsupportedError:
        return {}
    return {name: option.entries[0] for option in options.values() for name in option.ours}
