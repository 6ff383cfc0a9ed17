"""Gated short convolutions: a convolution over tokens between two gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.porting.infer.mixer_parts import Kernel, MixerHypothesis, MixerParts, convolved, kernels
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.records import UnsupportedError
from areal.porting.spec import ShortConvolutionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def short_convolutions(parts: MixerParts) -> Iterator[MixerHypothesis]:
    """Yield the gated short convolutions whose inner formula holds: what enters the last projection is C times the
    convolution of B * x, for three equal parts of the rows of the first ones."""
    projected, width = parts.projected(), parts.width
    total = projected.shape[-1]
    if total != 3 * width or width != parts.run.input.shape[-1]:
        return
    count = torch.arange(total)
    thirds = {"three parts, one below the other": count.view(3, width), "rows in turn": count.view(width, 3).T}
    for layout, places in thirds.items():
        # B and x are factors of one product: which of them is which is a matter of names, so they keep their order.
        for before, after, values in ((0, 1, 2), (1, 0, 2), (0, 2, 1)):
            order = (places[before], places[after], places[values])
            product = projected[..., order[0]] * projected[..., order[2]]
            for kernel in kernels(parts, width):
                entering = projected[..., order[1]] * convolved(product, kernel)
                if error(entering, parts.entering()) > 10 * LOCAL:
                    continue
                yield _short_convolution(parts, torch.cat(order), kernel, layout)


def _short_convolution(parts: MixerParts, places: Tensor, kernel: Kernel, layout: str) -> MixerHypothesis:
    weight, bias = parts.rows(places)
    biases = (bias, kernel.bias, parts.last.bias)
    if len({each is None for each in biases}) > 1:
        detail = "some of the input projection, the convolution and the output projection have a bias, others have none"
        raise UnsupportedError("a short convolution with some biases only", where=parts.name, detail=detail)
    tensors = {
        "in_proj.weight": weight,
        "conv.weight": kernel.weight,
        "out_proj.weight": parts.last.weight,
    }
    if bias is not None and kernel.bias is not None and parts.last.bias is not None:
        tensors |= {"in_proj.bias": bias, "conv.bias": kernel.bias, "out_proj.bias": parts.last.bias}
    spec = ShortConvolutionSpec(kernel_size=kernel.weight.shape[1], bias=bias is not None)
    return MixerHypothesis(spec, {name: value.contiguous() for name, value in tensors.items()}, layout)
