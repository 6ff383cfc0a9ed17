"""Parameter names and layouts between ours and the checkpoint on disk, as a table that each family fills.

Which parameters there are is asked of the model itself; the table says only what is not stored under "model." and our
name. "On disk" is what is in the safetensors files, which for mixtures of experts is not what `transformers` holds in
memory; a row's `alternative` lets that layout be read as well, since some tools dump it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import torch

from areal.api import ModelError, StateDictAdapter
from areal.models.adapter_rows import (
    Experts,
    QueryKeyValue,
    Renamed,
    Reshaped,
    Row,
    Rows,
    StackedExperts,
    SwappedHalves,
    Transposed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from areal.api import BaseModelArgs
    from areal.models.adapter_rows import Box, Stored

    class Shaped(Protocol):
        """A tensor, or one on disk."""

        @property
        def shape(self) -> torch.Size:
            """Of the whole."""
            ...


__all__ = [
    "Experts",
    "QueryKeyValue",
    "Renamed",
    "Reshaped",
    "Rows",
    "StackedExperts",
    "SwappedHalves",
    "TableAdapter",
    "Transposed",
]

HEAD: Final = "lm_head.weight"
EMBEDDING: Final = "embed_tokens.weight"
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
        shapes = [(name, state_dict[name].shape, blank.shape) for name, blank in zip(self.on_disk, blanks, strict=True)]
        return [
            f"{', '.join(self.ours)} ({name}) is {list(found)}, expected {list(expected)}"
            for name, found, expected in shapes
            if found != expected
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
class Located:
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
        super().__init__(args)
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

    def locate(self, state_dict: Mapping[str, Shaped]) -> Located:
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
        return Located(tuple(units), tied_head)

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

    def _row(self, name: str) -> Row:
        """Return the row for one of our names: the longest that names it or a module around it, or the usual one."""
        pattern = re.sub(r"^layers\.\d+", "layers.*", name)
        parts = pattern.split(".")
        for length in range(len(parts), 0, -1):
            row = self._rows.get(".".join(parts[:length]))
            if row is not None:
                return row
        return Renamed(pattern, pattern if parts[0] == "lm_head" else f"model.{pattern}")

    def _unit(self, row: Row, name: str) -> StoredUnit:
        """Return the application of `row` to the layer of `name`, one of our names."""
        layer = name.split(".")[1] if name.startswith("layers.") else ""
        targets = [target.replace("*", layer) for target in row.targets]
        suffix = next(name[len(target) :] for target in targets if name == target or name.startswith(f"{target}."))
        ours = tuple(target + suffix for target in targets)
        absent = [other for other in ours if other not in self._shapes]
        if absent:
            raise ModelError(
                f"{type(self).__name__}: {name} would be stored with {_listing(absent)}, which this model lacks"
            )
        shapes = tuple(self._shapes[other] for other in ours)
        on_disk = row.names(row.on_disk.replace("*", layer) + suffix, shapes)
        return StoredUnit(row, ours, shapes, on_disk, self._head_dim(name))

    def _head_dim(self, name: str) -> int:
        """Return the head size of the attention layer that one of our names belongs to; 0 elsewhere."""
        owner = (
            self._model.get_submodule(name.rpartition("self_attn.")[0] + "self_attn") if "self_attn." in name else None
        )
        return getattr(owner, "head_dim", 0)

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
        return name if HEAD not in self._shapes and name in unexpected else None

    def is_skipped(self, key: str) -> bool:
        """Return whether a name on disk holds nothing of this model."""
        return any(re.search(pattern, key) for pattern in (*ALWAYS_SKIPPED, *self.skipped))


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
