"""Which Hugging Face `model_type` is loaded by which family: the only list to extend when a family is added."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from areal.api import ModelError, load

if TYPE_CHECKING:
    from areal.api import ModelSpec

MODELS: Final[dict[str, str]] = {
    "qwen2": "areal.models.qwen2:SPEC",
    "qwen3": "areal.models.qwen3:SPEC",
    "qwen3_moe": "areal.models.qwen3_moe:SPEC",
}


def get_spec(model_type: str) -> ModelSpec:
    """Return the family that implements a `model_type`.

    Only names in `MODELS` are accepted, never an importable path: the name comes from a checkpoint's config.json, and a
    checkpoint must not choose what is imported. Raises ModelError with the nearest known names.
    """
    if model_type not in MODELS:
        near = get_close_matches(model_type, MODELS, n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ModelError(
            f"model_type {model_type!r} is not implemented{hint}; implemented are {', '.join(sorted(MODELS))} "
            "(areal/models/registry.py)"
        )
    spec: ModelSpec = load("model", model_type, MODELS)
    return spec
