"""What a model computes with weights that can be made again without it: proof for types that no library here has.

recording = record(instance, seed=0, tokens=tokens)     # JSON, kept with the tests of the family
weights = recorded_weights(recording)                   # name on disk to tensor, the same in every process
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch

from areal.porting.probe.instance import build, export, logits
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.porting.probe.instance import Instance

_DIGITS = 6
"""Decimals of a recorded logit: far below what parity allows, and short."""


def record(instance: Instance, tokens: Tensor, *, seed: int = 0) -> dict[str, Any]:
    """Logits of tokens [B, T] by a model like `instance` whose weights are made from their names on disk.

    Raises SubjectError when what is on disk is not what is in memory, so that the weights cannot be given to it.
    """
    fresh = build(instance.subject, instance.config)
    shapes = {name: list(tensor.shape) for name, tensor in export(fresh).items()}
    weights = recorded_weights({"shapes": shapes, "seed": seed})
    report = fresh.model.load_state_dict(weights, strict=False)
    missing = [name for name in report.missing_keys if name in {key for key, _ in fresh.model.named_parameters()}]
    if missing or report.unexpected_keys:
        names = sorted({*missing, *report.unexpected_keys})
        raise SubjectError(f"weights of {instance.subject.architecture} have other names on disk: {names[:4]}")
    found = logits(fresh, tokens)
    rounded = [[[round(value, _DIGITS) for value in row] for row in rows] for rows in found.tolist()]
    return {"shapes": shapes, "seed": seed, "tokens": tokens.tolist(), "logits": rounded}


def recorded_weights(recording: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a recording, by their names on disk."""
    seed = int(recording["seed"])
    return {name: _value(name, shape, seed) for name, shape in recording["shapes"].items()}


def _value(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """float32: vectors around one, which suits scales and is visible in biases; matrices that keep the size of what
    they are applied to; embeddings small."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ (seed * 0x9E3779B1 & 0xFFFFFFFF))
    noise = torch.randn(tuple(shape), generator=generator)
    if len(shape) < 2:
        return (0.1 if name.endswith("bias") else 1.0) + 0.3 * noise
    return noise * (0.2 if "emb" in name else shape[-1] ** -0.5)
