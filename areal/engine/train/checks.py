"""What a training engine refuses before it computes anything; the same on one process and on many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.api import EngineError

if TYPE_CHECKING:
    from torch import nn


def check_role(model: nn.Module, *, is_critic: bool) -> None:
    """Raise EngineError when the model is no critic and should be, or the other way round."""
    if is_critic == hasattr(model, "project"):
        raise EngineError(
            f"is_critic={is_critic} does not fit {type(model).__name__}: a critic is an "
            f"areal.models.value_head.ValueModel around a decoder, an actor is the decoder itself"
        )


def check_has_distribution(*, is_critic: bool) -> None:
    """Raise EngineError for a critic, which has no distribution over tokens."""
    if is_critic:
        raise EngineError(
            "forward_logp needs a language model head and this engine trains a critic; use forward_values"
        )


def check_has_values(*, is_critic: bool) -> None:
    """Raise EngineError for an actor, which has no value head."""
    if not is_critic:
        raise EngineError("forward_values needs a value head; build the engine around a ValueModel with is_critic=True")


def check_scoring(*, is_critic: bool, temperature: float, with_entropy: bool, smoothing: float) -> None:
    """Raise EngineError for what cannot be asked of the model."""
    if not (0 <= smoothing < 1 and temperature > 0):
        raise EngineError(f"expected 0 <= smoothing < 1 and temperature > 0, got {smoothing} and {temperature}")
    if is_critic and (with_entropy or smoothing):
        raise EngineError("a critic has no distribution over tokens: with_entropy and smoothing must stay off")
