"""Rotary position embedding: positions to rotations, and rotations applied to queries and keys.

A table rotates the first `dim` dimensions of a head and keeps the others. Dimension j is paired with j + dim / 2, or,
interleaved, dimension 2j with 2j + 1. Angles are float32 whatever the model's dtype: in bfloat16 neighbouring positions
beyond 256 would be the same. `Rotary` is not an nn.Module, so that no cast and no meta device reaches its frequencies.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from areal.models.decoder_args import RotaryArgs


class Rotation(NamedTuple):
    """Rotation of each token, computed once per forward and shared by all layers with the same table."""

    cos: Tensor
    """[T, 1, dim]: cosine of the angle, the same for both dimensions of a pair."""
    signed_sin: Tensor
    """[T, 1, dim]: sine of the angle, negative for the first dimension of a pair."""
    interleaved: bool = False
    """Whether neighbours are paired, instead of dimensions half of `dim` apart."""
    query_scale: Tensor | None = None
    """[T, 1, 1]: factor on whole queries, which grows with the position; None for none."""

    @property
    def dim(self) -> int:
        """How many dimensions of a head are rotated, from the first on."""
        return self.cos.shape[-1]

    def paired(self, *, interleaved: bool) -> Rotation:
        """Return the same angles for dimensions that are paired in one of the two ways."""
        if interleaved == self.interleaved:
            return self
        if interleaved:
            cos, sin = (part.unflatten(-1, (2, -1)).transpose(-1, -2) for part in (self.cos, self.signed_sin))
        else:
            cos, sin = (part.unflatten(-1, (-1, 2)).transpose(-1, -2) for part in (self.cos, self.signed_sin))
        return Rotation(cos.flatten(-2), sin.flatten(-2), interleaved, self.query_scale)


class QueryGrowth:
    """Queries that grow with the position, in layers that rotate nothing: times 1 + factor * log(1 + floor((position +
    shift) / length)), so that attention stays sharp over long documents (Llama 4, Ministral 3); as a power, times
    (1 + (position + shift) / length) ** factor (Beam)."""

    dim: Final = 0
    length_limit: Final = None

    def __init__(self, factor: float, length: int | None, growth_shift: int = 0, *, growth_power: bool = False) -> None:
        """Take 0 as a factor that changes nothing. Raises ModelError for a length below 1 beside another factor."""
        if factor and (length is None or length < 1):
            raise ModelError(f"queries grow every {length} positions, expected a number of at least 1")
        self._factor, self._length, self._shift = factor, length or 1, growth_shift
        self._power = growth_power

    def __call__(self, positions: Tensor, dtype: torch.dtype, cu_seqlens: Tensor | None = None) -> Rotation:
        """As `Rotary`, of no dimensions."""
        none = torch.empty(len(positions), 1, 0, dtype=dtype, device=positions.device)
        return Rotation(none, none, query_scale=self.scale(positions, dtype))

    def scale(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the factors [T, 1, 1] of positions [T]; None where all are 1. Powers are float32: bfloat16 has no
        number between 1 and what they are at a hundred positions."""
        if not self._factor:
            return None
        if self._power:
            parts = (positions + self._shift).to(torch.float32) / self._length
            return torch.exp(self._factor * torch.log1p(parts))[:, None, None]
        steps = (positions + self._shift).div(self._length, rounding_mode="floor").to(torch.float32)
        return (1 + self._factor * torch.log(1 + steps)).to(dtype)[:, None, None]


class Rotary:
    """One table of rotations.

    length_limit: documents of up to this many tokens are rotated in one way and longer ones in another, so that the
    keys of a short document are of no use once it has grown; None when its length does not matter.
    """

    def __init__(
        self,
        args: RotaryArgs,
        dim: int,
        *,
        interleaved: bool = False,
        query_growth: float = 0.0,
        growth_length: int | None = None,
        growth_shift: int = 0,
        growth_power: bool = False,
    ) -> None:
        """dim: dimensions to rotate; an odd number is rounded up, as the reference implementations do.

        query_growth, growth_length, growth_shift, growth_power: see `QueryGrowth`, which raises ModelError. ModelError
        too for YaRN in an odd number of dimensions: its ramp then has fewer entries than there are frequencies, and
        what the reference implementation makes of that is an accident.
        """
        if args.rotary_type == "yarn" and dim % 2:
            raise ModelError(f"rotary type 'yarn' turns {dim} dimensions of a head, expected an even number")
        self._growth = QueryGrowth(query_growth, growth_length, growth_shift, growth_power=growth_power)
        self._args = args
        self._dim = dim
        self._interleaved = interleaved
        self._frequencies: dict[torch.device, tuple[Tensor, ...]] = {}
        self._magnitude = attention_magnitude(args)
        self.dim = dim + dim % 2
        """How many dimensions of a head are rotated."""
        self.length_limit: int | None = None
        if args.rotary_type == "longrope":
            self.length_limit = int(args.parameters["original_max_position_embeddings"])

    def __call__(self, positions: Tensor, dtype: torch.dtype, cu_seqlens: Tensor | None = None) -> Rotation:
        """Rotations at positions [T] (integers; each document counts from 0), in the dtype of the hidden states.

        cu_seqlens: bounds of the documents; without them, one ends where positions stop to rise by one. Raises
        ModelError where the length of a document matters and only a part of it is here.
        """
        frequencies = self._select(positions, cu_seqlens)
        angles = positions.to(torch.float32)[:, None, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cos, sin = cos * self._magnitude, sin * self._magnitude
        if self._interleaved:
            pairs = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            pairs = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return Rotation(pairs[0].to(dtype), pairs[1].to(dtype), self._interleaved, self._growth.scale(positions, dtype))

    def frequencies(self) -> Tensor:
        """Return the radians per position of each pair of dimensions, float32 [dim / 2] on the CPU; of documents up to
        `length_limit` tokens, where that matters."""
        with torch.device("cpu"):
            return inverse_frequencies(self._args, self._dim)[0]

    def _select(self, positions: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        """Return the frequencies [dim / 2] of all tokens, or [T, 1, dim / 2] where documents differ."""
        tables = self._frequencies.get(positions.device)
        if tables is None:
            with torch.device("cpu"):
                tables = inverse_frequencies(self._args, self._dim)
            tables = tuple(table.to(positions.device) for table in tables)
            self._frequencies[positions.device] = tables
        limit = self.length_limit
        if limit is None or not positions.numel() or int(positions.max()) < limit:
            return tables[0]
        is_long = _documents_longer_than(limit, positions, cu_seqlens)
        return torch.where(is_long[:, None, None], tables[1], tables[0])


def rotate(heads: Tensor, rotation: Rotation | None) -> Tensor:
    """Apply the rotation to the first `rotation.dim` dimensions of [T, num_heads, head_dim]; None changes nothing.

    (a, b) becomes (a cos - b sin, b cos + a sin): with the sign inside the sine, both are one multiply-add.
    """
    if rotation is None or not rotation.dim:
        return heads
    dim = rotation.dim
    if dim < heads.shape[-1]:
        rotated, kept = heads.split((dim, heads.shape[-1] - dim), -1)
        return torch.cat((rotate(rotated, rotation), kept), -1)
    swapped = heads.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if rotation.interleaved else heads.roll(dim // 2, -1)
    return torch.addcmul(heads * rotation.cos, swapped, rotation.signed_sin)


def scale_query(heads: Tensor, rotation: Rotation | None) -> Tensor:
    """Return the queries [T, num_heads, head_dim] times the factor of their positions, where the rotation has one."""
    if rotation is None or rotation.query_scale is None:
        return heads
    return (heads * rotation.query_scale).to(heads.dtype)


def shortest_limit(rotaries: Iterable[Rotary | QueryGrowth | None]) -> int | None:
    """Return the number of tokens up to which all of these rotate every document alike; None when lengths do not
    matter."""
    limits = [rotary.length_limit for rotary in rotaries if rotary is not None and rotary.length_limit is not None]
    return min(limits, default=None)


def _documents_longer_than(limit: int, positions: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return bool [T]: whether the document of each token has more than `limit` tokens."""
    starts = torch.ones_like(positions, dtype=torch.bool)
    if cu_seqlens is None:
        starts[1:] = positions[1:] != positions[:-1] + 1
    else:
        bounds = cu_seqlens.to(positions.device, torch.int64)
        starts = torch.zeros_like(starts).index_fill_(0, bounds[:-1][bounds[:-1] < bounds[1:]], True)
    partial = positions[starts] != 0
    if partial.any():
        raise ModelError(
            f"rotary type 'longrope' rotates documents of more than {limit} tokens differently, but a document of this "
            f"forward begins at position {int(positions[starts][partial][0])}: whether the whole of it is longer "
            f"cannot be known; pass whole documents (no shared prefixes, no decoding beyond {limit} tokens)"
        )
    document = starts.cumsum(0) - 1
    last = torch.zeros_like(positions).scatter_reduce_(0, document, positions, "amax")
    return last[document] >= limit


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
    if args.rotary_type == "proportional":
        # The part is one of the pairs, of which the slow ones stand still (Gemma 4).
        count = int(args.parameters.get("partial_rotary_factor", 1.0) * dim // 2)
        turning = torch.arange(len(wavelengths)) < count
        return (turning / wavelengths / args.parameters.get("factor", 1.0),)
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
