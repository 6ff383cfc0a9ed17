"""Converts trained tensors to the names and dtypes that servers expect, and checks them before they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from areal.api import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

_SHOWN: Final = 5


def serving_tensors(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Convert matrices to the servers' dtype; keep vectors (norms, biases, router corrections) as they are, since they
    are small and some must stay exact."""
    import torch

    wanted = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    return {
        name: tensor.detach().to(wanted) if tensor.is_floating_point() and tensor.dim() > 1 else tensor.detach()
        for name, tensor in tensors.items()
    }


def check_layout(tensors: Mapping[str, Tensor], layout: Mapping[str, tuple[int, ...]], *, version: int) -> None:
    """Raise EngineError unless names and shapes equal those of the first version."""
    problems = {
        "missing": [name for name in layout if name not in tensors],
        "unknown": [name for name in tensors if name not in layout],
        "of the wrong shape": [
            f"{name} {tuple(tensor.shape)} (expected {layout[name]})"
            for name, tensor in tensors.items()
            if name in layout and tuple(tensor.shape) != layout[name]
        ],
    }
    texts = [
        f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for kind, names in problems.items()
        if names
    ]
    if texts:
        raise EngineError(
            f"weight update to version {version} refused, the engine keeps its weights: parameters {'; '.join(texts)}. "
            f"The update must carry all parameters of the model the engine was built from"
        )


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a Hugging Face checkpoint folder, by their names there. Raises EngineError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        raise EngineError(
            f"weight update refused: {folder} has no safetensors files; expected a Hugging Face checkpoint folder"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"weight update refused: cannot read {file}: {error}") from error
    return tensors
