"""Which rotary table gives the frequencies that were measured: theta, type and parameters, with the config as a hint.

A candidate counts only if its table is the measured one, at every length that was measured. Values that no field of the
config explains are fitted (theta of a geometric series, a common factor); anything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import ModelError
from areal.models.blocks.rotary import attention_magnitude, inverse_frequencies
from areal.models.decoder_args import ROTARY_TYPES, RotaryArgs
from areal.porting.infer.rotation import CHANGE, Turning, measure
from areal.porting.infer.scores import numbers_of, snap
from areal.porting.records import FeatureEvidence, UnsupportedError
from areal.porting.spec import RotarySpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.porting.infer.operands import View


ANGLE_TOLERANCE = 3e-5
"""Largest difference of an angle, in radians at the last measured position, between a table and its explanation."""
MAGNITUDE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Measured:
    """The rotation found in sequences of `length` tokens."""

    length: int
    turning: Turning


@dataclass(frozen=True)
class RotaryCandidate:
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
) -> tuple[RotarySpec, tuple[FeatureEvidence, ...]]:
    """Return the table of `dim` dimensions with the measured frequencies. Raises UnsupportedError where there is none.

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
    return spec, (
        FeatureEvidence(feature="attention.rotary", value=value, source="probe", detail=detail, margin=margin),
    )


def candidates(config: Mapping[str, Any]) -> Iterator[RotaryCandidate]:
    """Yield the hypotheses out of the config, in its own order of likelihood."""
    bases = [number for name, number in _numbers(config) if number >= 2 and _about(name, ("theta", "base", "rope"))]
    for path, entry in _rotary_entries(config):
        kind = str(entry.get("rope_type", entry.get("type", "default")))
        theta = entry.get("rope_theta")
        for base in [theta] if theta else [*dict.fromkeys(bases), 10000.0]:
            parameters = _parameters(kind, entry, config)
            if parameters is not None:
                yield RotaryCandidate(RotaryArgs(theta=float(base), rotary_type=kind, parameters=parameters), path)
            yield RotaryCandidate(RotaryArgs(theta=float(base)), path)
    for name, number in _numbers(config):
        if number >= 2:
            yield RotaryCandidate(RotaryArgs(theta=number), name)
    yield RotaryCandidate(RotaryArgs(theta=10000.0), "no field of the config")


def context_lengths(config: Mapping[str, Any]) -> list[int]:
    """Return the lengths up to 256 tokens at which some field might say that positions change, in rising order."""
    named = (number for name, number in _numbers(config) if _about(name, ("position", "context", "length")))
    return sorted({int(number) for number in named if 4 <= number <= 256 and number == int(number)})


def inverse_frequencies_of(spec: RotarySpec) -> tuple[Tensor, ...]:
    """Return its tables: two where long documents have their own."""
    args = RotaryArgs(theta=spec.theta, rotary_type=spec.type, parameters=dict(spec.parameters))
    return inverse_frequencies(args, spec.dim)


def _about(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def _numbers(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in the config with its path."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + str(name), float(value)


def _rotary_entries(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects in the config that look like settings of a rotation."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            if {"rope_type", "rope_theta", "type", "factor"} & set(value):
                yield prefix + str(name), value
            yield from _rotary_entries(value, f"{prefix}{name}.")


def _parameters(kind: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of the type; None if we do not have the type, or one is missing."""
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
    """Return the worst angle error over the tolerance; None if the arguments make no table."""
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
) -> RotaryCandidate:
    """Return a geometric series of wavelengths, whatever its base and common factor."""
    if dim < 4:
        exact = measured[0].turning.frequencies
        candidate = RotaryCandidate(RotaryArgs(theta=10000.0), "one pair: any theta gives its frequency")
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
                return RotaryCandidate(args, "fitted to the measured frequencies")
    raise UnsupportedError(
        "a table of rotary frequencies",
        where=where,
        detail=f"no type with parameters of the config gives {[float(f'{f:.4g}') for f in exact.tolist()]}",
    )


def _buffer(frequencies: Tensor, length: int, model: nn.Module) -> Tensor:
    """Return the buffer that holds these frequencies, which is more exact than measuring; else the measured ones."""
    for _, buffer in model.named_buffers():
        if buffer.numel() == frequencies.numel() and buffer.is_floating_point():
            exact = buffer.detach().flatten().double()
            if float((exact - frequencies).abs().max()) * length < ANGLE_TOLERANCE:
                return exact
    return frequencies


def _with_magnitude(args: RotaryArgs, turning: Turning, where: str) -> RotaryArgs:
    """Say the measured magnitude explicitly where the type's rule gives another one."""
    if not turning.relative or abs(attention_magnitude(args) / turning.magnitude - 1) <= MAGNITUDE_TOLERANCE:
        return args
    if args.rotary_type in ("yarn", "longrope"):
        parameters = {**args.parameters, "attention_factor": turning.magnitude}
        return RotaryArgs(theta=args.theta, rotary_type=args.rotary_type, parameters=parameters)
    raise UnsupportedError(
        "a factor on rotated dimensions only", where=where, detail=f"factor {turning.magnitude:g}, {args.rotary_type}"
    )


# -------------------------------------------------------------------------------------------------------------- turning

# Rotation of one attention module: measured on queries and keys, confirmed at other lengths, explained as a table.


UNSEEN = 10 * CHANGE
"""Radians over the whole trace that a pair may turn without being seen to."""
SAME_FREQUENCY = 1e-5


@dataclass(frozen=True)
class Explained:
    """The rotation of a module's heads."""

    rotary: RotarySpec | None
    order: Tensor
    """Dimensions of a head such that rotated ones stand first, in the layout of the table."""
    evidence: tuple[FeatureEvidence, ...]


def explain_turning(
    before: dict[str, Tensor],
    after: dict[str, Tensor],
    view: View,
    growth_from: Callable[[int], Tensor] | None = None,
) -> Explained:
    """Explain how queries and keys turn with their positions. before and after: "q" and "k", [B, T, H, D] around the
    rotation, dimensions in the order of their rows. growth_from: from the position of the first token to the factors on
    queries [B, T, H]; None where that cannot be measured."""
    width = before["q"].shape[-1]
    query = measure(before["q"], after["q"], where=view.name)
    key = measure(before["k"], after["k"], where=view.name)
    if query is None and key is None:
        evidence = FeatureEvidence(
            feature="attention.rotary",
            value="none",
            source="probe",
            detail=f"positions change no query or key of {view.name}",
        )
        return Explained(None, torch.arange(width), (evidence,))
    if key is not None and key.growth is not None:
        raise UnsupportedError("keys scaled by position", where=view.name, detail="the length of keys changes")
    if query is not None and key is None and not len(query.real) and query.growth is not None:
        power = None if growth_from is None else explain_power(growth_from, view)
        if power is not None:
            return Explained(power[0], torch.arange(width), (power[1],))
        factor, length, shift, evidence = explain_growth(query.growth, view)
        grown = RotarySpec(dim=0, theta=1.0, query_growth=factor, growth_length=length, growth_shift=shift)
        return Explained(grown, torch.arange(width), (evidence,))
    if query is None or key is None or not len(query.real) or not len(key.real):
        raise _unshared(view, f"positions turn {'keys' if query is None else 'queries'} only")
    query = with_still_pairs(shared_turning(query, key, view), width)
    order, interleaved, dim = arrange(query, width)
    spec, evidence_of_table = explain(
        [Measured(view.run.length, in_order(query, order, interleaved))],
        dim=dim,
        interleaved=interleaved,
        config=view.context.config,
        model=view.context.model,
        head_dim=width,
        key_magnitude=key.magnitude,
        where=view.name,
    )
    pairs = FeatureEvidence(
        feature="attention.rotary_pairs",
        value="neighbours" if interleaved else "halves",
        source="probe",
        detail=f"queries of {view.name} turn by position, off by {query.residual:.1e} of the tolerance",
        margin=query.rejected,
    )
    if query.growth is None:
        return Explained(spec, order, (*evidence_of_table, pairs))
    factor, length, shift, evidence = explain_growth(query.growth, view)
    spec = replace(spec, query_growth=factor, growth_length=length, growth_shift=shift)
    return Explained(spec, order, (*evidence_of_table, pairs, evidence))


def with_still_pairs(turning: Turning, width: int) -> Turning:
    """Return the turning with pairs that stand still beside those that turn, where these are half of a head apart."""
    count, half = len(turning.real), width // 2
    first = torch.arange(count)
    if count >= half or width % 2 or not torch.equal(turning.real, first):
        return turning
    if not torch.equal(turning.imaginary, first + half):
        return turning
    real = torch.arange(half)
    still = turning.frequencies.new_zeros(half - count)
    return replace(turning, real=real, imaginary=real + half, frequencies=torch.cat((turning.frequencies, still)))


def arrange(turning: Turning, width: int) -> tuple[Tensor, bool, int]:
    """Return the order of dimensions that a table can say, whether it pairs neighbours, and how many dimensions it
    rotates."""
    real, imaginary = turning.real, turning.imaginary
    count = len(real)
    rest = [index for index in range(width) if index not in {*real.tolist(), *imaginary.tolist()}]
    first = int(min(real.min(), imaginary.min()))
    steps = torch.arange(count) + first
    if torch.equal(real, steps) and torch.equal(imaginary, steps + count):
        return torch.tensor([*real.tolist(), *imaginary.tolist(), *rest]), False, 2 * count
    pairs = 2 * torch.arange(count) + first
    if torch.equal(real, pairs) and torch.equal(imaginary, pairs + 1):
        return torch.tensor([*range(first, first + 2 * count), *rest]), True, 2 * count
    fastest = turning.frequencies.argsort(descending=True)
    return torch.tensor([*real[fastest].tolist(), *imaginary[fastest].tolist(), *rest]), False, 2 * count


def in_order(turning: Turning, order: Tensor, interleaved: bool) -> Turning:
    """Return the turning with pairs in the order of the table."""
    count = len(turning.real)
    leading = order[: 2 * count : 2] if interleaved else order[:count]
    place = {dimension: index for index, dimension in enumerate(turning.real.tolist())}
    chosen = torch.tensor([place[dimension] for dimension in leading.tolist()])
    return replace(
        turning,
        real=turning.real[chosen],
        imaginary=turning.imaginary[chosen],
        frequencies=turning.frequencies[chosen],
    )


def shared_turning(query: Turning, key: Turning, view: View) -> Turning:
    """Return the turning of queries, with pairs that only keys were seen to turn; slow ones are at the limit of what is
    seen. Raises UnsupportedError where they turn differently."""
    pairs: list[dict[tuple[int, int], float]] = []
    for each in (query, key):
        numbers = zip(each.real.tolist(), each.imaginary.tolist(), each.frequencies.tolist(), strict=True)
        pairs.append({(real, imaginary): frequency for real, imaginary, frequency in numbers})
    more, fewer = sorted(pairs, key=len, reverse=True)
    unseen = max((more[pair] for pair in more.keys() - fewer.keys()), default=0.0)
    differing = max((abs(more[pair] - fewer[pair]) for pair in more.keys() & fewer.keys()), default=0.0)
    if fewer.keys() - more.keys() or unseen * view.run.length > UNSEEN or differing > SAME_FREQUENCY:
        raise _unshared(
            view,
            f"queries turn {len(pairs[0])} pairs, keys {len(pairs[1])}; common ones differ by {differing:.1e} rad per "
            f"position, tolerance {SAME_FREQUENCY:.0e}",
        )
    whole = query if len(pairs[0]) >= len(pairs[1]) else key
    return replace(whole, growth=query.growth)


def _unshared(view: View, detail: str) -> UnsupportedError:
    return UnsupportedError("rotation of queries that keys do not share", where=view.name, detail=detail)


# --------------------------------------------------------------------------------------------------------------- growth

# Queries that grow with their position: by which factor, and every how many positions.


GROWTH_TOLERANCE = 1e-5
"""Of the factor on queries, which is 1 at the first position."""


def explain_growth(growth: Tensor, view: View) -> tuple[float, int, int, FeatureEvidence]:
    """Return the numbers a, n and s of 1 + a log(1 + floor((position + s) / n)) that give the factors [T]. Raises
    UnsupportedError."""
    first = int(((growth - 1).abs() > GROWTH_TOLERANCE).nonzero()[0, 0])
    hints = numbers_of(view.context.model.get_submodule(view.name), view.context.config)

    def fitted(shift: int) -> tuple[float, float, int]:
        steps = (torch.arange(len(growth), dtype=torch.float64) + shift).div(first + shift, rounding_mode="floor")
        shape = torch.log(1 + steps)
        measured = float((shape * (growth - 1)).sum() / shape.square().sum())
        factor = math.copysign(snap(abs(measured), hints), measured)
        return float((1 + factor * shape - growth).abs().max()), factor, shift

    error, factor, shift = min(fitted(shift) for shift in (0, 1))
    length = first + shift
    formula = f"log(1 + floor({'(position + 1)' if shift else 'position'} / {length}))"
    if error > GROWTH_TOLERANCE:
        raise UnsupportedError(
            "queries scaled by position",
            where=view.name,
            detail=f"the first {first} positions are alike; 1 + {factor:.4g} {formula} is off by {error:.1e} from the "
            f"factors, tolerance {GROWTH_TOLERANCE:.0e}",
        )
    return (
        factor,
        length,
        shift,
        FeatureEvidence(
            feature="attention.query_growth",
            value=f"1 + {factor:.6g} {formula}",
            source="probe",
            detail=f"length of rotated queries of {view.name}; agrees to {error:.1e}",
            margin=float((growth - 1).abs().max()) / GROWTH_TOLERANCE,
        ),
    )


FAR: Final = (1_000, 100_000)
"""Positions at which powers of the position are measured, besides the first ones: there they bend, and differ by their
exponents, while the first ones differ by what is added to the position."""


def explain_power(growth_from: Callable[[int], Tensor], view: View) -> tuple[RotarySpec, FeatureEvidence] | None:
    """Return the table that lets queries grow by a power of their position; None where they grow otherwise.

    Example: Beam's queries grow by (1 + (position + 1) / 2048) ** 0.1. The logarithms of the factors at positions 1000
    and 100000 are 0.0398 and 0.391; what divides the position is the number for which the logarithms of the bases have
    the same ratio, 2048.00, and the exponent is the ratio of both kinds of logarithms, 0.1.
    """
    try:
        measured = {start: growth_from(start) for start in (0, *FAR)}
    except (UnsupportedError, IndexError, RuntimeError, ValueError):
        return None  # learned positions end somewhere
    means = {start: growth.mean((0, 2)) for start, growth in measured.items()}
    spread = max(float((growth / means[start][:, None] - 1).abs().max()) for start, growth in measured.items())
    logs = {start: float(means[start][0].log()) for start in FAR}
    if spread > GROWTH_TOLERANCE or min(map(abs, logs.values())) < GROWTH_TOLERANCE:
        return None
    hints = numbers_of(view.context.model.get_submodule(view.name), view.context.config)
    found = []
    for shift in (0, 1):
        near, far = (start + shift for start in FAR)
        low, high = 0.0, math.log(far) + 10
        for _ in range(80):  # the ratio of the logarithms of the bases rises with what divides the position
            middle = (low + high) / 2
            ratio = math.log1p(far / math.exp(middle)) / math.log1p(near / math.exp(middle))
            low, high = (middle, high) if ratio < logs[FAR[1]] / logs[FAR[0]] else (low, middle)
        length = round(math.exp((low + high) / 2))
        exponent = logs[FAR[1]] / math.log1p(far / length)
        exponent = math.copysign(snap(abs(exponent), hints), exponent)
        errors = []
        for start, mean in means.items():
            positions = start + shift + torch.arange(len(mean), dtype=torch.float64)
            errors.append(float((torch.exp(exponent * torch.log1p(positions / length)) / mean - 1).abs().max()))
        found.append((max(errors), exponent, length, shift))
    (error, exponent, length, shift), (other, *_) = sorted(found)
    if error > POWER_TOLERANCE:
        return None
    formula = f"(1 + {'(position + 1)' if shift else 'position'} / {length}) ** {exponent:.6g}"
    table = RotarySpec(
        dim=0, theta=1.0, query_growth=exponent, growth_length=length, growth_shift=shift, growth_power=True
    )
    return table, FeatureEvidence(
        feature="attention.query_growth",
        value=formula,
        source="probe",
        detail=f"length of queries of {view.name} at positions from 0, {FAR[0]} and {FAR[1]} on; agrees to {error:.1e}",
        margin=other / POWER_TOLERANCE,
    )


POWER_TOLERANCE: Final = 5e-6
"""Of the factor on queries, relatively: one position more or less of 2048 is 5e-5 at the first of them."""
