"""Adapters on top of a base, in a worker process of an inference server: which tensors they make, and which of those
must be loaded again.

Runs in the server's own environment (see `receiver`): standard library and torch only. The sum is computed tensor by
tensor when it is asked for, so that there is never a second copy of the model. It is the same arithmetic as merging in
the trainer: what is loaded is, bit for bit, what a server gets that is sent the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class AdaptedWeights(Mapping[str, torch.Tensor]):
    """The whole model, in the order of the base.

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
        """As it is to be loaded."""
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
        """Names."""
        return iter(self._base)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._base)

    @property
    def changed(self) -> list[str]:
        """Tensors that are not those of the base."""
        return list(self._changes)

    def problems(self) -> list[str]:
        """What does not fit together, in words; empty when everything can be computed."""
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
    """Which of `names` a model must load when only `changed` differ, so that every layer it has loads whole.

    modules: names of the layers the server's model has. fused: of its layers that hold several of a checkpoint, last
    name to last names, e.g. {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}. A changed layer that it has under another
    name takes its whole block along (up to the first number in its name), since nothing is fused across blocks.
    """
    prefixes = {prefix for name in changed for prefix in _prefixes(name.rpartition(".")[0], modules, fused)}
    return [name for name in names if any(prefix in prefixes for prefix in _parents(name))]


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
    """All prefixes that end before a dot, and the empty one."""
    yield ""
    for index, character in enumerate(name):
        if character == ".":
            yield name[:index]
