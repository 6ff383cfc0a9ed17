"""Keys and values that later layers attend to in place of their own (Gemma 3n, Gemma 4): which layer a layer takes them
from, and how a backend hands them on within one forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn


class KeptKeys:
    """The keys and values of one forward that later layers attend to as well, by the layer that made them."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Tensor, Tensor]] = {}

    def take(self, layer: int, key: Tensor | None, value: Tensor | None, *, keep: bool) -> tuple[Tensor, Tensor]:
        """Return the keys and values that a call is about: the given ones, kept where that is asked for, or those that
        `layer` gave before. Raises ModelError where it gave none."""
        if key is None or value is None:
            if layer not in self._of:
                raise ModelError(
                    f"a layer attends to the keys and values of layer {layer}, which gave none in this forward; keep "
                    f"layers that share keys in one piece of a pipeline"
                )
            return self._of[layer]
        if keep:
            self._of[layer] = key, value
        return key, value


def connect(layers: Iterable[nn.Module]) -> None:
    """Tell each layer that shares keys which one it takes them from: the last one before it that has keys of its own
    and the same window and chunk. Raises ModelError where there is none, or where its heads are others."""
    own: dict[tuple[int | None, int | None], Any] = {}
    for number, layer in enumerate(layers):
        attention: Any = getattr(layer, "self_attn", None)
        if not hasattr(attention, "shares_keys"):
            continue
        extent = attention.window, attention.chunk
        if not attention.shares_keys:
            own[extent] = attention
            continue
        source = own.get(extent)
        if source is None:
            raise ModelError(
                f"layer {number} attends to the keys and values of an earlier layer with a window of {extent[0]}, but "
                f"no layer before it has such keys of its own"
            )
        sizes = [(each.head_dim, each.value_dim, each.num_kv_heads) for each in (source, attention)]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"layer {number} attends to the keys and values of layer {source.layer}, of head size, value size and "
                f"number of heads {sizes[0]}, but has {sizes[1]}; expected the same"
            )
        source.is_shared = True
        attention.keys_of = source.layer


def shares_keys(model: nn.Module) -> bool:
    """Return whether layers of a model attend to the keys of others."""
    return any(getattr(module, "shares_keys", False) for module in model.modules())
