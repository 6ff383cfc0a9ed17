"""Logits in double precision: what tells rounding from another computation where both are small.

Recurrences round more than softmax attention does, and a norm of what they give makes that large where a head gives
nearly nothing. In float64 the same computation agrees to many digits more, and another one does not.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from areal.porting.probe.instance import call_options, logits_of
from areal.porting.probe.subject import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from areal.porting.probe.instance import Instance

AGREED: Final = 5e-6
"""Largest difference in float64, over the larger of 1 and the standard deviation of the logits: frequencies of
rotations are float32 numbers in transformers."""
MOST: Final = 20.0
"""A difference in float32 of more than so many times what is allowed is never taken for rounding."""


class _Wide(TorchFunctionMode):
    """Computes in float64 where code asks for float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        wide = [torch.float64 if value is torch.float32 else value for value in args]
        named = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*wide, **named)


def wide_logits(instance: Instance, tokens: Tensor) -> Tensor | None:
    """Return the logits of an instance [B, T, vocab] in float64; None where its code does not run in it."""
    model = copy.deepcopy(instance.model).double()
    if getattr(model, "_can_set_experts_implementation", bool)():
        model.set_experts_implementation("eager")  # grouped kernels are for single precision only
    with quiet(), torch.no_grad(), _Wide():
        try:
            output = model(tokens, **call_options(model))
        except Exception:  # noqa: BLE001 - foreign code fails in any way; then nothing is known
            return None
    found = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    return logits_of(output) if found is None else found


def without_rounding(
    instance: Instance, tokens: Tensor, ours: Callable[[], Tensor], *, difference: float, allowed: float
) -> float:
    """Return the difference to judge by: `difference`, that of float32 logits, or that in float64 where it is far
    smaller. ours: gives our logits in float64; allowed: what `difference` may be."""
    if difference <= allowed or not difference <= MOST * allowed:
        return difference
    expected = wide_logits(instance, tokens)
    if expected is None or expected.dtype != torch.float64:
        return difference
    found = float((ours().reshape(expected.shape) - expected).abs().max())
    return found if found <= AGREED * max(1.0, float(expected.std())) else difference
