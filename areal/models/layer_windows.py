"""Sliding windows per layer, from and to the config fields of the families that mix windowed and full layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import ModelError

if TYPE_CHECKING:
    from areal.models.config_fields import ConfigFields

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"


def take_layer_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Window of each layer in tokens, None for unlimited, from the four fields of these families.

    layer_types decides where it is given; otherwise layers from max_window_layers on are windowed, as older files mean.
    Raises ModelError for an unknown layer type, a list of the wrong length, or sliding layers without a window.
    """
    window = take_window(fields)
    first_windowed = fields.integer("max_window_layers", 28, minimum=0)
    types = fields.optional("layer_types")
    if types is None:
        return tuple(window if layer >= first_windowed else None for layer in range(num_layers))
    if not isinstance(types, (list, tuple)) or len(types) != num_layers:
        raise fields.error("layer_types", types, f"a list of {num_layers} entries, one per layer")
    unknown = sorted({str(entry) for entry in types} - {FULL, SLIDING})
    if unknown:
        raise fields.error("layer_types", unknown, f"{FULL} or {SLIDING}")
    if SLIDING in types and window is None:
        raise ModelError(
            f"config of model_type {fields.model_type!r}: layer_types has {SLIDING} layers, but sliding_window is "
            f"unset or use_sliding_window is false; set both, or make every layer {FULL}"
        )
    return tuple(window if entry == SLIDING else None for entry in types)


def take_window(fields: ConfigFields) -> int | None:
    """The window that use_sliding_window turns on; None when off."""
    enabled = fields.flag("use_sliding_window", False)
    # Absent means the size that transformers takes by default; an explicit null means no window.
    window = None if fields.is_null("sliding_window") else fields.integer("sliding_window", 4096)
    return window if enabled else None


def layer_windows_to_hf(windows: tuple[int | None, ...]) -> dict[str, Any]:
    """The config fields that `take_layer_windows` reads back as `windows`."""
    sizes = {window for window in windows if window is not None}
    assert len(sizes) <= 1, f"these configs have room for one window size, got {sorted(sizes)}"
    first_windowed = next((layer for layer, window in enumerate(windows) if window is not None), len(windows))
    return {
        "layer_types": [FULL if window is None else SLIDING for window in windows],
        "max_window_layers": first_windowed,
        "sliding_window": next(iter(sizes), None),
        "use_sliding_window": bool(sizes),
    }
