"""Frequencies of rotary positions, for every type that `RotaryArgs` knows.

The order of operations is that of transformers' modeling_rope_utils, so that tables agree to the last bit: at position
100,000 a rounding error in a frequency is a visible angle.

Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071), sections 3.2 and 3.4; LongRoPE (arXiv 2402.13753); the
Llama 3.1 release for "llama3".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from areal.api import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.models.rotary_args import RotaryArgs


def inverse_frequencies(args: RotaryArgs, dim: int) -> tuple[Tensor, ...]:
    """Return the radians per position of each pair of dimensions, float32 [dim / 2], an odd dim rounded up.

    One table; or two, where documents longer than `original_max_position_embeddings` have the second. Raises ModelError
    for a type that is not implemented.
    """
    wavelengths = args.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if args.rotary_type == "default":
        return (1.0 / wavelengths,)
    if args.rotary_type == "linear":
        return (1.0 / wavelengths / args.parameters["factor"],)
    if args.rotary_type == "llama3":
        return (_llama3(1.0 / wavelengths, args),)
    if args.rotary_type == "yarn":
        return (_yarn(wavelengths, args, dim),)
    if args.rotary_type == "longrope":
        return _longrope(wavelengths, args)
    raise ModelError(f"rotary type {args.rotary_type!r} is not implemented")


def attention_magnitude(args: RotaryArgs) -> float:
    """Return the factor on cosine and sine, which sharpens attention over stretched positions: YaRN section 3.4,
    LongRoPE."""
    parameters = args.parameters
    if args.rotary_type not in ("yarn", "longrope"):
        return 1.0
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    factor = parameters["factor"]
    if args.rotary_type == "longrope":
        original = parameters["original_max_position_embeddings"]
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return temperature(parameters["mscale"]) / temperature(parameters["mscale_all_dim"])
    return temperature(1.0)


def _llama3(base: Tensor, args: RotaryArgs) -> Tensor:
    """Keep short wavelengths, stretch long ones by `factor`, blend linearly between the two."""
    factor, low, high = (args.parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = args.parameters["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / base
    share_kept = (original / wavelengths - low) / (high - low)
    blended = (1 - share_kept) * base / factor + share_kept * base
    frequencies = torch.where(wavelengths > original / low, base / factor, base)
    is_between = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(is_between, blended, frequencies)


def _yarn(wavelengths: Tensor, args: RotaryArgs, dim: int) -> Tensor:
    """Keep dimensions that turn more than beta_fast times in the original context, stretch those below beta_slow."""
    parameters = args.parameters
    original = parameters["original_max_position_embeddings"]

    def dimension_turning(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(args.theta))

    first = dimension_turning(parameters.get("beta_fast") or 32)
    last = dimension_turning(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001  # the ramp becomes a step instead of a division by zero
    ramp = ((torch.arange(len(wavelengths), dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (parameters["factor"] * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _longrope(wavelengths: Tensor, args: RotaryArgs) -> tuple[Tensor, Tensor]:
    """Return every wavelength is stretched by a factor of its own, other ones for documents beyond the original
    context."""
    tables = []
    for name in ("short_factor", "long_factor"):
        factors = torch.tensor(args.parameters[name], dtype=torch.float32)
        if factors.shape != wavelengths.shape:
            raise ModelError(f"longrope: {name} has {len(factors)} numbers, expected {len(wavelengths)}, one per pair")
        tables.append(1.0 / (factors * wavelengths))
    return tables[0], tables[1]
