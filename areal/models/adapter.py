"""Parameter names and layouts between ours and the checkpoint on disk, as tables that each family fills.

A family lists, per layer, one entry for each of its parameters; reading, writing and the accounting of missing and
left-over names follow from the table. "On disk" is what is in the safetensors files, which for mixtures of experts is
not what `transformers` holds in memory; the in-memory layout is accepted on reading, since some tools dump it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import torch

from areal.api import ModelError, StateDictAdapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from areal.api import BaseModelArgs

HEAD: Final = "lm_head.weight"
EMBEDDING: Final = "embed_tokens.weight"
SKIPPED: Final = (r"(^|\.)rotary_emb\.inv_freq$",)
"""Names on disk that hold nothing to load, as regular expressions. Rotary frequencies are computed from the config."""


class Entry(Protocol):
    """One parameter of ours and where it is on disk."""

    @property
    def ours(self) -> str:
        """Name in `model.state_dict()`."""
        ...

    def sources(self, available: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Names on disk it is read from, given what the checkpoint has."""
        ...

    def read(self, tensors: list[Tensor]) -> Tensor:
        """Our tensor from those of `sources`."""
        ...

    def write(self, tensor: Tensor) -> dict[str, Tensor]:
        """The tensors on disk."""
        ...


@dataclass(frozen=True)
class Renamed:
    """The same tensor under another name."""

    ours: str
    on_disk: str

    def sources(self, available: Mapping[str, Tensor]) -> tuple[str, ...]:
        """See Entry."""
        return (self.on_disk,)

    def read(self, tensors: list[Tensor]) -> Tensor:
        """See Entry."""
        return tensors[0]

    def write(self, tensor: Tensor) -> dict[str, Tensor]:
        """See Entry."""
        return {self.on_disk: tensor}


@dataclass(frozen=True)
class StackedExperts:
    """A matrix per expert on disk, stacked along dimension 0 with us; or a part of one fused tensor of all experts."""

    ours: str
    on_disk: tuple[str, ...]
    """Name of each expert's matrix, in order."""
    fused: str
    """Name of the in-memory layout: [num_experts, parts * rows, columns]."""
    part: int = 0
    """Which of the fused tensor's parts along dimension 1 this parameter is."""
    parts: int = 1

    def sources(self, available: Mapping[str, Tensor]) -> tuple[str, ...]:
        """See Entry."""
        return (self.fused,) if self.fused in available else self.on_disk

    def read(self, tensors: list[Tensor]) -> Tensor:
        """See Entry."""
        if len(tensors) == 1 and tensors[0].dim() == 3:
            return tensors[0].chunk(self.parts, 1)[self.part]
        if len({tensor.shape for tensor in tensors}) > 1:
            raise ModelError(f"experts {self.on_disk[0]} .. {self.on_disk[-1]} have different shapes in the checkpoint")
        return torch.stack(tensors)

    def write(self, tensor: Tensor) -> dict[str, Tensor]:
        """See Entry."""
        return dict(zip(self.on_disk, tensor.unbind(), strict=True))


class DecoderAdapter(StateDictAdapter):
    """Adapter of a `DecoderModel`; a family implements `layer_entries`."""

    skipped: ClassVar[tuple[str, ...]] = SKIPPED

    def __init__(self, args: BaseModelArgs) -> None:
        super().__init__(args)
        entries: list[Entry] = [same(EMBEDDING), same("norm.weight")]
        for layer in range(args.num_layers):
            entries += self.layer_entries(layer)
        if not args.tie_word_embeddings:
            entries.append(Renamed(HEAD, HEAD))
        self.entries: dict[str, Entry] = {entry.ours: entry for entry in entries}

    @abstractmethod
    def layer_entries(self, layer: int) -> Iterable[Entry]:
        """Every parameter of one layer; names start with "layers.<layer>."."""

    def from_hf(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On-disk names to ours. Raises ModelError naming all missing and all unexpected keys."""
        used: set[str] = set()
        missing: list[str] = []
        ours: dict[str, Tensor] = {}
        for name, entry in self.entries.items():
            sources = entry.sources(state_dict)
            absent = [source for source in sources if source not in state_dict]
            missing += absent
            used.update(sources)
            if not absent:
                ours[name] = entry.read([state_dict[source] for source in sources])
        unexpected = [key for key in state_dict if key not in used and not self._is_skipped(key)]
        if self.args.tie_word_embeddings and HEAD in unexpected and EMBEDDING in ours:
            _check_tied(state_dict[HEAD], ours[EMBEDDING])
            unexpected.remove(HEAD)
        if missing or unexpected:
            raise ModelError(
                f"checkpoint does not hold a model of type {self.args.model_type!r} with this config: "
                f"missing {_listing(missing)}; unexpected {_listing(unexpected)}"
            )
        return ours

    def to_hf(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our names to those on disk, also for a subset of the model. Raises ModelError for a foreign name."""
        foreign = [name for name in state_dict if name not in self.entries]
        if foreign:
            raise ModelError(f"not parameters of a model of type {self.args.model_type!r}: {_listing(foreign)}")
        on_disk: dict[str, Tensor] = {}
        for name, tensor in state_dict.items():
            on_disk.update(self.entries[name].write(tensor))
        return on_disk

    def _is_skipped(self, key: str) -> bool:
        return any(re.search(pattern, key) for pattern in self.skipped)


def same(name: str) -> Renamed:
    """The usual case: on disk the name has "model." in front."""
    return Renamed(name, f"model.{name}")


def linear(prefix: str, *, bias: bool) -> list[Entry]:
    """Weight, and bias if there is one, of a linear layer with the same name on both sides."""
    return [same(f"{prefix}.{kind}") for kind in (("weight", "bias") if bias else ("weight",))]


def stacked_experts(ours: str, on_disk: str, num_experts: int) -> list[Entry]:
    """The three parameters of `blocks.moe.Experts`; names are those of the experts' container on each side."""

    def entry(projection: str, fused: str, part: int, parts: int) -> StackedExperts:
        names = tuple(f"{on_disk}.{expert}.{projection}.weight" for expert in range(num_experts))
        return StackedExperts(f"{ours}.{projection}", names, f"{on_disk}.{fused}", part, parts)

    return [
        entry("gate_proj", "gate_up_proj", 0, 2),
        entry("up_proj", "gate_up_proj", 1, 2),
        entry("down_proj", "down_proj", 0, 1),
    ]


def _check_tied(head: Tensor, embedding: Tensor) -> None:
    if head.shape != embedding.shape or not torch.equal(head, embedding):
        raise ModelError(
            f"config says tie_word_embeddings, but {HEAD} in the checkpoint differs from the embedding; "
            "set tie_word_embeddings to false, or remove the tensor"
        )


def _listing(names: list[str], limit: int = 8) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
