"""Random weights: normal matrices, zero biases, unit norm scales; reproducible on any device.

A parameter whose module is not known here is an error, never left uninitialised.
"""

from __future__ import annotations

import torch
from torch import nn

from areal.models.blocks.moe import Experts, Router
from areal.models.blocks.norms import RMSNorm


@torch.no_grad()
def initialize(model: nn.Module, *, std: float, seed: int) -> None:
    """Fill every parameter in place. Numbers are drawn in float32 on the CPU, in the order of the parameters."""
    generator = torch.Generator("cpu").manual_seed(seed)
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=module_name, recurse=False):
            if isinstance(module, RMSNorm):
                parameter.fill_(1.0)
            elif isinstance(module, nn.Linear) and name.endswith(".bias"):
                parameter.zero_()
            elif isinstance(module, (nn.Linear, nn.Embedding, Router, Experts)):
                parameter.copy_(torch.normal(0.0, std, parameter.shape, generator=generator, device="cpu"))
            else:
                raise TypeError(f"no initialisation rule for {name} of {type(module).__name__}")
