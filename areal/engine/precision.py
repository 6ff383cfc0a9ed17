"""Choose dtypes: what `dtype: auto` of a trained model is on this machine, and what scores are computed in.

The first loads torch only where there may be an accelerator.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

    from areal.engine.config import TrainEngineConfig

_DEVICE_FILES: Final = ("nvidia[0-9]*", "kfd", "dxg", "dri/renderD*")
"""Below /dev: of NVIDIA, AMD, Windows' subsystem for Linux, and Intel."""


def accelerator() -> str:
    """Return the type of this machine's accelerator as torch calls it ("cuda", "xpu", "mps"); "" without one.

    Where no device file tells of one, torch is not loaded to ask it, which takes seconds.
    """
    if "torch" not in sys.modules and sys.platform == "linux":
        if not any(next(Path("/dev").glob(pattern), None) for pattern in _DEVICE_FILES):
            return ""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else ""


def concrete_dtype(config: TrainEngineConfig) -> str:
    """Return the dtype that `config.dtype` stands for: of "auto", bfloat16 on GPUs that compute in it, else float32."""
    if config.dtype != "auto":
        return config.dtype
    device = accelerator() if config.device == "auto" else config.device.partition(":")[0]
    return "bfloat16" if _computes_in_bfloat16(device) else "float32"


def with_concrete_dtype(config: TrainEngineConfig) -> TrainEngineConfig:
    """Return the configuration with `concrete_dtype`."""
    if config.dtype != "auto":
        return config
    return replace(config, dtype="bfloat16" if concrete_dtype(config) == "bfloat16" else "float32")


def score_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of scores of a model of `dtype`."""
    import torch

    return torch.float64 if dtype == torch.float64 else torch.float32


def _computes_in_bfloat16(device: str) -> bool:
    if device == "xpu":
        return True
    if device != "cuda":
        return False
    import torch

    # Older ones (before Ampere) only emulate it, slower than float32. Without a GPU, loading the model will fail.
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
