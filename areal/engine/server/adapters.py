"""Merges adapters into a base model inside a worker process of an inference server, and selects the tensors to reload.

Runs in the server's own environment (see `receiver`): standard library and torch only. Tensors are merged one at a time
on access, so there is never a second copy of the model. The arithmetic is that of merging in the trainer: the loaded
tensors are bit for bit those of a server that receives the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class AdaptedWeights(Mapping[str, torch.Tensor]):
    """The tensors of the merged model, in the order of the base.

    base: its tensors. identity: of the base. factors: of the adapters. changes: entries of the manifest, see
    `areal.api.LowRankChange`.
    """

    def __init__(
        self,
        base: Mapping[str, torch.Tensor],
        *,
        identity: str,
        factors: Mapping[str, torch.Tensor],
        changes: list[dict[str, Any]],
    ) -> None:
        self._base, self.identity, self._factors = base, identity, factors
        self._changes = {change["target"]: change for change in changes}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the tensor to load."""
        change = self._changes.get(name)
        if change is None:
            return self._base[name]
        down, up = self._factors[change["down"]], self._factors[change["up"]]
        product = up.float() @ down.float()
        if change["transposed"]:
            product = product.t()
        base = self._base[name]
        dtype: torch.dtype = getattr(torch, change["dtype"])
        return (base.float() + product * change["scale"]).to(base.dtype).to(dtype)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._base)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._base)

    @property
    def since(self) -> str:
        """Identity of what only `changed` differ from."""
        return self.identity

    @property
    def changed(self) -> list[str]:
        """Names of tensors that differ from the base."""
        return list(self._changes)

    def problems(self) -> list[str]:
        """Describe what does not fit together; empty when every tensor can be computed."""
        found = []
        for name, change in self._changes.items():
            missing = [part for part in (change["down"], change["up"]) if part not in self._factors]
            if name not in self._base or missing:
                found.append(f"{name} cannot be changed: {', '.join(missing) or 'it'} is missing")
                continue
            down, up = self._factors[change["down"]], self._factors[change["up"]]
            sizes = (up.shape[0], down.shape[-1])
            expected = tuple(reversed(sizes)) if change["transposed"] else sizes
            if up.shape[-1] != down.shape[0] or tuple(self._base[name].shape) != expected:
                found.append(
                    f"{name} {list(self._base[name].shape)} cannot be changed by factors {list(up.shape)} and "
                    f"{list(down.shape)}"
                )
        return found


def to_reload(names: list[str], changed: list[str], *, modules: set[str], fused: Mapping[str, list[str]]) -> list[str]:
    """Return those of `names` that a model must load when only `changed` differ, so that every layer is loaded as a
    whole.

    modules: names of the layers of the server's model. fused: last name of a fused layer to the last names of its parts
    in the checkpoint, e.g. {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}. If a changed layer has another name in the
    server's model, its whole block is reloaded (the name up to its first number), since layers are never fused across
    blocks.
    """
    prefixes = {prefix for name in changed for prefix in _prefixes(name.rpartition(".")[0], modules, fused)}
    return [name for name in names if any(prefix in prefixes for prefix in _parents(name))]


@contextmanager
def unwrapped(model: torch.nn.Module) -> Iterator[None]:
    """Take the layers out of those that a server wraps around them for adapters of its own (servers.max_adapters).

    So a model loads weights as it did at first: loaders of some models find a wrapped layer by its old name, others by
    the new one ("q_proj.base_layer"), and some by neither.
    """
    found = [
        (parent, name, layer)
        for parent in list(model.modules())
        for name, layer in parent._modules.items()
        if layer is not None and "base_layer" in layer._modules
    ]
    for parent, name, layer in found:
        setattr(parent, name, layer._modules["base_layer"])
    try:
        yield
    finally:
        for parent, name, layer in found:
            setattr(parent, name, layer)


def _prefixes(layer: str, modules: set[str], fused: Mapping[str, list[str]]) -> list[str]:
    parent, _, leaf = layer.rpartition(".")
    for whole, parts in fused.items():
        if leaf in parts and f"{parent}.{whole}" in modules:
            return [f"{parent}.{part}" for part in parts]
    if layer in modules:
        return [layer]
    words = layer.split(".")
    number = next((index for index, word in enumerate(words) if word.isdigit()), None)
    return [""] if number is None else [".".join(words[: number + 1])]


def _parents(name: str) -> Iterator[str]:
    """Yield all prefixes that end before a dot, and the empty one."""
    yield ""
    for index, character in enumerate(name):
        if character == ".":
            yield name[:index]
