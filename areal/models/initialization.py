"""Random weights: normal matrices, zero biases, neutral norms; reproducible on any device.

A parameter or buffer whose module is not known here is an error, never left uninitialised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from areal.models.blocks.activations import XIELU
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.decoder import VocabularyHead
from areal.models.blocks.moe import Experts, Router
from areal.models.blocks.norms import LayerNorm, RMSNorm

if TYPE_CHECKING:
    from torch import Tensor

_MATRICES = (nn.Linear, nn.Embedding, VocabularyHead, Router, Experts)


@torch.no_grad()
def initialize(model: nn.Module, *, std: float, seed: int) -> None:
    """Fill every parameter and persistent buffer in place.

    Numbers are drawn in float32 on the CPU, in the order of the parameters. Raises TypeError for a tensor without a
    rule.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    for module_name, module in model.named_modules():
        for name, tensor in _own_tensors(module):
            constant = _constant(module, name)
            if constant is not None:
                tensor.fill_(constant)
            elif isinstance(module, _MATRICES):
                tensor.copy_(torch.normal(0.0, std, tensor.shape, generator=generator, device="cpu"))
            else:
                full_name = f"{module_name}.{name}" if module_name else name
                raise TypeError(f"no initialisation rule for {full_name} of {type(module).__name__}")


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and persistent buffers that `module` itself holds."""
    parameters = list(module.named_parameters(recurse=False))
    kept = [item for item in module.named_buffers(recurse=False) if item[0] not in module._non_persistent_buffers_set]
    return [*parameters, *kept]


def _constant(module: nn.Module, name: str) -> float | None:
    """Return what a tensor that does not start at random starts with; None for the others."""
    if isinstance(module, RMSNorm):
        return 1.0 - module.offset
    if isinstance(module, LayerNorm):
        return 1.0 - module.offset if name == "weight" else 0.0
    if isinstance(module, Router) and name == "selection_bias":
        return 0.0
    if isinstance(module, XIELU | nn.PReLU):
        # What a new one has: the same in every layer.
        return float(type(module)().state_dict()[name])
    # Sinks start as one more key with a score of zero.
    if isinstance(module, SelfAttention) and name == "sinks":
        return 0.0
    is_bias = name == "bias" or name.endswith("_bias")
    return 0.0 if isinstance(module, _MATRICES) and is_bias else None
