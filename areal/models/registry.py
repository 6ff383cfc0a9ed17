"""Which Hugging Face `model_type` is loaded by which family: the only list to extend when a family is added."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Final

from areal.api import ModelError, load
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from areal.api import ModelSpec

MODELS: Final[dict[str, str]] = {
    "qwen2": "areal.models.qwen2:SPEC",
    "qwen3": "areal.models.qwen3:SPEC",
    "qwen3_moe": "areal.models.qwen3_moe:SPEC",
}

UNPROVEN: Final[tuple[str, ...]] = (
    # kept by areal-new
)
"""Those of `MODELS` whose tests have not passed: `areal-new` adds a family that it writes, and removes it when they
have."""

_logger = getLogger(__name__)


def get_spec(model_type: str) -> ModelSpec:
    """Return the family that implements a `model_type`.

    Only names in `MODELS` are accepted, never an importable path: the name comes from a checkpoint's config.json, and a
    checkpoint must not choose what is imported. A family that is not proven is handed out with a warning, once in a
    process. Raises ModelError with the nearest known names.
    """
    if model_type not in MODELS:
        near = get_close_matches(model_type, MODELS, n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ModelError(
            f"model_type {model_type!r} is not implemented{hint}; implemented are {', '.join(sorted(MODELS))} "
            "(areal/models/registry.py)"
        )
    if model_type in UNPROVEN:
        _warn_unproven(model_type)
    spec: ModelSpec = load("model", model_type, MODELS)
    return spec


@cache
def _warn_unproven(model_type: str) -> None:
    family = MODELS[model_type].partition(":")[0].rpartition(".")[2]
    _logger.warning(
        "the model family %s is not proven: its tests have not passed, so it may compute something else than the "
        "checkpoint's own code; `areal-new prove model %s` runs them",
        model_type,
        family,
    )
