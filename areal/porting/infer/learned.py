"""Activations with parameters of their own: which small tensors of a module are which of theirs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from areal.models.blocks.activations import ACTIVATIONS, LEARNED_ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

PREFIX: Final = "activation."
"""Of canonical names below a feed-forward layer."""
_MOST_TENSORS: Final = 6
"""Of one number each, in a module: with more of them there are too many ways to tell which is which."""


@dataclass(frozen=True)
class Activation:
    """A function, and the tensors that it is made with if it learns."""

    name: str
    tensors: Mapping[str, Tensor]
    """By its own names: "alpha_p"."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Any shape; in the dtype of the inputs."""
        if self.name in ACTIVATIONS:
            return ACTIVATIONS[self.name](inputs)
        module = LEARNED_ACTIVATIONS[self.name]()
        tensors = {name: tensor.to(inputs.dtype) for name, tensor in self.tensors.items()}
        result: Tensor = torch.func.functional_call(module, tensors, (inputs,))
        return result

    @property
    def canonical(self) -> dict[str, Tensor]:
        """Its tensors, by canonical names below the layer."""
        return {f"{PREFIX}{name}": tensor for name, tensor in self.tensors.items()}


def of_tensors(name: str, tensors: Mapping[str, Tensor]) -> Activation:
    """The activation of a layer with these canonical tensors."""
    own = {key.removeprefix(PREFIX): tensor for key, tensor in tensors.items() if key.startswith(PREFIX)}
    return Activation(name, own)


def learned_activations(module: nn.Module) -> Iterator[Activation]:
    """Every activation that learns, with the numbers of a module in every order in which they fit."""
    # A module that is held twice has its tensors in the state twice.
    stored = {value.data_ptr(): value.detach() for value in module.state_dict(keep_vars=True).values()}
    numbers = [value for value in stored.values() if value.numel() == 1 and value.is_floating_point()]
    if not 0 < len(numbers) <= _MOST_TENSORS:
        return
    for name, kind in LEARNED_ACTIVATIONS.items():
        wanted = kind().state_dict()
        for chosen in itertools.permutations(numbers, len(wanted)):
            pairs = zip(wanted.items(), chosen, strict=True)
            yield Activation(name, {key: value.reshape(blank.shape) for (key, blank), value in pairs})
