"""The engine's own copy of a model, and replacing its weights all or nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from areal.api import EngineError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHOWN = 5


def private_copy(model: nn.Module, *, dtype: str, device: str) -> nn.Module:
    """Independent copy in evaluation mode without gradients. dtype, device: "auto" keeps the model's.

    Buffers keep their dtype: those of float type (e.g. routing corrections) are float32 on purpose.
    """
    own = copy.deepcopy(model).eval()
    if device != "auto":
        own.to(device=device)
    for parameter in own.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
        if dtype != "auto":
            parameter.data = parameter.data.to(_DTYPES[dtype])
    return own


def replace_weights(
    model: nn.Module, state_dict: Mapping[str, Tensor], *, frozen: frozenset[str] = frozenset()
) -> None:
    """Copy `state_dict` (native names) into `model`; dtype and device are converted.

    frozen: parameters that training never changes, which may be left out. Required are all other parameters, a tied one
    under any of its names; persistent buffers are copied when present. Raises EngineError naming missing, unknown and
    misshapen entries, before anything is changed.
    """
    targets: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **{name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if tensor is not None},
    }
    given = {id(targets[name]) for name in state_dict if name in targets}
    missing = [name for name, tensor in model.named_parameters() if id(tensor) not in given and name not in frozen]
    unknown = [name for name in state_dict if name not in targets]
    misshapen = [
        f"{name} {tuple(tensor.shape)} (expected {tuple(targets[name].shape)})"
        for name, tensor in state_dict.items()
        if name in targets and tensor.shape != targets[name].shape
    ]
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for kind, names in (("missing", missing), ("unknown", unknown), ("of the wrong shape", misshapen))
        if names
    ]
    if problems:
        raise EngineError(
            f"weight update refused, the engine keeps its weights: parameters {'; '.join(problems)}. "
            f"The update must carry all native parameters of the model the engine was built from"
        )
    with torch.no_grad():
        for name, tensor in state_dict.items():
            targets[name].copy_(tensor)


def load_weights(path: Path, model: nn.Module) -> Mapping[str, Tensor]:
    """Native state dict of a Hugging Face checkpoint folder, in the dtype of `model`, on the CPU.

    Raises EngineError when the folder cannot be loaded.
    """
    from areal.models import from_pretrained

    dtype = next(iter(model.parameters())).dtype
    try:
        loaded: Any = from_pretrained(path, dtype=dtype, device="cpu")
    except ModelError as error:
        raise EngineError(f"weight update refused, the engine keeps its weights: {error}") from error
    state: Mapping[str, Tensor] = loaded.state_dict()
    return state
