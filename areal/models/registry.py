"""Which Hugging Face `model_type` is loaded by which family: the only list to extend when a family is added."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Final

from areal.api import ModelError, load
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from areal.api import ModelSpec
    from areal.models.wrapping import Wrapper

MODELS: Final[dict[str, str]] = {
    "qwen2": "areal.models.qwen2:SPEC",
    "qwen3": "areal.models.qwen3:SPEC",
    "qwen3_moe": "areal.models.qwen3_moe:SPEC",
}

WRAPPERS: Final[dict[str, str]] = {
    # kept by areal-new
}
"""`model_type` of checkpoints of several models to how their text model lies in them: an
`areal.models.wrapping.Wrapper`."""

SCAFFOLDS: Final[dict[str, str]] = {
    # kept by areal-new
}
"""`model_type` of models of which only a config was seen, to what is known of them: nothing loads or trains them."""

UNPROVEN: Final[tuple[str, ...]] = (
    # kept by areal-new
)
"""Those of `MODELS` and `WRAPPERS` whose tests have not passed: `areal-new` adds a family that it writes, and removes it when they
have."""

_logger = getLogger(__name__)


def get_spec(model_type: str) -> ModelSpec:
    """Return the family that implements a `model_type`.

    Only names in `MODELS` are accepted, never an importable path: the name comes from a checkpoint's config.json, and a
    checkpoint must not choose what is imported. A family that is not proven is handed out with a warning, once in a
    process. Raises ModelError with the nearest known names.
    """
    if model_type in SCAFFOLDS:
        raise ModelError(scaffold_problem(model_type))
    if model_type not in MODELS:
        near = get_close_matches(model_type, [*MODELS, *WRAPPERS], n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ModelError(
            f"model_type {model_type!r} is not implemented{hint}; implemented are {', '.join(sorted(MODELS))} "
            "(areal/models/registry.py)"
        )
    if model_type in UNPROVEN:
        _warn_unproven(model_type)
    spec: ModelSpec = load("model", model_type, MODELS)
    return spec


def scaffold_problem(model_type: str) -> str:
    """Return why a scaffold neither loads nor trains, and what makes a family of it."""
    unit = SCAFFOLDS[model_type].partition(":")[0].rpartition(".")[2]
    return (
        f"model_type {model_type!r} is a scaffold, made from a config alone: what the model computes was never seen, so "
        f"nothing loads or trains it; `areal-new update model {unit} --from FOLDER --trust-source`, with the modeling "
        "code in the folder or a transformers that has the type, proves it"
    )


def get_wrapper(model_type: str) -> Wrapper | None:
    """Return how the text model lies in checkpoints of a `model_type`; None for a text model itself. As `get_spec`, it
    never imports what a checkpoint names."""
    if model_type not in WRAPPERS:
        return None
    if model_type in UNPROVEN:
        _warn_unproven(model_type)
    wrapper: Wrapper = load("model", model_type, WRAPPERS)
    return wrapper


@cache
def _warn_unproven(model_type: str) -> None:
    family = {**MODELS, **WRAPPERS}[model_type].partition(":")[0].rpartition(".")[2]
    _logger.warning(
        "the model family %s is not proven: its tests have not passed, so it may compute something else than the "
        "checkpoint's own code; `areal-new prove model %s` runs them",
        model_type,
        family,
    )
