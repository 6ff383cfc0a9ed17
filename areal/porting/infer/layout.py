"""The table of names on disk: found by value in one instance or several, generalised over layers, and made short.

A table is what `areal.models.adapter.TableAdapter` reads; modules whose name on disk is "model." and the canonical one
(or the canonical one, for the head) need no row: their entries are marked as implied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from areal.models.adapter import MIXER, TableAdapter
from areal.porting import reference
from areal.porting.family import LayoutEntry
from areal.porting.infer.stored import StoredTensors, find_all, row_of
from areal.porting.probe import instance as oracle
from areal.porting.records import UnsupportedError
from areal.porting.spec import PLACES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from torch import Tensor

    from areal.models.blocks.decoder import DecoderModel
    from areal.porting.infer.stored import StoredMatch
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
    """Return how the canonical tensors are stored by `save_pretrained`, and in memory where that differs.

    others: further configs of the same family; a layout that is ambiguous for one (a single key head) is chosen such
    that it holds for all. Raises UnsupportedError when a tensor of either side is not explained."""
    pairs = [(instance, inference), *others]
    on_disk = _common([_options(found, oracle.export(each), tables(each)) for each, found in pairs])
    in_memory = _in_memory(pairs)
    entries = [options.entries[0] for options in on_disk.values()]
    if (HEAD,) not in on_disk:
        # Tied in all configs. Some tools store it nevertheless, under the name of its module.
        entries.append(LayoutEntry(kind="renamed", ours=(HEAD,), on_disk=f"{inference.roles.head}.weight"))
    parameters = dict.fromkeys(starred(name, found.spec) for _, found in pairs for name in found.weights)
    return shortest_table(entries, [*parameters, HEAD], in_memory)


def canonical(
    layout: Sequence[LayoutEntry],
    tensors: Mapping[str, Tensor],
    spec: ArchitectureSpec,
    *,
    skipped: Sequence[str] = (),
    outline: DecoderModel | None = None,
) -> dict[str, Tensor]:
    """Return the canonical weights from tensors on disk (or in memory), read by the adapter that a family with this
    layout has. outline: of the spec, where there is one already.

    Raises ModelError naming what is missing, unexpected or of another shape."""
    return adapter(layout, spec, skipped=skipped, outline=outline).from_hf(tensors)


def adapter(
    layout: Sequence[LayoutEntry],
    spec: ArchitectureSpec,
    *,
    skipped: Sequence[str] = (),
    outline: DecoderModel | None = None,
) -> TableAdapter:
    """Return the adapter of a family with this layout, for one config. outline: as of `canonical`."""
    rows = tuple(row_of(entry) for entry in layout if not entry.implied)
    members = {
        "model_class": staticmethod(lambda args: outline or reference.outline(args.spec)),
        "table": rows,
        "skipped": tuple(skipped),
    }
    made: type[TableAdapter] = type("AnalysedStateDictAdapter", (TableAdapter,), members)
    return made(_Arguments(spec))  # type: ignore[arg-type]  # as much of a family's arguments as an adapter reads


@dataclass(frozen=True)
class _Arguments:
    spec: ArchitectureSpec
    model_type: str = "analysed"


def starred(name: str, spec: ArchitectureSpec) -> str:
    """Return a canonical name with `*` for its layer, and for a mixer with a state the place that rows call it by."""
    layer = re.match(r"layers\.(\d+)\.", name)
    if layer is None:
        return name
    place = PLACES.get(type(spec.layers[int(layer[1])].attention), MIXER)
    return re.sub(rf"^layers\.\d+(\.{MIXER}\b)?", lambda found: "layers.*" + (f".{place}" if found[1] else ""), name)


def _options(
    inference: Inference, tensors: Mapping[str, Tensor], inert: Collection[str]
) -> dict[tuple[str, ...], _Options]:
    """Return the possible rows of one instance. Raises UnsupportedError for tensors that are on one side only."""
    stored = StoredTensors(tensors)
    found = find_all(
        inference.weights,
        stored,
        {f"layers.{number}.self_attn": layer.attention for number, layer in enumerate(inference.spec.layers)},
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
    left = [name for name in tensors if name not in used and name not in inert]
    if inference.spec.tied:  # a tied head may be stored nevertheless
        embedding = inference.weights[EMBEDDING]
        left = [
            name for name in left if tensors[name].shape != embedding.shape or not torch.equal(tensors[name], embedding)
        ]
    if left:
        raise UnsupportedError(
            "tensors on disk that nothing of the spec reads",
            where=left[0],
            detail=f"{len(left)} unexplained: {', '.join(left[:6])}",
        )
    return _generalised(found, inference.spec)


def _generalised(found: Sequence[StoredMatch], spec: ArchitectureSpec) -> dict[tuple[str, ...], _Options]:
    """Return the entries with `*` for the layer, as far as they are the same in all layers."""
    merged: dict[tuple[str, ...], _Options] = {}
    for match in found:
        layer = re.match(r"layers\.(\d+)\.", match.ours[0])
        ours = tuple(starred(name, spec) for name in match.ours)
        # Layer 2 of "blocks.2.experts.2.up" is "blocks.*.experts.2.up" or "blocks.2.experts.*.up"; other layers show
        # which of them it is.
        number = rf"(?<!\d){layer[1]}(?!\d)" if layer else "$"
        star = "*" if layer else ""
        entries = tuple(
            replace(entry, ours=ours, on_disk=f"{entry.on_disk[: place.start()]}{star}{entry.on_disk[place.end() :]}")
            for entry in match.entries
            for place in re.finditer(number, entry.on_disk)
        )
        options = _Options(ours, entries, tuple(sorted(match.stored))[:1])
        merged[ours] = _both(merged[ours], options) if ours in merged else options
    return merged


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
    """Return the canonical name (starred) to its entry in the layout of `state_dict()`; empty where that cannot be
    said."""
    try:
        options = _common([_options(found, each.model.state_dict(), tables(each)) for each, found in pairs])
    except UnsupportedError:
        return {}
    return {name: option.entries[0] for option in options.values() for name in option.ours}


# ---------------------------------------------------------------------------------------------------------------- table

# Makes a table of names on disk short: one row for a module instead of one per parameter, or for a whole branch. The
# adapter applies the row with the longest name of ours, and what follows that name is the same on both sides. Among
# tables with the fewest rows the one with the deepest rows is taken, since it says most.


SUFFIXES = (".weight", ".bias")
ROOT = "model."
HEAD_MODULE = "lm_head"


def shortest_table(
    entries: Sequence[LayoutEntry], parameters: Iterable[str], in_memory: Mapping[str, LayoutEntry]
) -> tuple[LayoutEntry, ...]:
    """Return the rows that say the same as `entries` (one per parameter or stacked group), in the order of
    `parameters`, and the implied entries of all modules without a row.

    in_memory: canonical parameter name to its entry in the other layout; it becomes the row's alternative where it
    differs.

    Example: layers.*.self_attn.q_proj.weight is model.layers.*.self_attn.q_proj.weight on disk, and so for every
    parameter of a llama. One implied row, "model." and our name, says all of it, and the table is empty but for implied
    entries. For gpt2 (transformer.h.*.attn.c_proj for layers.*.self_attn.o_proj) each module needs a row.
    """
    alternatives = {name: entry for entry in entries for name in entry.ours if _differs(entry, in_memory.get(name))}
    plain = {
        entry.ours[0]: entry.on_disk
        for entry in entries
        if entry.kind == "renamed" and entry.ours[0] not in alternatives
    }
    others = [entry for entry in entries if entry.ours[0] not in plain]
    different = [entry.ours[0] for entry in others if _differs(entry, in_memory.get(entry.ours[0]))]
    others = [
        replace(entry, alternative=in_memory[entry.ours[0]]) if entry.ours[0] in different else entry
        for entry in others
    ]
    rows = _module_rows(others)
    # What a row of a module says about its weight, it says about its bias.
    modules = {(f"{row.ours[0]}{suffix}", f"{row.on_disk}{suffix}") for row in rows for suffix in SUFFIXES}
    unsaid = {name: on_disk for name, on_disk in plain.items() if (name, on_disk) not in modules}
    rows += _renamed_rows(unsaid)
    # The modules that have no row of their own.
    said = {row.ours for row in rows}
    for name, on_disk in unsaid.items():
        module = _of_module(LayoutEntry(kind="renamed", ours=(name,), on_disk=on_disk, implied=True))
        if module.ours not in said and module not in rows:
            rows.append(module)
    order = {name: index for index, name in enumerate(parameters)}

    def place(entry: LayoutEntry) -> int:
        named = (
            index for name, index in order.items() if name == entry.ours[0] or name.startswith(f"{entry.ours[0]}.")
        )
        return min(named, default=len(order))

    return tuple(sorted(rows, key=place))


def _differs(entry: LayoutEntry, other: LayoutEntry | None) -> bool:
    return other is not None and (entry.kind, entry.on_disk) != (other.kind, other.on_disk)


# -------------------------------------------------------------------------------------------------- modules at once


def _module_rows(entries: Sequence[LayoutEntry]) -> list[LayoutEntry]:
    """Return the rows of modules where weight and bias are stored in the same way."""
    grouped: dict[tuple[object, ...], list[LayoutEntry]] = {}
    for entry in entries:
        whole = _of_module(entry)
        grouped.setdefault((whole.ours, whole.on_disk, whole.arrangement, whole.alternative), []).append(entry)
    rows: list[LayoutEntry] = []
    for members in grouped.values():
        modules = [_of_module(entry) for entry in members]
        # A bias is never transposed: the row of the weight, which may be, says both.
        kinds = [entry for entry in modules if entry.kind != "renamed"] or modules
        rows.append(next((entry for entry in kinds if entry.transposed), kinds[0]))
    return rows


def _of_module(entry: LayoutEntry) -> LayoutEntry:
    """Return the entry for the modules, if all names end in the same ".weight" or ".bias"; else itself."""
    alternative = None if entry.alternative is None else _of_module(entry.alternative)
    for suffix in SUFFIXES:
        if all(name.endswith(suffix) for name in (*entry.ours, entry.on_disk)):
            if entry.alternative is not None and not entry.alternative.on_disk.endswith(suffix):
                return entry
            ours = tuple(name.removesuffix(suffix) for name in entry.ours)
            return replace(entry, ours=ours, on_disk=entry.on_disk.removesuffix(suffix), alternative=alternative)
    return entry


# ------------------------------------------------------------------------------------------------------- branches


@dataclass
class _Branch:
    """A node of the tree of canonical names."""

    name: str
    on_disk: str | None = None
    """Of a parameter."""
    children: dict[str, _Branch] = field(default_factory=dict)

    def leaves(self) -> list[_Branch]:
        """Return every parameter below, or itself."""
        if self.on_disk is not None:
            return [self]
        return [leaf for child in self.children.values() for leaf in child.leaves()]


@dataclass(frozen=True)
class _Plan:
    """Rows of a branch. Smaller is better: number of rows, then rows of single parameters, then depth."""

    rows: tuple[LayoutEntry, ...] = ()

    def cost(self) -> tuple[int, int, int]:
        """To compare plans by."""
        names = [row.ours[0] for row in self.rows]
        parameters = sum(name.endswith(SUFFIXES) for name in names)
        return len(names), parameters, -sum(name.count(".") for name in names)


def _renamed_rows(plain: Mapping[str, str]) -> list[LayoutEntry]:
    """Return the fewest rows that give these names on disk."""
    root = _Branch("")
    for name, on_disk in plain.items():
        branch = root
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            branch = branch.children.setdefault(".".join(parts[:length]), _Branch(".".join(parts[:length])))
        branch.on_disk = on_disk
    rows: list[LayoutEntry] = []
    for child in root.children.values():
        inherited = child.name if child.name == HEAD_MODULE else ROOT + child.name
        rows += _best(child, inherited, {}).rows
    return rows


def _best(branch: _Branch, inherited: str, known: dict[tuple[str, str], _Plan]) -> _Plan:
    """Return the cheapest plan for a branch that would be stored under `inherited` without rows of its own."""
    key = (branch.name, inherited)
    if key not in known:
        without = _below(branch, inherited, known)
        plans = [without]
        for on_disk in dict.fromkeys(_prefix(leaf, branch.name) for leaf in branch.leaves()):
            if on_disk is not None and on_disk != inherited:
                row = LayoutEntry(kind="renamed", ours=(branch.name,), on_disk=on_disk)
                plans += [_Plan((row, *plan.rows)) for plan in (_below(branch, on_disk, known),) if plan is not None]
        known[key] = min((plan for plan in plans if plan is not None), key=_Plan.cost)
    return known[key]


def _below(branch: _Branch, inherited: str, known: dict[tuple[str, str], _Plan]) -> _Plan | None:
    """Return the plan of what is below a branch that is stored under `inherited`; None if that is wrong for the
    branch."""
    if branch.on_disk is not None:
        return _Plan() if branch.on_disk == inherited else None
    plans = [_best(child, f"{inherited}.{name.rpartition('.')[2]}", known) for name, child in branch.children.items()]
    return _Plan(tuple(row for plan in plans for row in plan.rows))


def _prefix(leaf: _Branch, name: str) -> str | None:
    """Return what the branch `name` would be stored as, if this parameter below it is to have its name on disk."""
    assert leaf.on_disk is not None
    rest = leaf.name.removeprefix(name)
    return leaf.on_disk.removesuffix(rest) if leaf.on_disk.endswith(rest) and leaf.on_disk != rest else None


# -------------------------------------------------------------------------------------------------------------- skipped

# Names in published checkpoints that hold nothing of the model: declared by the class, or computed by code.


PLAIN = re.compile(r"(\w|\\\.|\.|\\d\+|\(\^\|\\\.\))+")
"""A declaration that is a name, or its beginning: with dots, escaped or not, and numbers."""
ANCHORS = ("^", r"(^|\.)", r"(?:^|\.)")


def tables(instance: Instance) -> frozenset[str]:
    """Return the buffers in `state_dict()` that the code computes from the config (masks, frequencies): no weights.

    What is a weight was given random values; what is a table still has those of a new model."""
    persistent = instance.model.state_dict()
    buffers = {name: tensor for name, tensor in instance.model.named_buffers() if name in persistent}
    if not buffers:
        return frozenset()
    new = oracle.construct(instance.subject, instance.hf_config).state_dict()
    return frozenset(name for name, tensor in buffers.items() if name in new and torch.equal(new[name], tensor))


def skipped_names(instance: Instance, needed: Iterable[str], read: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the regular expressions of names on disk that are passed over: what the class ignores when it loads a
    checkpoint, and tables. needed: names on disk; an expression that matches one that is not a table is left out. read:
    tables that are read nevertheless, since they are written back."""
    declared = getattr(instance.model, "_keys_to_ignore_on_load_unexpected", None) or ()
    patterns = [anchored(str(pattern)) for pattern in sorted(declared)]
    computed = tables(instance) - frozenset(read)
    patterns += [rf"^{re.sub(r'[0-9]+', r'[0-9]+', re.escape(name))}$" for name in sorted(computed)]
    names = [name for name in needed if name not in computed]
    return tuple(dict.fromkeys(each for each in patterns if not any(re.search(each, name) for name in names)))


def anchored(pattern: str) -> str:
    """Return a declaration as an expression that matches whole parts of names: "model\\.layers\\.61.*" is meant for
    layer 61, and would as it stands match layer 610 of another config."""
    core = next((pattern.removeprefix(anchor) for anchor in ANCHORS if pattern.startswith(anchor)), pattern)
    core = core.removesuffix("$").removesuffix(".*").removesuffix(r"\.").removeprefix(".*")
    if not PLAIN.fullmatch(core):
        return pattern
    core = re.sub(r"(?<!\\)\.", r"\\.", core)
    start = "^" if pattern.startswith("^") or core.startswith("model") else r"(^|\.)"
    return rf"{start}{core}(\.|$)"
