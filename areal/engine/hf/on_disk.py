"""What becomes of a trained model on disk and on servers: names of its checkpoint, adapters merged, or adapters alone.

Names and layouts of our own families are those of their `state_dict_adapter`; those of models of `transformers` come
from that library, since what it computes with is not always what it stores (experts are stacked, names have changed
over the years). Tensors may be gathered from shards one by one. How adapters come into a model is `lora`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import EngineError, LowRankChange
from areal.hub.names import find_name
from areal.models.registry import get_spec

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.engine.config import LoraConfig

_MARKS: Final = (".base_layer.", ".lora_A.", ".lora_B.")
_MERGED: Final = ("weight", "lora_A.default.weight", "lora_B.default.weight")
"""Parts of an adapted layer that become one; see `_part_of`."""


def checkpoint_tensors(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` (by the names of `model.state_dict()`) as its checkpoint has it; tensors that are the same share memory.

    A head that is tied to the embedding is left out.
    """
    if not hasattr(model, "inner"):
        return dict(get_spec(model.args.model_type).state_dict_adapter(model.args).to_hf(state))
    from transformers.core_model_loading import revert_weight_conversion

    own: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in state.items():
        # A tied head is the embedding under a second name: one of them is enough, and files refuse both.
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() == 0 or place not in seen:
            own[name.removeprefix("inner.")] = tensor
        seen.add(place)
    return dict(revert_weight_conversion(model.inner, own))


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of `model` without its adapters, named as in its checkpoint: live tensors, no copies."""
    return checkpoint_tensors(model, _without_adapters(model))


@dataclass(frozen=True)
class AdaptersOnDisk:
    """How adapters change `base_tensors`."""

    changes: tuple[LowRankChange, ...]
    names: Mapping[str, str]
    """Trained parameter to the factor of a change."""

    def factors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Trained parameters by the names of the changes."""
        return {self.names.get(name, name): tensor for name, tensor in state.items()}

    @staticmethod
    def of(model: nn.Module) -> AdaptersOnDisk:
        """Build them for `model`. Raises EngineError when it stores an adapted layer in another layout than it computes
        with."""
        state = _without_adapters(model)
        layers = [name for name, _ in _adapted_layers(model)]
        stored = _names_on_disk(layers, state, checkpoint_tensors(model, state))
        changes: list[LowRankChange] = []
        names: dict[str, str] = {}
        for name, layer in _adapted_layers(model):
            down, up = f"{stored[name]}.lora_A.weight", f"{stored[name]}.lora_B.weight"
            names |= {f"{name}.lora_A.default.weight": down, f"{name}.lora_B.default.weight": up}
            change = LowRankChange(
                target=f"{stored[name]}.weight",
                down=down,
                up=up,
                scale=float(layer.scaling["default"]),
                transposed=bool(layer.fan_in_fan_out),
            )
            changes.append(change)
        return AdaptersOnDisk(tuple(changes), names)


def transposed_layers(model: nn.Module) -> frozenset[str]:
    """Names of adapted layers whose matrices map rows to columns."""
    return frozenset(name for name, module in model.named_modules() if getattr(module, "fan_in_fan_out", False))


def merged_tensors(
    tensors: Iterable[tuple[str, Tensor]], config: LoraConfig, *, transposed: Container[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a model with adapters as those of one whose layers have taken them up; no more than a layer
    is held back. transposed: names of layers whose matrices map rows to columns.
    """
    scaling = config.alpha / (math.sqrt(config.rank) if config.rank_stabilized else config.rank)
    held: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        layer, part = _part_of(name)
        if part not in _MERGED:
            yield f"{layer}.{part}" if part else name, tensor
            continue
        held.setdefault(layer, {})[part] = tensor
        if len(held[layer]) == len(_MERGED):
            parts = held.pop(layer)
            base, down, up = (parts[part] for part in _MERGED)
            yield f"{layer}.weight", merged_weight(base, down, up, scaling, transposed=layer in transposed)
    assert not held, f"adapters of {', '.join(held)} are incomplete"


def merged_weight(base: Tensor, down: Tensor, up: Tensor, scaling: float, *, transposed: bool) -> Tensor:
    """Return base + up @ down * scaling, computed in float32 at least, unlike `peft`'s own merging: servers
    that are sent the factors compute just this (`areal.engine.server.adapters`)."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    change = up.to(dtype) @ down.to(dtype) * scaling
    return (base.to(dtype) + (change.T if transposed else change)).to(base.dtype)


def names_for_peft(model: Any, shapes: Mapping[str, torch.Size]) -> dict[str, str]:
    """Names that the adapted layers have in the model of `transformers`; shapes: of all tensors of the whole model.

    Raises EngineError for a layer that is stored in another layout than it is computed with, and for critics.
    """
    if hasattr(model, "backbone"):
        raise EngineError("the adapters of a critic are nothing without its head; write both by save_pretrained")
    layers = sorted({_part_of(name)[0] for name in shapes} - {""})
    if hasattr(model, "inner"):
        # Beside these layers `peft` puts them, whatever they are called on disk.
        return {layer: layer.removeprefix("inner.") for layer in layers}
    # Without values: a tensor on disk that is one of ours, as it is, shares its storage.
    with torch.device("meta"):
        state = {
            name.replace(".base_layer.", "."): torch.empty(shape)
            for name, shape in shapes.items()
            if ".lora_" not in name
        }
    stored = get_spec(model.args.model_type).state_dict_adapter(model.args).to_hf(state)
    return _names_on_disk(layers, state, stored)


def write_adapter(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    config: LoraConfig,
    path: Path,
    *,
    base: str,
    whole_names: bool = False,
) -> None:
    """Write adapters as a folder that `peft` and inference servers load on top of the checkpoint `base`.

    tensors: by our names; names: as `names_for_peft` gives them. whole_names: say which layers have adapters by whole
    names, where others have the same last ones: the halves of an image-text model.
    """
    from peft import LoraConfig as Settings
    from safetensors.torch import save_file

    from areal.engine.hf.model import write_folder

    stored = {}
    for name, tensor in tensors.items():
        layer, part = _part_of(name)
        side = part.partition(".")[0]
        stored[f"base_model.model.{names[layer]}.{side}.weight"] = tensor.detach().cpu().contiguous()
    hub = find_name(base)
    last_names = {name.rpartition(".")[2] for name in names.values()}
    settings = Settings(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=sorted(set(names.values()) if whole_names else last_names),
        use_rslora=config.rank_stabilized,
        base_model_name_or_path=(base if hub is None else hub.repo) or None,
        revision=None if hub is None else hub.revision,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )

    def write(folder: Path) -> None:
        save_file(stored, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        settings.save_pretrained(folder)

    write_folder(path, write, mark="adapter_config.json")


def _names_on_disk(layers: Iterable[str], state: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, str]:
    """Find the layers' names in a checkpoint: there, the weight of each is the very tensor that it has in `state`."""
    places = {_place(tensor): name for name, tensor in stored.items()}
    found = {}
    for layer in layers:
        place = places.get(_place(state[f"{layer}.weight"]))
        if place is None:
            raise EngineError(
                f"layer {layer} is stored in another layout than it is computed with, which an adapter file cannot "
                f"say; use the merged checkpoint, or lora.targets without this layer"
            )
        found[layer] = place.removesuffix(".weight")
    return found


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return what is equal for two tensors that always have the same values in the same layout; they need have none."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _part_of(name: str) -> tuple[str, str]:
    """Split a name into its adapted layer and the part there: "weight", "bias", "lora_A.default.weight";
    ("", "") for a tensor of no such layer."""
    for mark in _MARKS:
        layer, found, rest = name.rpartition(mark)
        if found:
            return layer, rest if mark == _MARKS[0] else found[1:] + rest
    return "", ""


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def _without_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of the base, by the names they had before adapters were added."""
    return {
        name.replace(".base_layer.", "."): tensor for name, tensor in model.state_dict().items() if ".lora_" not in name
    }
