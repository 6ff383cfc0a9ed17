"""Which rotary table gives the frequencies that were measured: theta, type and parameters, with the config as a hint.

A candidate counts only if its table is the measured one, at every length that was measured. Values that no field of the
config explains are fitted (theta of a geometric series, a common factor); anything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from areal.api import ModelError
from areal.models.blocks.frequencies import attention_magnitude, inverse_frequencies
from areal.models.rotary_args import ROTARY_TYPES, RotaryArgs
from areal.porting.records import Evidence, UnsupportedError
from areal.porting.spec import RotarySpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.porting.infer.rotation import Turning

ANGLE_TOLERANCE = 3e-5
"""Largest difference of an angle, in radians at the last measured position, between a table and its explanation."""
MAGNITUDE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Measured:
    """The rotation found in sequences of `length` tokens."""

    length: int
    turning: Turning


@dataclass(frozen=True)
class Candidate:
    """A hypothesis and where it was read."""

    args: RotaryArgs
    source: str


def explain(
    measured: Sequence[Measured],
    *,
    dim: int,
    interleaved: bool,
    config: Mapping[str, Any],
    model: nn.Module,
    head_dim: int,
    key_magnitude: float,
    where: str,
) -> tuple[RotarySpec, tuple[Evidence, ...]]:
    """The table of `dim` dimensions with the measured frequencies. Raises UnsupportedError where there is none.

    key_magnitude: length of rotated keys over keys; chooses among equal tables where the measured magnitude is not the
    rotation's own.
    """
    for path, entry in _rotary_entries(config):
        kind = str(entry.get("rope_type", entry.get("type", "default")))
        if "dynamic" in kind:
            raise UnsupportedError(
                "rotary frequencies that change with the length of the sequence", where=path, detail=f"{kind} ({where})"
            )
    tried = [
        (candidate, error)
        for candidate in candidates(config)
        if (error := _error(candidate.args, dim, measured)) is not None
    ]
    fitting = [each for each in tried if each[1] <= 1.0]
    turning = measured[0].turning
    magnitude = turning.magnitude if turning.relative else key_magnitude
    fitting.sort(key=lambda each: abs(attention_magnitude(each[0].args) / magnitude - 1) > MAGNITUDE_TOLERANCE)
    if fitting:
        candidate, error = fitting[0]
    else:
        candidate = _fit(measured, dim, head_dim, config, model, where)
        error = _error(candidate.args, dim, measured) or 0.0
    args = _with_magnitude(candidate.args, turning, where)
    spec = RotarySpec(
        dim=dim, theta=args.theta, type=args.rotary_type, parameters=dict(args.parameters), interleaved=interleaved
    )
    layout = "neighbours" if interleaved else "halves"
    value = f"{args.rotary_type}, theta {args.theta:g}, {dim} of {head_dim} dimensions, pairs of {layout}"
    detail = (
        f"{candidate.source}; angles agree to {error * ANGLE_TOLERANCE:.1e} rad over {measured[0].length} positions"
    )
    other = min((each for each in tried if each[1] > 1.0), key=lambda each: each[1], default=None)
    if other is not None:
        detail += f"; next best: {other[0].args.rotary_type}, theta {other[0].args.theta:g} of {other[0].source}"
    margin = None if other is None else other[1]
    return spec, (Evidence(feature="attention.rotary", value=value, source="probe", detail=detail, margin=margin),)


def candidates(config: Mapping[str, Any]) -> Iterator[Candidate]:
    """Hypotheses out of the config, in its own order of likelihood."""
    bases = [number for name, number in _numbers(config) if number >= 2 and _about(name, ("theta", "base", "rope"))]
    for path, entry in _rotary_entries(config):
        kind = str(entry.get("rope_type", entry.get("type", "default")))
        theta = entry.get("rope_theta")
        for base in [theta] if theta else [*dict.fromkeys(bases), 10000.0]:
            parameters = _parameters(kind, entry, config)
            if parameters is not None:
                yield Candidate(RotaryArgs(theta=float(base), rotary_type=kind, parameters=parameters), path)
            yield Candidate(RotaryArgs(theta=float(base)), path)
    for name, number in _numbers(config):
        if number >= 2:
            yield Candidate(RotaryArgs(theta=number), name)
    yield Candidate(RotaryArgs(theta=10000.0), "no field of the config")


def context_lengths(config: Mapping[str, Any]) -> list[int]:
    """Lengths up to 256 tokens at which some field might say that positions change, in rising order."""
    named = (number for name, number in _numbers(config) if _about(name, ("position", "context", "length")))
    return sorted({int(number) for number in named if 4 <= number <= 256 and number == int(number)})


def inverse_frequencies_of(spec: RotarySpec) -> tuple[Tensor, ...]:
    """Its tables: two where long documents have their own."""
    args = RotaryArgs(theta=spec.theta, rotary_type=spec.type, parameters=dict(spec.parameters))
    return inverse_frequencies(args, spec.dim)


def _about(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def _numbers(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number in the config with its path."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + str(name), float(value)


def _rotary_entries(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Objects in the config that look like settings of a rotation."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            if {"rope_type", "rope_theta", "type", "factor"} & set(value):
                yield prefix + str(name), value
            yield from _rotary_entries(value, f"{prefix}{name}.")


def _parameters(kind: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Parameters of the type; None if it is no type we have, or one is missing."""
    if kind not in ROTARY_TYPES:
        return None
    required, optional = ROTARY_TYPES[kind]
    found = {name: value for name, value in entry.items() if name in required | optional and value is not None}
    length = "original_max_position_embeddings"
    maximum = config.get("max_position_embeddings")
    if length in required | optional and length not in found:
        value = config.get(length) or maximum
        if value:
            found[length] = value
    if "factor" in required | optional and kind == "longrope" and config.get(length) and maximum:
        found["factor"] = maximum / config[length]
    elif "factor" in required and "factor" not in found and maximum and found.get(length):
        found["factor"] = maximum / found[length]
    return found if required <= set(found) else None


def _error(args: RotaryArgs, dim: int, measured: Sequence[Measured]) -> float | None:
    """Worst angle error over the tolerance; None if the arguments make no table."""
    try:
        tables = inverse_frequencies(args, dim)
    except (ModelError, ValueError, ZeroDivisionError, OverflowError, KeyError):
        return None
    worst = 0.0
    for each in measured:
        table = tables[0]
        if len(tables) == 2 and each.length > args.parameters["original_max_position_embeddings"]:
            table = tables[1]
        frequencies = each.turning.frequencies
        if table.shape != frequencies.shape:
            return None
        worst = max(worst, float((table.double() - frequencies).abs().max()) * each.length / ANGLE_TOLERANCE)
    return worst if math.isfinite(worst) else None


def _fit(
    measured: Sequence[Measured], dim: int, head_dim: int, config: Mapping[str, Any], model: nn.Module, where: str
) -> Candidate:
    """A geometric series of wavelengths, whatever its base and common factor."""
    if dim < 4:
        exact = measured[0].turning.frequencies
        candidate = Candidate(RotaryArgs(theta=10000.0), "one pair: any theta gives its frequency")
        if abs(float(exact[0]) - 1) * measured[0].length < ANGLE_TOLERANCE:
            return candidate
    exact = _buffer(measured[0].turning.frequencies, measured[0].length, model)
    logs = exact.log()
    position = torch.arange(len(logs), dtype=torch.float64)
    slope = float(((logs - logs[0]) * position).sum() / position.square().sum())
    theta, factor = math.exp(-slope * dim / 2), 1 / float(exact[0])
    known = [base ** (dim / width) for _, base in _numbers(config) if base >= 2 for width in (dim, head_dim)]
    for base in (*known, *(float(f"{theta:.{digits}g}") for digits in (1, 2, 3, 4, 6)), theta):
        for stretch in (factor, float(f"{factor:.2g}"), float(f"{factor:.3g}"), float(f"{factor:.5g}")):
            is_plain = abs(stretch - 1) < 1e-5
            args = RotaryArgs(
                theta=base,
                rotary_type="default" if is_plain else "linear",
                parameters={} if is_plain else {"factor": stretch},
            )
            error = _error(args, dim, measured)
            if error is not None and error <= 1:
                return Candidate(args, "fitted to the measured frequencies")
    raise UnsupportedError(
        "a table of rotary frequencies",
        where=where,
        detail=f"no type with parameters of the config gives {[float(f'{f:.4g}') for f in exact.tolist()]}",
    )


def _buffer(frequencies: Tensor, length: int, model: nn.Module) -> Tensor:
    """The buffer that holds these frequencies, which is more exact than measuring; else the measured ones."""
    for _, buffer in model.named_buffers():
        if buffer.numel() == frequencies.numel() and buffer.is_floating_point():
            exact = buffer.detach().flatten().double()
            if float((exact - frequencies).abs().max()) * length < ANGLE_TOLERANCE:
                return exact
    return frequencies


def _with_magnitude(args: RotaryArgs, turning: Turning, where: str) -> RotaryArgs:
    """Says the measured magnitude explicitly where the type's rule gives another one."""
    if not turning.relative or abs(attention_magnitude(args) / turning.magnitude - 1) <= MAGNITUDE_TOLERANCE:
        return args
    if args.rotary_type in ("yarn", "longrope"):
        parameters = {**args.parameters, "attention_factor": turning.magnitude}
        return RotaryArgs(theta=args.theta, rotary_type=args.rotary_type, parameters=parameters)
    raise UnsupportedError(
        "a factor on rotated dimensions only", where=where, detail=f"factor {turning.magnitude:g}, {args.rotary_type}"
    )
