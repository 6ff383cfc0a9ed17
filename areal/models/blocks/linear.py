"""Linear layers, by the library of matrix products that suits this machine.

On CPUs, torch hands float32 products to the library it was built with, which is MKL on x86. MKL uses the wide vectors
of its maker's processors only; on others, oneDNN, which torch carries as well, computes the same product about twice as
fast. The switch of torch for that is global and slows down attention, whose inner products are small; the one here
reaches linear layers alone, and of those only products large enough to pay for oneDNN's longer way (about 10 us).

Which one is used is a setting of the process, `torch` until `use_products` says otherwise. The two sum in other orders,
so results differ in the last digits (4e-7 of the largest element), as between processors.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Library = Literal["onednn", "torch"]

_MIN_ROWS: Final = 8
_MIN_PRODUCTS: Final = 1 << 21
"""Multiplications from which oneDNN is clearly ahead: 10 us are won per million of them, and 11 us are lost per call,
more for the first one of a shape."""
_MIN_GAIN: Final = 1.2
"""Below, nothing is changed: what is measured may be noise."""
_MAX_DEVIATION: Final = 1e-5
"""Of the largest element; float32 is within 2e-6, a product rounded to bfloat16 is beyond 1e-3."""

_library: Library = "torch"


class Linear(nn.Linear):
    """`nn.Linear` by the library that the process chose."""

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return linear(inputs, self.weight, self.bias)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return inputs [..., in] times weight [out, in] transposed, plus bias [out]; differentiable once by oneDNN."""
    if _library == "onednn" and _is_suited(inputs, weight):
        if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (inputs, weight, bias)):
            product: Tensor = _Product.apply(inputs, weight, bias)
            return product
        return _product(inputs, weight, bias)
    return functional.linear(inputs, weight, bias)


def use_products(library: Library) -> None:
    """Let linear layers of this process compute by `library` from now on. ModelError for one that torch lacks."""
    global _library  # noqa: PLW0603 - a setting of the process, as the number of threads is
    if library not in get_args(Library) or (library == "onednn" and not torch.backends.mkldnn.is_available()):
        raise ModelError(
            f"matrix products by {library!r}: expected torch, or onednn where torch was built with it",
            where="matrix_products",
            fix="set matrix_products to torch; sums of a run that computed by onednn then differ in their last digits",
        )
    _library = library


def current_products() -> Library:
    """Return what linear layers of this process compute by."""
    return _library


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRates:
    """Floating-point operations per second, in units of 1e9, of float32 products; and what follows."""

    torch: float
    onednn: float
    """0 where it is not there or not exact."""

    @property
    def fastest(self) -> Library:
        """Return oneDNN only where it is clearly ahead."""
        return "onednn" if self.onednn > _MIN_GAIN * self.torch else "torch"


def measure_products() -> ProductRates:
    """Measure both libraries on shapes of decoding, training and weight gradients, on one thread; takes about 40 ms."""
    generator = torch.Generator().manual_seed(0)
    few, many, gradient, weight = (
        torch.randn(size, generator=generator) for size in ((64, 512), (256, 512), (256, 512), (512, 512))
    )
    shapes = [(few, weight), (many, weight), (gradient.t(), many.t())]
    with torch.no_grad(), _one_thread():
        ours = sum(_fastest_seconds(functional.linear, *shape) for shape in shapes)
        theirs = float("inf")
        if torch.backends.mkldnn.is_available() and all(_is_exact(*shape) for shape in shapes):
            theirs = sum(_fastest_seconds(_product, *shape) for shape in shapes)
    operations = sum(2 * inputs.numel() * matrix.shape[0] for inputs, matrix in shapes) / 1e9
    return ProductRates(torch=operations / ours, onednn=operations / theirs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine, products that are divided over threads show how long those take to wake."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fastest_seconds(product: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, weight: Tensor) -> float:
    """Shortest of some runs: each is over within a time slice, so that other programs do not disturb all of them."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        product(inputs, weight)
        best = min(best, time.perf_counter() - started)
    return best


def _is_exact(inputs: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN computes in float32: a setting of torch or of the environment may have it round."""
    wanted = inputs.double() @ weight.double().t()
    return bool((_product(inputs, weight) - wanted).abs().max() <= _MAX_DEVIATION * wanted.abs().max())


def _is_suited(inputs: Tensor, weight: Tensor) -> bool:
    return (
        inputs.dim() == 2
        and inputs.dtype is torch.float32
        and weight.dtype is torch.float32
        and inputs.is_cpu
        and inputs.shape[0] >= _MIN_ROWS
        and inputs.shape[0] * weight.numel() >= _MIN_PRODUCTS
        # Not what only looks like a tensor: one spread over processes, or without memory.
        and type(inputs) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
    )


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(inputs, weight, bias, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    """y = x W^T + b: dx = dy W, dW = dy^T x, db = sum dy, all by oneDNN."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        for_inputs = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_inputs = _product(gradient, weight.t())
        if ctx.needs_input_grad[1]:
            # The smaller side as rows, which is up to 1.5 times as fast.
            if weight.shape[0] <= weight.shape[1]:
                for_weight = _product(gradient.t(), inputs.t())
            else:
                for_weight = _product(inputs.t(), gradient.t()).t()
        if ctx.needs_input_grad[2]:
            for_bias = gradient.sum(0)
        return for_inputs, for_weight, for_bias
