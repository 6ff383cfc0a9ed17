"""Loads models of `transformers` for training. Safetensors only; nothing from a checkpoint is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.api import ModelError
from areal.engine.hf.model import HuggingFaceModel
from areal.hub.download import local_folder
from areal.models.vision import is_image_model, read_vision, vision_format

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from areal.models.vision import VisionFormat


def from_pretrained(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> HuggingFaceModel:
    """Load the model of a checkpoint folder, or of the hub ("org/name@revision").

    Raises ModelError when that needs to run code from it.
    """
    from transformers import AutoConfig

    folder = local_folder(path)
    if not folder.is_dir():
        raise ModelError(
            f"no checkpoint folder at {str(path)!r}; give a folder, or a model of the hub as OWNER/NAME@REVISION"
        )
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        config = _prepared(AutoConfig.from_pretrained(folder, **options), dtype)
        vision = read_vision(str(folder)) if is_image_model(config.model_type) else None
        inner = _auto(vision).from_pretrained(folder, config=config, dtype=dtype, use_safetensors=True, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"transformers cannot load {path}: {error}") from error
    return HuggingFaceModel(inner.to(device), vision)


def from_config(
    content: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> HuggingFaceModel:
    """Build a model with random weights from the content of a config.json; they depend on config and seed alone.

    Raises ModelError when `transformers` does not know it.
    """
    from transformers import AutoConfig

    fields = dict(content)
    try:
        config = _prepared(AutoConfig.for_model(fields.pop("model_type", ""), **fields), dtype)
        vision = vision_format(content) if is_image_model(config.model_type) else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inner = _auto(vision).from_config(config, dtype=dtype)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"transformers cannot build a {content.get('model_type')!r} model: {error}") from error
    return HuggingFaceModel(inner.eval().to(device), vision)


def _auto(vision: VisionFormat | None) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForCausalLM if vision is None else AutoModelForImageTextToText


def _prepared(config: Any, dtype: torch.dtype) -> Any:
    """Dropout and router noise off: the same tokens must have the same log-probabilities every time."""
    if dtype == torch.float64:
        config._experts_implementation = "eager"  # the fused product of experts has no such numbers
    parts = [config, config.get_text_config(), getattr(config, "vision_config", None)]
    for part in {id(part): part for part in parts if hasattr(part, "__dict__")}.values():
        for name, value in vars(part).items():
            noisy = "dropout" in name or name.endswith(("_pdrop", "_drop")) or name == "router_jitter_noise"
            if noisy and isinstance(value, float):
                setattr(part, name, 0.0)
    return config
