"""Depthwise convolutions over time, and the mixer of LFM2: one of them between two gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from areal.api import ModelError
from areal.models.blocks.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import BaseModelArgs, StateBackend
    from areal.models.blocks.rotary import Rotation


class DepthwiseConvolution(nn.Module):
    """One causal filter per channel. Parameters: weight [channels, kernel_size] and, if asked for, bias [channels]."""

    def __init__(self, channels: int, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(self, layer: int, inputs: Tensor, backend: StateBackend) -> Tensor:
        """[T, channels] -> [T, channels]; see `StateBackend.convolve`."""
        return backend.convolve(layer, inputs, self.weight, self.bias)


class ShortConvolution(nn.Module):
    """Gated short convolution (LFM2): out_proj(C * conv(B * x)), where B, C, x are thirds of in_proj, in this order.

    Takes the place of a block's `self_attn`. Parameters: in_proj [3 hidden_size, hidden_size], conv, out_proj.
    """

    place: ClassVar[str] = "convolution"
    """What tables of names on disk call it, since attention of other layers is stored elsewhere."""

    def __init__(self, layer: int, args: BaseModelArgs, *, kernel_size: int, bias: bool) -> None:
        """kernel_size: tokens that a filter sees, its own included; bias: of both projections and of the filters."""
        super().__init__()
        if kernel_size < 1:
            raise ModelError(f"a convolution of {kernel_size} tokens sees none, expected at least 1")
        size = args.hidden_size
        self.layer = layer
        self.in_proj = Linear(size, 3 * size, bias=bias)
        self.conv = DepthwiseConvolution(size, kernel_size, bias=bias)
        self.out_proj = Linear(size, size, bias=bias)

    def forward(self, hidden: Tensor, rotation: Rotation | None, backend: StateBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: not used; a convolution knows the order of its inputs."""
        before, after, inputs = self.in_proj(hidden).chunk(3, -1)
        mixed = self.conv(self.layer, before * inputs, with_states(backend, self.layer))
        return self.out_proj(after * mixed)


def convolve_together(
    layer: int, inputs: Sequence[Tensor], convolutions: Sequence[DepthwiseConvolution], backend: StateBackend
) -> tuple[Tensor, ...]:
    """Convolve several parts [T, channels] of one layer in one call; all filters have a bias, or none has."""
    weights: list[Tensor] = [convolution.weight for convolution in convolutions]
    biases: list[Tensor] = [convolution.bias for convolution in convolutions if convolution.bias is not None]
    convolved = backend.convolve(
        layer,
        torch.cat(list(inputs), -1),
        torch.cat(weights),
        torch.cat(biases) if biases else None,
    )
    return convolved.split([part.shape[-1] for part in inputs], -1)


def with_states(backend: object, layer: int) -> StateBackend:
    """Return `backend`, which has to carry states. Raises ModelError where it only attends."""
    if hasattr(backend, "convolve") and hasattr(backend, "scan"):
        return cast("StateBackend", backend)
    raise ModelError(
        f"layer {layer} has a state, which {type(backend).__name__} cannot carry; use a backend that implements "
        f"areal.api.StateBackend, such as PackedBackend"
    )


def shifted_products(inputs: Tensor, weight: Tensor, places: Tensor) -> Tensor:
    """Convolve the last but one dimension, of which each token reads as many before it as its place says.

    inputs: [..., L, C]; weight: [C, K]; places: int64 [..., L], tokens of the same document before each. Returns
    [..., L, C], not yet rounded: at least float32.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    inputs, weight = inputs.to(weight.dtype).to(wide), weight.to(wide)
    length, kernel_size = inputs.shape[-2], weight.shape[1]
    total = inputs * weight[:, -1]
    for shift in range(1, min(kernel_size, length)):
        # Masked after the product, so that what stands in another document never gets here, whatever it is.
        product = inputs[..., : length - shift, :] * weight[:, -1 - shift]
        product = product.masked_fill((places[..., shift:] < shift)[..., None], 0.0)
        total = total + functional.pad(product, (0, 0, shift, 0))
    return total


def rounded(total: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sums of products plus the bias, in the dtype of the weight."""
    return (total if bias is None else total + bias.to(total.dtype)).to(weight.dtype)
