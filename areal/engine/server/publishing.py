"""Creates the weight versions that are sent to servers, in their names and dtypes: the whole model each time, or
adapters on a base that is sent once.

Runs in the training thread; `updates` sends the versions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from areal.api import BASE_VERSION, ArealError, EngineError
from areal.engine.checks import check_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LowRankChange, PublishedWeights, WeightCarrier, WeightUpdateMeta


@dataclass(frozen=True, kw_only=True)
class AdapterBase:
    """The part of the model that stays fixed while adapters are trained."""

    tensors: Mapping[str, Tensor]
    """The whole model without adapters, by Hugging Face name; not needed once the engine is built."""
    changes: tuple[LowRankChange, ...]
    """How the trained factors change it; `dtype` is filled in by the publisher."""


class WeightPublisher:
    """Passes versions to a carrier after comparing them with the first one.

    weights: first version; later ones must have the same names and shapes. With a base, they are the factors of its
    changes. to_hf: converts trained parameters to such tensors.
    """

    def __init__(
        self,
        carrier: WeightCarrier,
        *,
        dtype: str,
        to_hf: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
        weights: Mapping[str, Tensor],
        base: AdapterBase | None = None,
    ) -> None:
        self._carrier, self._dtype, self._to_hf = carrier, dtype, to_hf
        self._layout = _layout(weights)
        self._whole = self._layout if base is None else _layout(base.tensors)
        self._base: PublishedWeights | None = None
        self._changes: tuple[LowRankChange, ...] = ()
        self.tally = {"published_bytes": 0.0, "base_bytes": 0.0}
        if base is not None:
            self._publish_base(base)

    def publish_first(self, version: int, weights: Mapping[str, Tensor]) -> PublishedWeights:
        """Publish the version that servers start with."""
        return self._publish_trained(version, weights)

    def publish(self, meta: WeightUpdateMeta) -> PublishedWeights:
        """Publish a later version: trained parameters, or a folder, which always holds the whole model.

        Raises EngineError for mismatched names or shapes or when the carrier fails; earlier versions stay.
        """
        if meta.path is not None:
            return self._publish_folder(meta.version, meta.path)
        assert meta.state_dict is not None, "WeightUpdateMeta checks that kind 'memory' has a state dict"
        try:
            tensors = self._to_hf(meta.state_dict)
        except ArealError as error:
            raise EngineError(f"weight update refused, the engine keeps its weights: {error}") from error
        return self._publish_trained(meta.version, tensors)

    def _publish_trained(self, version: int, tensors: Mapping[str, Tensor]) -> PublishedWeights:
        check_layout(tensors, self._layout, version=version)
        # Factors are small, and exact as they are.
        sent = serving_tensors(tensors, self._dtype) if self._base is None else tensors
        self.tally["published_bytes"] = _num_bytes(sent)
        if self._base is None:
            return self._carrier.publish(version, sent)
        return self._carrier.publish(version, sent, base=self._base, changes=self._changes)

    def _publish_folder(self, version: int, folder: Path) -> PublishedWeights:
        tensors = serving_tensors(read_checkpoint(folder), self._dtype)
        check_layout(tensors, self._whole, version=version)
        self.tally["published_bytes"] = _num_bytes(tensors)
        return self._carrier.publish(version, tensors)

    def _publish_base(self, base: AdapterBase) -> None:
        adapted = {change.target for change in base.changes}
        # What adapters are added to keeps its precision: rounding it first would not give what merging gives.
        sent = serving_tensors(
            {name: tensor for name, tensor in base.tensors.items() if name not in adapted}, self._dtype
        ) | {name: base.tensors[name].detach() for name in adapted}
        ordered = {name: sent[name] for name in base.tensors}
        self.tally["base_bytes"] = _num_bytes(ordered)
        self._base = self._carrier.publish(BASE_VERSION, ordered)
        self._changes = tuple(replace(change, dtype=self._dtype) for change in base.changes)


def serving_tensors(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Convert matrices to the servers' dtype; keep vectors (norms, biases, router corrections) as they are, since they
    are small and some must stay exact."""
    import torch

    wanted = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    return {
        name: tensor.detach().to(wanted) if tensor.is_floating_point() and tensor.dim() > 1 else tensor.detach()
        for name, tensor in tensors.items()
    }


def check_layout(tensors: Mapping[str, Tensor], layout: Mapping[str, tuple[int, ...]], *, version: int) -> None:
    """Raise EngineError unless names and shapes equal those of the first version."""
    check_parameters(
        [name for name in layout if name not in tensors],
        [name for name in tensors if name not in layout],
        [
            f"{name} {tuple(tensor.shape)} (expected {layout[name]})"
            for name, tensor in tensors.items()
            if name in layout and tuple(tensor.shape) != layout[name]
        ],
        version=version,
    )


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a Hugging Face checkpoint folder, by their names there. Raises EngineError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        raise EngineError(
            f"weight update refused: {folder} has no safetensors files; expected a Hugging Face checkpoint folder"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"weight update refused: cannot read {file}: {error}") from error
    return tensors


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _num_bytes(tensors: Mapping[str, Tensor]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
