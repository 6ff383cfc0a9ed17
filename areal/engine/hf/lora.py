"""Low-rank adapters (LoRA, arXiv 2106.09685) by `peft`: added to a model in place, merged into copies, saved alone.

Works for our own families and for models of `transformers` alike: layers are replaced, the model stays what it is. What
is trained is the adapter; the base is frozen, in the dtype it is computed with. There is no dropout: the same tokens
must have the same log-probabilities in every pass.
"""

from __future__ import annotations

import copy
import hashlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from areal.api import ConfigError, EngineError, LowRankChange
from areal.engine.hf.adapter_files import merged_weight
from areal.engine.hf.naming import checkpoint_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from areal.engine.config import LoraConfig

_ADAPTER: Final = "default"
_NOT_TARGETS: Final = frozenset({"embed_out", "gate", "head", "lm_head", "router", "score"})
"""Last names of linear layers that are left alone unless named: heads, and routers of mixtures of experts."""
_FINGERPRINT_VALUES: Final = 4096


def add_lora(model: nn.Module, config: LoraConfig, *, dtype: torch.dtype) -> None:
    """Put an adapter beside linear layers of `model`, in place; everything else but a value head is frozen.

    The adapter changes nothing before its first update. dtype: of the frozen parameters from now on. Raises ConfigError
    when `peft` is missing or no layer has one of the names in config.targets.
    """
    peft = _peft()
    body: Any = getattr(model, "backbone", model)
    body = getattr(body, "inner", body)
    targets = [name for name, _ in _linear_layers(body, set(config.targets))]
    if not targets:
        known = sorted({name.rpartition(".")[2] for name, _ in _linear_layers(body, set())})
        raise ConfigError(f"lora.targets {list(config.targets)} name no linear layer; there are {', '.join(known)}")
    body.requires_grad_(False)
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=targets, use_rslora=config.rank_stabilized
    )
    with torch.random.fork_rng(devices=[]), _stand_ins(body, targets):
        torch.manual_seed(config.seed)
        peft.inject_adapter_in_model(settings, body, adapter_name=_ADAPTER)
    for name, parameter in body.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    if hasattr(body, "get_output_embeddings"):
        holder: Any = getattr(model, "backbone", model)
        holder.rebuild_head()


def merged_copy(model: nn.Module) -> nn.Module:
    """Copy `model` with its adapters merged into their layers: the same function, with the names of the base."""
    merged = copy.deepcopy(model)
    for name, layer in list(_adapted_layers(merged)):
        base, factors = layer.get_base_layer(), (layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight)
        with torch.no_grad():
            base.weight.data = merged_weight(
                base.weight, *factors, layer.scaling[_ADAPTER], transposed=layer.fan_in_fan_out
            )
        parent, _, leaf = name.rpartition(".")
        setattr(merged.get_submodule(parent), leaf, base)
    holder: Any = getattr(merged, "backbone", merged)
    if hasattr(holder, "rebuild_head"):
        holder.rebuild_head()
    return merged


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
        stored = _names_on_disk(model)
        changes: list[LowRankChange] = []
        names: dict[str, str] = {}
        for name, layer in _adapted_layers(model):
            down, up = f"{stored[name]}.lora_A.weight", f"{stored[name]}.lora_B.weight"
            names |= {f"{name}.lora_A.{_ADAPTER}.weight": down, f"{name}.lora_B.{_ADAPTER}.weight": up}
            change = LowRankChange(
                target=f"{stored[name]}.weight",
                down=down,
                up=up,
                scale=float(layer.scaling[_ADAPTER]),
                transposed=bool(layer.fan_in_fan_out),
            )
            changes.append(change)
        return AdaptersOnDisk(tuple(changes), names)


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What is trained beside a frozen model."""

    config: LoraConfig
    base: str | None
    """Fingerprint of the frozen model; None while that has no values."""
    first_values: Mapping[str, Tensor]
    """Where the model has no memory yet: the values that the adapters get when they have some."""

    @staticmethod
    def added_to(model: nn.Module, config: LoraConfig, *, dtype: torch.dtype) -> Adapters:
        """As `add_lora`, which tells what it raises; also for a model without memory, of which adapters have none
        either."""
        add_lora(model, config, dtype=dtype)
        if not any(parameter.is_meta for parameter in model.parameters()):
            return Adapters(config=config, base=BaseModel.of(model).fingerprint, first_values={})
        values = {name: parameter.detach() for name, parameter in model.named_parameters() if ".lora_" in name}
        for name, value in values.items():
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner).register_parameter(leaf, nn.Parameter(value.to("meta")))
        return Adapters(config=config, base=None, first_values=values)


@dataclass(frozen=True)
class BaseModel:
    """What an adapter is trained on top of, to tell whether it is still the same."""

    fingerprint: str

    @staticmethod
    def of(model: nn.Module) -> BaseModel:
        """From up to 4096 evenly spread values of every frozen parameter."""
        named = model.named_parameters()
        return BaseModel.of_tensors((name, parameter) for name, parameter in named if not parameter.requires_grad)

    @staticmethod
    def of_tensors(frozen: Iterable[tuple[str, Tensor]]) -> BaseModel:
        """`of` a model whose frozen parameters come one by one, in any order."""
        digests = {}
        for name, tensor in frozen:
            flat = tensor.detach().flatten()
            chosen = flat[:: max(1, flat.numel() // _FINGERPRINT_VALUES)]
            values = chosen.to("cpu", torch.float32).numpy().tobytes()
            digests[name] = hashlib.sha256(name.encode() + values).digest()
        return BaseModel(hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest())


@contextmanager
def _stand_ins(body: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Where layers have no memory, weights that take none: `peft` makes adapters where the weight is, and values are
    needed for them."""
    layers: list[Any] = [body.get_submodule(name) for name in names]
    missing = [(layer, layer.weight) for layer in layers if layer.weight.is_meta]
    for layer, weight in missing:
        layer.weight = nn.Parameter(torch.empty(1, dtype=weight.dtype).expand(weight.shape), requires_grad=False)
    try:
        yield
    finally:
        for layer, weight in missing:
            layer.weight = weight


def _linear_layers(body: nn.Module, wanted: set[str]) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers by name: those whose last name is wanted, or with nothing wanted all but heads and routers."""
    for name, module in body.named_modules():
        leaf = name.rpartition(".")[2]
        is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        if is_linear and (leaf in wanted if wanted else leaf not in _NOT_TARGETS):
            yield name, module


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def _names_on_disk(model: nn.Module) -> dict[str, str]:
    """Names of the adapted layers in checkpoints."""
    names = [name for name, _ in _adapted_layers(model)]
    state = _without_adapters(model)
    stored = checkpoint_tensors(model, state)
    places = {(tensor.data_ptr(), tuple(tensor.shape)): name for name, tensor in stored.items()}
    found = {}
    for name in names:
        weight = state[f"{name}.weight"]
        place = places.get((weight.data_ptr(), tuple(weight.shape)))
        if place is None:
            raise EngineError(
                f"layer {name} is stored in another layout than it is computed with, which an adapter file cannot say; "
                f"use the merged checkpoint, or lora.targets without this layer"
            )
        found[name] = place.removesuffix(".weight")
    return found


def _without_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of the base, by the names they had before adapters were added."""
    return {
        name.replace(".base_layer.", "."): tensor for name, tensor in model.state_dict().items() if ".lora_" not in name
    }


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError("lora needs the package peft; install areal[lora]") from error
    return peft
