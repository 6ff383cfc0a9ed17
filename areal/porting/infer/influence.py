"""Whether anything in a model acts on its logits without being part of the inferred weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.porting.probe.instance import logits
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal.porting.probe.instance import Instance


def check_weights(instance: Instance, weights: Mapping[str, Tensor], tokens: Tensor) -> tuple[str, ...]:
    """Names of parameters and of stored buffers that are not among `weights`, all proven to be without influence.

    A tensor is among the weights when each of its numbers is: the instance's are random, so that layouts need not be
    known. Others are changed, and the logits must stay the same to the last bit. Raises UnsupportedError otherwise.
    """
    known = torch.cat([tensor.detach().reshape(-1).float() for tensor in weights.values()]).unique()
    places = {(value.data_ptr(), value.numel()) for value in weights.values()}
    stored = instance.model.state_dict(keep_vars=True)
    suspects: dict[str, Tensor] = {}
    for name, value in stored.items():
        if (value.data_ptr(), value.numel()) in places:
            continue
        # One number may be among the weights by chance.
        accounted = value.numel() > 1 and _contained(value.detach(), known)
        if value.is_floating_point() and value.numel() and not accounted:
            suspects[name] = value.detach()
    if not suspects:
        return ()
    before = logits(instance, tokens)
    if not bool((_changed(instance, suspects, tokens) == before).all()):
        for name, value in suspects.items():
            difference = float((_changed(instance, {name: value}, tokens) - before).abs().max())
            if difference > 0.0:
                detail = f"it acts on the logits (changing it moves them by {difference:.2g}), but is in no known part"
                raise UnsupportedError("a parameter of unknown use", where=name, detail=detail)
        detail = "together they act on the logits, but are in no known part"
        raise UnsupportedError("parameters of unknown use", where=", ".join(suspects), detail=detail)
    return tuple(suspects)


def _contained(value: Tensor, known: Tensor) -> bool:
    flat = value.reshape(-1).float()
    place = torch.searchsorted(known, flat).clamp_max(known.numel() - 1)
    return bool((known[place] == flat).all())


def _changed(instance: Instance, tensors: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits with other values in these tensors, which get their own back."""
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        try:
            for tensor in tensors.values():
                size = tensor.float().std() if tensor.numel() > 1 else tensor.float().abs().max()
                noise = torch.randn(tensor.shape, generator=generator) * (size + 0.1)
                tensor.add_(noise.to(tensor.dtype))
            return logits(instance, tokens)
        finally:
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])
