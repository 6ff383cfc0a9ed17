"""Parameter names and layouts between ours and the checkpoint on disk, as a table that each family fills.

Which parameters there are is asked of the model itself; the table says only what is not stored under "model." and our
name. "On disk" is what is in the safetensors files, which for mixtures of experts is not what `transformers` holds in
memory; a row's `alternative` lets that layout be read as well, since some tools dump it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import torch

from areal.api import ModelError, StateDictAdapter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from areal.api import BaseModelArgs
    from areal.models.wrapping import Wrapping

    class Shaped(Protocol):
        """A tensor, or one on disk."""

        @property
        def shape(self) -> torch.Size:
            """Of the whole."""
            ...


__all__ = [
    "Filters",
    "QueryKeyValue",
    "Renamed",
    "Reshaped",
    "Rows",
    "SeparateExperts",
    "StackedExperts",
    "SwappedHalves",
    "TableAdapter",
    "Transposed",
]

HEAD: Final = "lm_head.weight"
EMBEDDING: Final = "embed_tokens.weight"
MIXER: Final = "self_attn"
"""What every mixer is called with us. Rows call those with a state by their `place` ("layers.*.delta.q_proj"): a model
may have several kinds, whose matrices have the same names and are stored under others."""
PER_KEY_HEAD: Final = "per_key_head"
ALWAYS_SKIPPED: Final = (r"(^|\.)rotary_emb\.inv_freq$",)
"""Names on disk that never hold anything to load. Rotary frequencies are computed from the config."""


@dataclass(frozen=True)
class StoredUnit:
    """Parameters that are stored together: one application of a row."""

    row: Row
    ours: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    on_disk: tuple[str, ...]
    head_dim: int

    def problems(self, state_dict: Mapping[str, Shaped]) -> list[str]:
        """Return the tensors on disk that have another shape than the config says."""
        with torch.device("meta"):
            blanks = self.row.write([torch.empty(shape) for shape in self.shapes], self.head_dim)
        found, expected = [state_dict[name].shape for name in self.on_disk], [blank.shape for blank in blanks]
        if self.row.accepts(found, expected):
            return []
        return [
            f"{', '.join(self.ours)} ({name}) is {list(shape)}, expected {list(wanted)}"
            for name, shape, wanted in zip(self.on_disk, found, expected, strict=True)
            if shape != wanted
        ]

    def read(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors."""
        stored = [state_dict[name] for name in self.on_disk]
        return dict(zip(self.ours, self.row.read(stored, self.shapes, self.head_dim), strict=True))

    def read_part(self, stored: Mapping[str, Stored], name: str, box: Box) -> Tensor:
        """Return a part of one of our tensors, which has numbers in it."""
        tensors = [stored[source] for source in self.on_disk]
        return self.row.read_part(tensors, self.shapes, self.head_dim, self.ours.index(name), box)

    def write(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors on disk."""
        stored = self.row.write([state_dict[name] for name in self.ours], self.head_dim)
        return dict(zip(self.on_disk, stored, strict=True))


@dataclass(frozen=True)
class LocatedParameters:
    """Where the parameters of a model are on disk."""

    units: tuple[StoredUnit, ...]
    """In the layouts in which they are stored, in the order of our names."""
    tied_head: str | None
    """Name on disk of a head that is stored although it is the embedding; it has to be equal to it."""


class TableAdapter(StateDictAdapter):
    """Adapter of a `DecoderModel` by a table.

    class LlamaStateDictAdapter(TableAdapter):
        model_class = LlamaModel
        table = (Renamed("layers.*.mlp.router", "model.layers.*.mlp.gate"),)

    Of several rows that match a parameter, the one with the longest name of ours applies.
    """

    model_class: ClassVar[type[Any]]
    """The family's model, made of its arguments."""
    table: ClassVar[tuple[Row, ...]] = ()
    skipped: ClassVar[tuple[str, ...]] = ()
    """Regular expressions of names on disk that hold nothing of this model, beside `ALWAYS_SKIPPED`."""

    def __init__(self, args: BaseModelArgs) -> None:
        self.args = args
        self._wrapping: Wrapping | None = getattr(args, "wrapping", None)
        with torch.device("meta"):
            self._model: nn.Module = self.model_class(args)
        self._shapes = {name: tensor.shape for name, tensor in self._model.state_dict().items()}
        self._rows = {target: row for row in self.table for target in row.targets}
        self._units: dict[str, StoredUnit] = {}
        """The unit of each of our names; names that are stored together have the same."""
        for name in self._shapes:
            if name not in self._units:
                unit = self._unit(self._row(name), name)
                self._units.update(dict.fromkeys(unit.ours, unit))

    def from_hf(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert tensors by names on disk to tensors by our names.

        Raises ModelError naming all missing, unexpected and misshapen tensors.
        """
        located = self.locate(state_dict)
        ours: dict[str, Tensor] = {}
        for unit in located.units:
            ours |= unit.read(state_dict)
        if located.tied_head is not None:
            head, embedding = state_dict[located.tied_head], ours[EMBEDDING]
            if head.shape != embedding.shape or not torch.equal(head, embedding):
                raise ModelError(untied(located.tied_head))
        return {name: ours[name] for name in self._shapes}

    def locate(self, state_dict: Mapping[str, Shaped]) -> LocatedParameters:
        """Return where everything is in a checkpoint, by the names and shapes in it. Raises ModelError as `from_hf`
        does."""
        used: set[str] = set()
        missing: list[str] = []
        wrong: list[str] = []
        units: list[StoredUnit] = []
        done: set[str] = set()
        for name in self._shapes:
            if name in done:
                continue
            unit = self._stored_unit(name, state_dict)
            done.update(unit.ours)
            used.update(unit.on_disk)
            absent = [source for source in unit.on_disk if source not in state_dict]
            missing += absent
            if not absent:
                wrong += unit.problems(state_dict)
            units.append(unit)
        unexpected = [key for key in state_dict if key not in used and not self.is_skipped(key)]
        tied_head = self._tied_head(unexpected)
        if tied_head is not None:
            unexpected.remove(tied_head)
        if missing or unexpected:
            raise ModelError(
                f"checkpoint does not hold a model of type {self.args.model_type!r} with this config: "
                f"missing {_listing(missing)}; unexpected {_listing(unexpected)}"
            )
        if wrong:
            raise ModelError(f"shapes do not fit config.json: {'; '.join(wrong[:8])}")
        return LocatedParameters(tuple(units), tied_head)

    def to_hf(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our names to those on disk, also for a part of the model. Raises ModelError for a foreign name, and
        when only some of the parameters that are stored in one tensor are given."""
        foreign = [name for name in state_dict if name not in self._units]
        if foreign:
            raise ModelError(f"not parameters of a model of type {self.args.model_type!r}: {_listing(foreign)}")
        on_disk: dict[str, Tensor] = {}
        for name in state_dict:
            unit = self._units[name]
            absent = [other for other in unit.ours if other not in state_dict]
            if absent:
                raise ModelError(f"{name} is stored in one tensor with {_listing(absent)}; give them together")
            if name == unit.ours[0]:
                on_disk |= unit.write(state_dict)
        return on_disk

    @property
    def units(self) -> tuple[StoredUnit, ...]:
        """What is stored together, in the order of our names."""
        return tuple(dict.fromkeys(self._units.values()))

    def names_on_disk(self) -> list[str]:
        """Return the names of everything that is stored."""
        return [name for unit in self.units for name in unit.on_disk]

    def _row(self, name: str) -> Row:
        """Return the row for one of our names: the longest that names it or a module around it, or the usual one."""
        pattern = re.sub(r"^layers\.\d+", "layers.*", name)
        if self._place(name) != MIXER:
            pattern = pattern.replace(f".{MIXER}.", f".{self._place(name)}.", 1)
        parts = pattern.split(".")
        for length in range(len(parts), 0, -1):
            row = self._rows.get(".".join(parts[:length]))
            if row is not None:
                return row
        return Renamed(pattern, pattern if parts[0] == "lm_head" else f"model.{pattern}")

    def _unit(self, row: Row, name: str) -> StoredUnit:
        """Return the application of `row` to the layer of `name`, one of our names."""
        layer = name.split(".")[1] if name.startswith("layers.") else ""
        place = f"layers.{layer}.{self._place(name)}"
        targets = [re.sub(rf"^{place}\b", f"layers.{layer}.{MIXER}", each.replace("*", layer)) for each in row.targets]
        suffix = next(name[len(target) :] for target in targets if name == target or name.startswith(f"{target}."))
        ours = tuple(target + suffix for target in targets)
        absent = [other for other in ours if other not in self._shapes]
        if absent:
            raise ModelError(
                f"{type(self).__name__}: {name} would be stored with {_listing(absent)}, which this model lacks"
            )
        shapes = tuple(self._shapes[other] for other in ours)
        # A row of the whole layer goes on with what rows call the mixer.
        below = re.sub(rf"^\.{MIXER}\b", f".{self._place(name)}", suffix)
        on_disk = row.names(row.on_disk.replace("*", layer) + below, shapes)
        if self._wrapping is not None:
            on_disk = tuple(map(self._wrapping.layout.outer, on_disk))
        return StoredUnit(row, ours, shapes, on_disk, row.measure(self._mixer(name)))

    def _mixer(self, name: str) -> nn.Module | None:
        """Return the mixer that one of our names belongs to; None elsewhere."""
        owner, inside, _ = name.partition(f".{MIXER}.")
        return self._model.get_submodule(f"{owner}.{MIXER}") if inside else None

    def _place(self, name: str) -> str:
        """Return what rows call the mixer that one of our names belongs to."""
        return getattr(self._mixer(name), "place", MIXER)

    def _stored_unit(self, name: str, state_dict: Mapping[str, Shaped]) -> StoredUnit:
        """Return the unit in whose layout `name` is stored: the row's, or its alternative if only that is complete."""
        unit = self._units[name]
        row = unit.row.alternative
        if row is None or all(source in state_dict for source in unit.on_disk):
            return unit
        alternative = self._unit(row, name)
        return alternative if all(source in state_dict for source in alternative.on_disk) else unit

    def _tied_head(self, unexpected: Sequence[str]) -> str | None:
        """Return the name of a stored head, in a model that has none beside its embedding."""
        name = self._row(HEAD).on_disk.removesuffix(".weight") + ".weight"
        if self._wrapping is not None:
            name = self._wrapping.layout.outer(name)
        return name if HEAD not in self._shapes and name in unexpected else None

    def is_skipped(self, key: str) -> bool:
        """Return whether a name on disk holds nothing of this model."""
        keys: Sequence[str] = (key,)
        if self._wrapping is not None:
            if self._wrapping.layout.keeps(key):
                return True
            keys = self._wrapping.layout.inner(key)
        return any(re.search(pattern, each) for pattern in (*ALWAYS_SKIPPED, *self.skipped) for each in keys)


def untied(name: str) -> str:
    """Return what is wrong with a stored head that is not the embedding it is tied to."""
    return (
        f"config says tie_word_embeddings, but {name} in the checkpoint differs from the embedding; "
        "set tie_word_embeddings to false, or remove the tensor"
    )


def _listing(names: list[str], limit: int = 8) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


Box = tuple[slice, ...]
"""Part of a tensor: start and stop along each dimension."""


class Stored(Protocol):
    """A tensor on disk, of which parts can be read."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
        ...

    def read(self, box: Box | None = None) -> Tensor:
        """Return a part of it, or all."""
        ...


@dataclass(frozen=True)
class Row(ABC):
    """One row of a table. `alternative`: another layout of the same parameters that is accepted on reading."""

    ours: str | tuple[str, ...]
    """Name or names with us; several are stored as one tensor, in this order."""
    on_disk: str
    alternative: Row | None = field(default=None, kw_only=True)

    @property
    def targets(self) -> tuple[str, ...]:
        """`ours` as a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def names(self, name: str, shapes: Sequence[torch.Size]) -> tuple[str, ...]:
        """Return the names on disk, from the one that `on_disk` gives for a layer, and the shapes with us."""
        return (name,)

    def measure(self, mixer: object) -> int:
        """Return the number that the layout depends on beside the shapes: the head size of the attention that the
        tensors belong to, 0 elsewhere (mixer: None)."""
        return int(getattr(mixer, "head_dim", 0))

    def accepts(self, found: Sequence[torch.Size], expected: Sequence[torch.Size]) -> bool:
        """Return whether stored tensors of these shapes can be read; expected: of what `write` returns."""
        return list(found) == list(expected)

    @abstractmethod
    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """Return our tensors, of `shapes`, from those stored; head_dim: what `measure` gives."""

    @abstractmethod
    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """Return the inverse of `read`."""

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """`box` of our tensor number `index`: `read(...)[index][box]`, reading no more than is needed where the layout
        allows it; here everything that is stored with it."""
        return self.read([tensor.read() for tensor in stored], shapes, head_dim)[index][box]


@dataclass(frozen=True)
class Renamed(Row):
    """The same tensor under another name."""

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(stored)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(tensors)

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        return stored[0].read(box)


@dataclass(frozen=True)
class Reshaped(Row):
    """The same numbers in another shape, e.g. (1, -1) for a vector that is stored as one row; -1: what is left."""

    shape: tuple[int, ...]

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [stored[0].reshape(shapes[0])]

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [tensors[0].reshape(self.shape)]


@dataclass(frozen=True)
class Transposed(Row):
    """A matrix that is stored as [in, out]."""

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [_transposed(stored[0], True)]

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [_transposed(tensors[0], True)]

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        return _read_rows(stored[0], box, [shapes[0][0]], 0, groups=1, transposed=True)


@dataclass(frozen=True)
class SwappedHalves(Row):
    """The second half of every head's features is stored before the first.

    That makes a rotation that turns clockwise (NanoChat) one that turns as all others do.
    """

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return self.write(stored, head_dim)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row. Its own inverse."""
        return [tensors[0].unflatten(0, (-1, 2, head_dim // 2)).flip(1).flatten(0, 2)]


@dataclass(frozen=True)
class Rows(Row):
    """Modules stacked along their output features in one matrix.

    arrangement: "concat", all rows of the first, then of the second; "interleaved", a row of each in turn;
    "per_key_head", for each key head of a mixer with a state the rows of all parts that it serves (Qwen3-Next).
    """

    arrangement: str = "concat"
    transposed: bool = False

    def measure(self, mixer: object) -> int:
        """See Row: the number of key heads where that is asked for."""
        return int(getattr(mixer, "num_key_heads", 0)) if self.arrangement == PER_KEY_HEAD else super().measure(mixer)

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = _transposed(stored[0], self.transposed)
        rows = [shape[0] for shape in shapes]
        return _split(whole, rows, self._groups(rows, head_dim), 0)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        groups = self._groups([tensor.shape[0] for tensor in tensors], head_dim)
        return [_transposed(_merge(tensors, groups, 0), self.transposed)]

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        rows = [shape[0] for shape in shapes]
        return _read_rows(stored[0], box, rows, index, groups=self._groups(rows, head_dim), transposed=self.transposed)

    def _groups(self, rows: Sequence[int], head_dim: int) -> int:
        """Return the number of equal runs in which every part has its share of rows."""
        if self.arrangement == PER_KEY_HEAD:
            return head_dim
        return _groups(self, self.arrangement, rows[0])


@dataclass(frozen=True)
class Filters(Row):
    """Filters of depthwise convolutions, those of the first above those of the second: [channels, 1, taps] on disk,
    [channels, taps] with us. Their biases, if there are any, likewise in one vector."""

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(stored[0].reshape(-1, *shapes[0][1:]).split([shape[0] for shape in shapes]))

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = torch.cat(list(tensors))
        return [whole[:, None] if whole.dim() > 1 else whole]


@dataclass(frozen=True)
class FilterPieces(Row):
    """Filters of depthwise convolutions in a tensor each, whose names stand between braces: "{q,k,v}_conv1d".

    They are read end to end, wherever they are cut: published checkpoints cut them where queries, keys and values end,
    as is done here, and transformers, which reads them end to end as well, saves equal parts (OLMo Hybrid).
    """

    def names(self, name: str, shapes: Sequence[torch.Size]) -> tuple[str, ...]:
        """See Row."""
        before, pieces, after = re.split(r"[{}]", name)
        return tuple(f"{before}{piece}{after}" for piece in pieces.split(","))

    def accepts(self, found: Sequence[torch.Size], expected: Sequence[torch.Size]) -> bool:
        """See Row."""
        whole = sum(shape[0] for shape in expected)
        return {shape[1:] for shape in found} == {expected[0][1:]} and sum(shape[0] for shape in found) == whole

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(torch.cat(list(stored)).reshape(-1, *shapes[0][1:]).split([shape[0] for shape in shapes]))

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [tensor[:, None] for tensor in tensors]


@dataclass(frozen=True)
class QueryKeyValue(Rows):
    """Query, key and value projections in one matrix; `ours` names them in the order of their rows in a group.

    arrangement: "concat", one group; "per_head", a group for each query head, where there are as many key heads (the
    GPT-NeoX way); "per_group", one for each key-value head with all query heads that share it (Falcon, InternLM 2);
    "N_blocks", N equal groups whatever the heads are ("4_blocks" in CodeGen, whose order is query, value, key);
    "interleaved", a row of each in turn.
    """

    def _groups(self, rows: Sequence[int], head_dim: int) -> int:
        if self.arrangement == "per_head":
            return rows[self._index("q_proj")] // max(head_dim, 1)
        if self.arrangement == "per_group":
            return rows[self._index("k_proj")] // max(head_dim, 1)
        blocks = re.fullmatch(r"(\d+)_blocks", self.arrangement)
        return int(blocks[1]) if blocks else super()._groups(rows, head_dim)

    def _index(self, projection: str) -> int:
        return next((index for index, name in enumerate(self.targets) if projection in name), 0)


@dataclass(frozen=True)
class SeparateExperts(Row):
    """A tensor per expert (or head) on disk, `{expert}` in its name; ours are stacked along dimension 0.

    Two of ours (gate and up) are one matrix per expert; arrangement as in Rows.
    """

    arrangement: str = "concat"
    transposed: bool = False

    def names(self, name: str, shapes: Sequence[torch.Size]) -> tuple[str, ...]:
        """See Row."""
        return tuple(name.replace("{expert}", str(expert)) for expert in range(shapes[0][0]))

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return _split_experts(self, torch.stack(list(stored)), shapes)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(_merge_experts(self, tensors).unbind())

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        return _read_experts(self, stored, shapes, index, box)


@dataclass(frozen=True)
class StackedExperts(Row):
    """One tensor of all experts on disk: [experts, out, in], or [experts, in, out] when transposed.

    Two of ours (gate and up) share it, arrangement as in Rows. "flattened": one of ours, experts and the next dimension
    are one, [experts * out, in] or when transposed [experts * in, out] (DBRX).
    """

    arrangement: str = "concat"
    transposed: bool = False

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = stored[0].unflatten(0, (shapes[0][0], -1)) if self.arrangement == "flattened" else stored[0]
        return _split_experts(self, whole, shapes)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = _merge_experts(self, tensors)
        return [whole.flatten(0, 1) if self.arrangement == "flattened" else whole]

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        number = shapes[0][0]
        rows = stored[0].shape[0] // number if self.arrangement == "flattened" else None
        return _read_experts(
            self, [_OneOfStack(stored[0], expert, rows) for expert in range(number)], shapes, index, box
        )


@dataclass(frozen=True)
class _OneOfStack:
    """A `Stored` of one expert out of a tensor of all."""

    stack: Stored
    expert: int
    rows: int | None
    """Of each expert, where experts and rows are one dimension."""

    @property
    def shape(self) -> torch.Size:
        """Of the expert."""
        rest = self.stack.shape[1:]
        return rest if self.rows is None else torch.Size((self.rows, *rest))

    def read(self, box: Box | None = None) -> Tensor:
        """See `Stored`."""
        box = tuple(slice(0, size) for size in self.shape) if box is None else box
        if self.rows is None:
            return self.stack.read((slice(self.expert, self.expert + 1), *box))[0]
        start = self.expert * self.rows
        return self.stack.read((slice(start + box[0].start, start + box[0].stop), *box[1:]))


def _merge(parts: Sequence[Tensor], groups: int, dim: int) -> Tensor:
    """Stack along `dim`: the first of `groups` shares of each part, then the second of each, and so on."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.unflatten(dim, (groups, -1)) for part in parts], dim + 1).flatten(dim, dim + 1)


def _split(whole: Tensor, sizes: Sequence[int], groups: int, dim: int) -> list[Tensor]:
    """Return the inverse of `_merge` for parts of `sizes` along `dim`."""
    if len(sizes) == 1:
        return [whole]
    pieces = whole.unflatten(dim, (groups, -1)).split([size // groups for size in sizes], dim + 1)
    return [piece.flatten(dim, dim + 1) for piece in pieces]


def _transposed(matrix: Tensor, transposed: bool) -> Tensor:
    return matrix.T if transposed and matrix.dim() == 2 else matrix


def _merge_experts(row: SeparateExperts | StackedExperts, tensors: Sequence[Tensor]) -> Tensor:
    whole = _merge(tensors, _groups(row, row.arrangement, tensors[0].shape[1]), 1)
    return whole.transpose(1, 2) if row.transposed and whole.dim() == 3 else whole


def _split_experts(row: SeparateExperts | StackedExperts, whole: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    ours = whole.transpose(1, 2) if row.transposed and whole.dim() == 3 else whole
    sizes = [shape[1] for shape in shapes]
    return _split(ours, sizes, _groups(row, row.arrangement, sizes[0]), 1)


def _read_experts(
    row: SeparateExperts | StackedExperts, stored: Sequence[Stored], shapes: Sequence[torch.Size], index: int, box: Box
) -> Tensor:
    """`box` of our stack number `index`, from one stored tensor for each expert."""
    rows = [shape[1] for shape in shapes]
    groups = _groups(row, row.arrangement, rows[0])
    experts = range(box[0].start, box[0].stop)
    return torch.stack(
        [
            _read_rows(stored[expert], box[1:], rows, index, groups=groups, transposed=row.transposed)
            for expert in experts
        ]
    )


def _read_rows(stored: Stored, box: Box, sizes: Sequence[int], index: int, *, groups: int, transposed: bool) -> Tensor:
    """`box` of part number `index` of those that `_merge` stacked along dimension 0: one run of rows that has it."""
    if len(sizes) == 1:
        groups = 1
    share, before, together = sizes[index] // groups, sum(sizes[:index]) // groups, sum(sizes) // groups
    wanted = torch.arange(box[0].start, box[0].stop)
    places = wanted // share * together + before + wanted % share
    run = slice(int(places[0]), int(places[-1]) + 1)
    is_turned = transposed and len(box) == 2
    found = stored.read((box[1], run)).T if is_turned else stored.read((run, *box[1:]))
    return found if run.stop - run.start == len(wanted) else found[places - run.start]


def _groups(row: Row, arrangement: str, size: int) -> int:
    known = {"concat": 1, "flattened": 1, "interleaved": size}
    if arrangement not in known:
        raise ModelError(f"row {row.on_disk!r} of an adapter's table has the unknown arrangement {arrangement!r}")
    return known[arrangement]
