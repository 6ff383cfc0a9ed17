"""Where the canonical tensors of one instance are among stored ones: by value, never by name.

Every candidate row of an adapter's table writes what it would store, and that is looked up among the stored tensors;
weights are random: equal values mean the same tensor. Several rows may hold for one instance (with one key head,
groups and concatenation are the same); all are kept.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from areal.models import adapter
from areal.porting.family import LayoutEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

QKV_ARRANGEMENTS: Final = ("per_head", "per_group", "concat", "4_blocks", "interleaved", "2_blocks", "8_blocks")
FUSED_ATTENTION: Final = (
    ("q_proj", "k_proj", "v_proj"),
    ("k_proj", "v_proj"),
    ("q_proj", "gate_proj"),
    ("q_proj", "k_proj"),
    ("q_proj", "k_proj", "v_proj", "gate_proj"),
)
TOGETHER_PER_KEY_HEAD: Final = (
    ("q_proj", "k_proj", "v_proj", "gate_proj"),
    ("rate_proj", "decay_proj"),
    ("decay_proj", "rate_proj"),
)
"""What a matrix may hold for each key head of a delta rule."""
FILTERS: Final = (
    ("conv",),
    ("q_conv", "k_conv", "v_conv"),
    ("x_conv", "b_conv", "c_conv"),
    ("q_conv",),
    ("k_conv",),
    ("v_conv",),
)
"""Convolutions whose filters may be stored in one tensor."""
SUFFIXES: Final = (".weight", ".bias")


def row_of(entry: LayoutEntry) -> adapter.Row:
    """Return the adapter's row that an entry stands for."""
    alternative = None if entry.alternative is None else row_of(entry.alternative)
    ours = entry.ours[0] if len(entry.ours) == 1 else entry.ours
    if entry.kind == "renamed":
        return adapter.Renamed(ours, entry.on_disk, alternative=alternative)
    if entry.kind == "transposed":
        return adapter.Transposed(ours, entry.on_disk, alternative=alternative)
    if entry.kind == "swapped_halves":
        return adapter.SwappedHalves(ours, entry.on_disk, alternative=alternative)
    if entry.kind == "reshaped":
        return adapter.Reshaped(ours, entry.on_disk, entry.shape, alternative=alternative)
    if entry.kind in ("filters", "filter_pieces"):
        filters = adapter.Filters if entry.kind == "filters" else adapter.FilterPieces
        return filters(ours, entry.on_disk, alternative=alternative)
    arrangement, transposed = entry.arrangement or "concat", entry.transposed
    classes: dict[str, type[adapter.Rows | adapter.SeparateExperts | adapter.StackedExperts]] = {
        "query_key_value": adapter.QueryKeyValue,
        "rows": adapter.Rows,
        "experts": adapter.SeparateExperts,
        "stacked_experts": adapter.StackedExperts,
    }
    return classes[entry.kind](ours, entry.on_disk, arrangement, transposed, alternative=alternative)


class StoredTensors:
    """Tensors by their values."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._names: dict[tuple[tuple[int, ...], int], list[str]] = {}
        self._flat: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            digest = _digest(tensor)
            self._names.setdefault((tuple(tensor.shape), digest), []).append(name)
            self._flat.setdefault(digest, []).append(name)

    def find(self, tensor: Tensor) -> list[str]:
        """Return the names of the tensors that are equal to this one."""
        names = self._names.get((tuple(tensor.shape), _digest(tensor)), [])
        return [name for name in names if torch.equal(self.tensors[name], tensor)]

    def find_reshaped(self, tensor: Tensor) -> list[str]:
        """Return the names of tensors of another shape with these values in this order."""
        names = self._flat.get(_digest(tensor), [])
        return [
            name
            for name in names
            if self.tensors[name].shape != tensor.shape and torch.equal(self.tensors[name].flatten(), tensor.flatten())
        ]


def _digest(tensor: Tensor) -> int:
    return hash(tensor.contiguous().numpy().tobytes())


@dataclass(frozen=True)
class StoredMatch:
    """All ways in which some canonical tensors are stored, with the names of one layer written out."""

    ours: tuple[str, ...]
    entries: tuple[LayoutEntry, ...]
    stored: frozenset[str]
    """Every stored tensor that one of the entries reads."""


def find_all(weights: Mapping[str, Tensor], stored: StoredTensors, mixers: Mapping[str, object]) -> list[StoredMatch]:
    """Return how each canonical tensor is stored; those that are not found are missing in the result.

    mixers: spec of each layer's mixer, by its canonical name ("layers.0.self_attn").

    Example: q_proj [96, 64], k_proj and v_proj [48, 64] of a tiny phi3. No stored tensor equals any of them. The
    candidates of `_candidates` are written as the adapter would write them: [q; k; v] gives a matrix [192, 64] that
    equals model.layers.0.self_attn.qkv_proj.weight, so the entry is query_key_value with arrangement "concat". Falcon's
    equals the "per_group" arrangement: for every key head its query heads' rows, then k, then v.
    """
    found: list[StoredMatch] = []
    done: set[str] = set()
    for name in weights:
        if name in done:
            continue
        for ours, candidates in _candidates(name, weights):
            mixer = mixers.get(name.rpartition("self_attn")[0] + "self_attn")
            match = _match(ours, candidates, weights, stored, mixer)
            if match is not None:
                found.append(match)
                done.update(ours)
                break
    found += _cut_filters({name: weights[name] for name in weights if name not in done}, stored)
    done.update(name for match in found for name in match.ours)
    return found + _concatenated({name: weights[name] for name in weights if name not in done}, stored, found)


def _match(
    ours: tuple[str, ...],
    candidates: Iterable[LayoutEntry],
    weights: Mapping[str, Tensor],
    stored: StoredTensors,
    mixer: object,
) -> StoredMatch | None:
    entries: list[LayoutEntry] = []
    used: set[str] = set()
    for candidate in candidates:
        try:
            row = row_of(candidate)
            written = row.write([weights[name] for name in ours], row.measure(mixer))
        except (RuntimeError, ZeroDivisionError):  # head counts that this arrangement cannot have
            continue
        names = [stored.find(tensor) for tensor in written]
        if not all(names):
            continue
        for on_disk in _patterns(names) if candidate.kind == "experts" else names[0]:
            entries.append(replace(candidate, on_disk=on_disk))
        used.update(itertools.chain.from_iterable(names))
    if not entries and len(ours) == 1:
        for on_disk in stored.find_reshaped(weights[ours[0]]):
            # -1 for the one size that is not 1, as far as there is only one.
            sizes = stored.tensors[on_disk].shape
            large = [index for index, size in enumerate(sizes) if size != 1]
            shape = tuple(-1 if [index] == large else size for index, size in enumerate(sizes))
            entries.append(LayoutEntry(kind="reshaped", ours=ours, on_disk=on_disk, shape=shape))
            used.add(on_disk)
    return StoredMatch(ours, tuple(entries), frozenset(used)) if entries else None


def _patterns(names: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of one tensor per expert as one name with {expert}: every number that counts along."""
    patterns: list[str] = []
    for first in names[0]:
        for match in re.finditer(r"(?<!\d)0(?!\d)", first):
            before, after = first[: match.start()], first[match.end() :]
            if all(f"{before}{expert}{after}" in options for expert, options in enumerate(names)):
                patterns.append(f"{before}{{expert}}{after}")
    return patterns


def _candidates(name: str, weights: Mapping[str, Tensor]) -> Iterator[tuple[tuple[str, ...], list[LayoutEntry]]]:
    """Yield the groups of canonical tensors that may be stored together, with the rows to try; `name` is in each."""
    tensor = weights[name]

    def entry(kind: str, ours: tuple[str, ...], arrangement: str = "", *, transposed: bool = False) -> LayoutEntry:
        return LayoutEntry(kind=kind, ours=ours, on_disk="", arrangement=arrangement, transposed=transposed)  # type: ignore[arg-type]  # kinds are written out below

    if ".experts." in name:
        yield from _expert_candidates(name, weights)
        return
    owner = name.rpartition("_proj")[0].rpartition(".")[0]
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    yield from _of_states(name, weights, owner, suffix)
    yield (name,), [entry("renamed", (name,)), *([entry("transposed", (name,))] if tensor.dim() == 2 else [])]
    turned = (False, True) if tensor.dim() == 2 else (False,)
    if owner.endswith("self_attn") or ".self_attn." in name:
        # The latter: norms that are one module per head.
        yield (name,), [entry("swapped_halves", (name,)), *([entry("experts", (name,))] if tensor.dim() == 2 else [])]
    if owner.endswith("self_attn"):
        for group in FUSED_ATTENTION:
            ours = tuple(f"{owner}.{part}{suffix}" for part in group)
            if name not in ours or not all(part in weights for part in ours):
                continue
            for order in itertools.permutations(ours):
                yield (
                    order,
                    [
                        entry("query_key_value", order, arrangement, transposed=transposed)
                        for arrangement, transposed in itertools.product(QKV_ARRANGEMENTS, turned)
                    ],
                )
    for order in itertools.permutations((f"{owner}.gate_proj{suffix}", f"{owner}.up_proj{suffix}")):
        if name in order and all(part in weights for part in order):
            yield (
                order,
                [
                    entry("rows", order, arrangement, transposed=transposed)
                    for arrangement, transposed in itertools.product(("concat", "interleaved"), turned)
                ],
            )


def _of_states(
    name: str, weights: Mapping[str, Tensor], owner: str, suffix: str
) -> Iterator[tuple[tuple[str, ...], list[LayoutEntry]]]:
    """Yield the groups that only a mixer with a state has. owner: of the projection `name`, "" for others."""

    def group(kind: Literal["rows", "filters"], owner: str, parts: Sequence[str], suffix: str, arrangement: str) -> Any:
        ours = tuple(f"{owner}.{part}{suffix}" for part in parts)
        if name in ours and all(part in weights for part in ours):
            yield ours, [LayoutEntry(kind=kind, ours=ours, on_disk="", arrangement=arrangement)]

    parts: tuple[str, ...]
    for parts in TOGETHER_PER_KEY_HEAD:
        yield from group("rows", owner, parts, suffix, adapter.PER_KEY_HEAD)
    convolution = re.fullmatch(r"(.*\.(?:self_attn|beside))\.(?:\w_)?conv(\.weight|\.bias)", name)
    for parts in FILTERS if convolution else ():
        assert convolution is not None
        yield from group("filters", convolution[1], parts, convolution[2], "")


def _expert_candidates(name: str, weights: Mapping[str, Tensor]) -> Iterator[tuple[tuple[str, ...], list[LayoutEntry]]]:
    turned = (False, True) if weights[name].dim() == 3 else (False,)

    def entries(ours: tuple[str, ...], arrangements: tuple[str, ...]) -> list[LayoutEntry]:
        plain = [
            LayoutEntry(kind=kind, ours=ours, on_disk="", arrangement=arrangement, transposed=transposed)
            for kind in ("experts", "stacked_experts")
            for arrangement, transposed in itertools.product(arrangements, turned)
            if not (kind == "experts" and arrangement == "flattened")
        ]
        return plain

    yield (name,), [LayoutEntry(kind="renamed", ours=(name,), on_disk=""), *entries((name,), ("", "flattened"))]
    prefix, _, kind = name.rpartition("_")
    owner, _, role = prefix.rpartition(".")
    if role in ("gate", "up"):
        for order in (("gate", "up"), ("up", "gate")):
            ours = tuple(f"{owner}.{part}_{kind}" for part in order)
            if all(part in weights for part in ours):
                yield ours, entries(ours, ("concat", "interleaved"))


def _cut_filters(weights: Mapping[str, Tensor], stored: StoredTensors) -> list[StoredMatch]:
    """Return the filters of several convolutions that are stored in as many tensors, but cut elsewhere."""
    result: list[StoredMatch] = []
    owners = dict.fromkeys(name.rpartition("_conv.")[0][:-1] for name in weights if name.endswith("_conv.weight"))
    for owner, parts in itertools.product(owners, FILTERS):
        ours = tuple(f"{owner}{part}.weight" for part in parts)
        if len(ours) == 1 or not all(name in weights for name in ours):
            continue
        left = torch.cat([weights[name] for name in ours])[:, None]
        pieces: list[str] = []
        while len(left):
            piece = next((name for name, tensor in stored.tensors.items() if _starts(left, tensor)), None)
            if piece is None:
                break
            pieces.append(piece)
            left = left[len(stored.tensors[piece]) :]
        if len(left) or len(pieces) != len(ours):
            continue
        before = _beginning(pieces)
        after = _beginning([name.removeprefix(before)[::-1] for name in pieces])[::-1]
        between = ",".join(name.removeprefix(before).removesuffix(after) for name in pieces)
        entry = LayoutEntry(kind="filter_pieces", ours=ours, on_disk=f"{before}{{{between}}}{after}")
        result.append(StoredMatch(ours, (entry,), frozenset(pieces)))
    return result


def _beginning(names: Sequence[str]) -> str:
    """Return the letters that all names begin with."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _concatenated(
    weights: Mapping[str, Tensor], stored: StoredTensors, found: Sequence[StoredMatch]
) -> list[StoredMatch]:
    """Return any further matrices or vectors that are stored end to end in one tensor."""
    used = frozenset().union(*(match.stored for match in found))
    left = {name: tensor for name, tensor in stored.tensors.items() if name not in used and tensor.dim() in (1, 2)}
    result: list[StoredMatch] = []
    for on_disk, whole in left.items():
        for transposed in (False, True) if whole.dim() == 2 else (False,):
            rows = whole.T if transposed else whole
            parts: list[str] = []
            start = 0
            while start < len(rows):
                part = next((name for name, tensor in weights.items() if _starts(rows[start:], tensor)), None)
                if part is None:
                    break
                parts.append(part)
                start += len(weights[part])
            if start == len(rows) and len(parts) > 1:
                ours = tuple(parts)
                entry = LayoutEntry(
                    kind="rows", ours=ours, on_disk=on_disk, arrangement="concat", transposed=transposed
                )
                result.append(StoredMatch(ours, (entry,), frozenset((on_disk,))))
                break
    return result


def _starts(rows: Tensor, part: Tensor) -> bool:
    return (
        part.dim() == rows.dim()
        and part.shape[1:] == rows.shape[1:]
        and len(part) <= len(rows)
        and torch.equal(rows[: len(part)], part)
    )
