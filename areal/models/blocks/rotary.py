"""Rotary position embedding: positions to rotations, and rotations applied to queries and keys.

Dimension j of a head is paired with dimension j + head_dim / 2. Angles are float32 whatever the model's dtype: in
bfloat16 neighbouring positions beyond 256 would be the same. `Rotary` is not an nn.Module, so that no cast and no meta
device reaches its frequencies.

Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071), sections 3.2 and 3.4; the Llama 3.1 release for "llama3".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from areal.models.rotary_args import RotaryArgs


class Rotation(NamedTuple):
    """Rotation of each token, computed once per forward and shared by all layers."""

    cos: Tensor
    """[T, 1, head_dim]: cosine of the angle, each half the same."""
    signed_sin: Tensor
    """[T, 1, head_dim]: sine of the angle, negative in the first half."""


class Rotary:
    """Rotations of one model."""

    def __init__(self, args: RotaryArgs, head_dim: int) -> None:
        self._args = args
        self._head_dim = head_dim
        self._frequencies: dict[torch.device, Tensor] = {}
        self._magnitude = attention_magnitude(args)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Rotations at positions [T] (integers; each sequence counts from 0), in the dtype of the hidden states."""
        frequencies = self._frequencies.get(positions.device)
        if frequencies is None:
            with torch.device("cpu"):
                frequencies = inverse_frequencies(self._args, self._head_dim)
            frequencies = frequencies.to(positions.device)
            self._frequencies[positions.device] = frequencies
        angles = positions.to(torch.float32)[:, None, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cos, sin = cos * self._magnitude, sin * self._magnitude
        return Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Apply the rotation to [T, num_heads, head_dim].

    (a, b) becomes (a cos - b sin, b cos + a sin): with the sign inside the sine, both halves are one multiply-add.
    """
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * rotation.cos, swapped, rotation.signed_sin)


def inverse_frequencies(args: RotaryArgs, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions: float32 [head_dim / 2]."""
    base = 1.0 / (args.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if args.rotary_type == "linear":
        return base / args.parameters["factor"]
    if args.rotary_type == "llama3":
        return _llama3(base, args)
    if args.rotary_type == "yarn":
        return _yarn(base, args, head_dim)
    assert args.rotary_type == "default", args.rotary_type
    return base


def attention_magnitude(args: RotaryArgs) -> float:
    """Factor on cosine and sine. Only YaRN has one: it sharpens attention over stretched positions (section 3.4)."""
    if args.rotary_type != "yarn":
        return 1.0
    parameters = args.parameters
    if "attention_factor" in parameters:
        return parameters["attention_factor"]

    def temperature(weight: float) -> float:
        factor = parameters["factor"]
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return temperature(parameters["mscale"]) / temperature(parameters["mscale_all_dim"])
    return temperature(1.0)


def _llama3(base: Tensor, args: RotaryArgs) -> Tensor:
    """Keep short wavelengths, stretch long ones by `factor`, blend linearly between the two."""
    factor, low, high = (args.parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = args.parameters["original_max_position_embeddings"] * base / (2 * math.pi)
    share_kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share_kept) * base / factor + share_kept * base


def _yarn(base: Tensor, args: RotaryArgs, head_dim: int) -> Tensor:
    """Keep dimensions that turn more than beta_fast times in the original context, stretch those below beta_slow."""
    parameters = args.parameters
    original = parameters["original_max_position_embeddings"]

    def dimension_turning(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(args.theta))

    first = dimension_turning(parameters.get("beta_fast") or 32)
    last = dimension_turning(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # the ramp becomes a step instead of a division by zero
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    return base * (1 - ramp) + base / parameters["factor"] * ramp
