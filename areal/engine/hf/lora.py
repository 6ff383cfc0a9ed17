"""Low-rank adapters (LoRA, arXiv 2106.09685) by `peft`, added to a model in place; `on_disk` merges and saves them.

Works for our own families and for models of `transformers` alike: layers are replaced, the model stays what it is. What
is trained is the adapter; the base is frozen, in the dtype it is computed with. There is no dropout: the same tokens
must have the same log-probabilities in every pass.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from areal.api import ConfigError
from areal.engine.hf.pixels import part_of

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
    when `peft` is missing, no layer has one of the names in config.targets, only layers beyond config.scope have one,
    or the model lacks a part of that scope.
    """
    peft = _peft()
    body: Any = getattr(model, "backbone", model)
    body = getattr(body, "inner", body)
    tower: Any = getattr(getattr(model, "backbone", model), "tower", None)
    targets = _targets(body, config, reads_images=tower is not None)
    if tower is not None:
        tower.is_frozen = set(config.scope) == {"language"}
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
            frozen = ((name, value) for name, value in model.named_parameters() if not value.requires_grad)
            return Adapters(config=config, base=fingerprint_of(frozen), first_values={})
        values = {name: parameter.detach() for name, parameter in model.named_parameters() if ".lora_" in name}
        for name, value in values.items():
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner).register_parameter(leaf, nn.Parameter(value.to("meta")))
        return Adapters(config=config, base=None, first_values=values)


def fingerprint_of(frozen: Iterable[tuple[str, Tensor]]) -> str:
    """Digest up to 4096 evenly spread values of every frozen parameter; they may come one by one, in any order."""
    digests = {}
    for name, tensor in frozen:
        flat = tensor.detach().flatten()
        chosen = flat[:: max(1, flat.numel() // _FINGERPRINT_VALUES)]
        values = chosen.to("cpu", torch.float32).numpy().tobytes()
        digests[name] = hashlib.sha256(name.encode() + values).digest()
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()


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


def _targets(body: Any, config: LoraConfig, *, reads_images: bool) -> list[str]:
    """Names of the layers that get an adapter; see `add_lora` for errors."""
    scope, prefix = set(config.scope), f"{body.base_model_prefix}." if reads_images else ""
    if not scope or (not reads_images and scope != {"language"}):
        raise ConfigError(
            f"lora.scope is {list(config.scope)}, expected " + ("a part" if reads_images else "[language]: text alone"),
            where="actor.lora.scope",
            fix="name parts of the model: language, and for an image-text model also projector and tower",
        )
    found: dict[str, list[str]] = {"language": [], "projector": [], "tower": []}
    for name, _ in _linear_layers(body, set(config.targets)):
        found[part_of(name.removeprefix(prefix)) if reads_images else "language"].append(name)
    targets = [name for part, names in found.items() if part in scope for name in names]
    inside = {name.rpartition(".")[2] for name in targets}
    for part, names in found.items():
        beyond = {name.rpartition(".")[2] for name in names} - inside
        # A name that would silently get no adapter.
        if part not in scope and config.targets and beyond:
            raise ConfigError(
                f"lora.targets: {', '.join(sorted(beyond))} name layers of the {part}, and none in lora.scope "
                f"{list(config.scope)}",
                where="actor.lora.targets",
                fix=f"leave them out, or add {part} to actor.lora.scope",
            )
    if not targets:
        known = sorted({name.rpartition(".")[2] for name, _ in _linear_layers(body, set())})
        raise ConfigError(f"lora.targets {list(config.targets)} name no linear layer; there are {', '.join(known)}")
    return targets


def _linear_layers(body: nn.Module, wanted: set[str]) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers by name: those whose last name is wanted, or with nothing wanted all but heads and routers. What is
    frozen already has no gradient, and no use for an adapter: indexers."""
    for name, module in body.named_modules():
        leaf = name.rpartition(".")[2]
        is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        weight: Any = getattr(module, "weight", None)
        if is_linear and weight.requires_grad and (leaf in wanted if wanted else leaf not in _NOT_TARGETS):
            yield name, module


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError("lora needs the package peft; install areal[lora]") from error
    return peft
