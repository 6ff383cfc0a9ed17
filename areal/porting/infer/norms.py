"""Which normalisation turns one traced tensor into another: kind, epsilon, scale and bias, judged by the values.

The scale and the bias are fitted first and then looked up among parameters, so neither names nor the way they are
applied (1 + weight, inside a module or in a block's own forward) have to be known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from areal.porting.infer.tensors import LOCAL, error
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import NormSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

KNOWN_EPSILONS = (1e-6, 1e-5, 1e-12, 1e-8, 1e-7, 1e-3, 1e-4, 1e-10, 1e-15, 0.0)
PROBE_DEVIATIONS = (1e-3, 1e-5)
"""Inputs this small make the epsilon visible: at the size of usual hidden states 1e-5 and 1e-6 give the same floats."""
MATCH = 1e-4
"""Relative difference within which a fitted scale counts as a parameter; the whole norm is checked afterwards."""
LARGEST_EPSILON = 0.1


@dataclass(frozen=True)
class _Pair:
    """One input and what the norm made of it, [N, D] in float64 with the statistics over `width` last dimensions."""

    input: Tensor
    output: Tensor


@dataclass(frozen=True)
class _Fit:
    kind: Literal["rms", "layer"]
    eps: float
    slope: Tensor
    intercept: Tensor
    error: float


def infer_norm(module: nn.Module, input: Tensor, output: Tensor, *, name: str) -> Inferred[NormSpec]:
    """Return the norm that `module` computes. Tensors: "weight", "bias". Raises UnsupportedError when it is none we
    know."""
    parameters = {key: value.detach() for key, value in module.named_parameters(recurse=False)}
    attributes = [value for value in vars(module).values() if isinstance(value, float)]
    epsilons = [value for value in attributes if 0.0 <= value < LARGEST_EPSILON]
    return fit_norm(input, output, parameters, epsilons=epsilons, probe=module, name=name)


def fit_norm(
    source: Tensor,
    target: Tensor,
    parameters: Mapping[str, Tensor],
    *,
    epsilons: Iterable[float] = (),
    probe: Callable[[Tensor], Tensor] | None = None,
    name: str,
) -> Inferred[NormSpec]:
    """Return the norm of `source` that gives `target`, both [..., D].

    parameters: where its scale and bias may come from. epsilons: values to prefer over common ones, e.g. of a config.
    probe: applies the norm to an input of the shape of `source`; with it the epsilon is certain.

    Example: Gemma norms x / rms(x) * (1 + weight). The fitted scale per dimension is 1.13, 0.92, ... and the module's
    weight 0.13, -0.08, ...: no parameter equals the scale, but scale - 1 equals `weight`, so the spec has offset 1.0.
    The epsilon is known by also applying the module to inputs of size 1e-3 and 1e-5, where 1e-6 and 1e-5 give visibly
    different outputs.
    """
    if source.shape != target.shape or not target.is_floating_point():
        raise UnsupportedError("normalisation", where=name, detail=f"{tuple(source.shape)} -> {tuple(target.shape)}")
    # Shapes that a scale may have: more of the last dimensions (one scale per head), or the last one.
    several = {
        tuple(value.shape)
        for value in parameters.values()
        if 1 < value.ndim < source.ndim and value.shape == source.shape[-value.ndim :]
    }
    for shape in (*sorted(several), (source.shape[-1],)):
        traced = _pair(source, target, shape)
        has_scale = any(tuple(value.shape) == shape for value in parameters.values())
        if not has_scale and not may_be_plain(traced.input, traced.output):
            continue
        pairs = [traced, *_probed(source, shape, probe)]
        candidates = tuple(dict.fromkeys((*epsilons, *KNOWN_EPSILONS)))
        fits, rejected = _fits(pairs, shape, candidates)
        if not fits:
            fits = _searched(pairs, shape)
        for fit in fits:
            found = _identified(fit, parameters, shape, pairs)
            if found is not None:
                spec, tensors, measured = found
                others = [other.eps for other in fits if other is not fit]
                value = f"{spec.kind} norm, eps {spec.eps:g}" + (", 1 + weight" if spec.offset else "")
                detail = f"{name}: relative error {measured:.1e}"
                if others:
                    detail += f"; eps {', '.join(f'{eps:g}' for eps in others[:3])} cannot be distinguished here"
                margin = rejected / LOCAL if math.isfinite(rejected) else None
                evidence = (
                    FeatureEvidence(feature="norm", value=value, source="parity", detail=detail, margin=margin),
                )
                return Inferred(spec=spec, tensors=tensors, evidence=evidence)
    raise UnsupportedError(
        "normalisation", where=name, detail="no RMS or layer normalisation with these parameters gives its output"
    )


def _pair(source: Tensor, target: Tensor, shape: tuple[int, ...]) -> _Pair:
    return _Pair(source.detach().reshape(-1, *shape).double(), target.detach().reshape(-1, *shape).double())


def may_be_plain(given: Tensor, found: Tensor) -> bool:
    """Return whether a norm without scale and bias could make `found` of what is given, both [N, D], whatever its
    epsilon: it only shortens or lengthens each vector, so that stays on the line through the input, or the centred one.

    Necessary for `_identified`, with its tolerances: where no parameter is the scale, its fit has a slope within MATCH
    of 1 and an intercept within MATCH of 0, and is off by at most LOCAL of the largest value. So the output is close to
    the normalised input, of which no value is larger than the root of their number. Most activations are farther off
    in every vector, and are spared the search for an epsilon: 250 fits.
    """
    root = given.shape[-1] ** 0.5
    near = LOCAL * float(found.abs().max()) + 2 * MATCH * (root + 1)
    for line in (given, given - given.mean(-1, keepdim=True)):
        along = (found * line).sum(-1, keepdim=True) / line.square().sum(-1, keepdim=True).clamp_min(1e-300)
        if bool(((found - along * line).norm(dim=-1) <= root * near).all()):
            return True
    return False


def _probed(source: Tensor, shape: tuple[int, ...], probe: Callable[[Tensor], Tensor] | None) -> list[_Pair]:
    if probe is None:
        return []
    deviation = float(source.detach().std())
    pairs = []
    for wanted in PROBE_DEVIATIONS:
        small = source.detach() * (wanted / max(deviation, 1e-30))
        try:
            with torch.no_grad():
                out = probe(small)
        except (TypeError, RuntimeError, ValueError):
            return []  # needs more than its input: the traced pair has to do
        if not isinstance(out, torch.Tensor) or out.shape != source.shape:
            return []
        pairs.append(_pair(small, out, shape))
    return pairs


def normalised(value: Tensor, kind: str, eps: float) -> Tensor:
    """Return vectors [..., D] of unit variance ("layer"), or of unit mean square ("rms")."""
    centred = value - value.mean(-1, keepdim=True) if kind == "layer" else value
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)


def _fit(pairs: Sequence[_Pair], kind: Literal["rms", "layer"], eps: float) -> _Fit:
    """Return the scale and bias per dimension that fit all pairs best."""
    unit = torch.cat([normalised(pair.input, kind, eps) for pair in pairs])
    target = torch.cat([pair.output for pair in pairs])
    if not bool(torch.isfinite(unit).all()):
        return _Fit(kind, eps, unit[0], unit[0], math.inf)
    # Each pair counts by its own size: rounding in large outputs would spoil the fit of small ones.
    weights = []
    for pair in pairs:
        size = 1.0 / max(float(pair.output.var()), 1e-24)
        weights.append(pair.output.new_full(pair.input.shape[:1], size))
    weight = torch.cat(weights)
    weight = (weight / weight.sum()).reshape(-1, *[1] * (unit.dim() - 1))
    mean, goal = (weight * unit).sum(0), (weight * target).sum(0)
    slope = (weight * (unit - mean) * (target - goal)).sum(0)
    slope = slope / (weight * (unit - mean).square()).sum(0).clamp_min(1e-30)
    intercept = goal - slope * mean
    predicted = unit * slope + intercept
    start, worst = 0, 0.0
    for pair in pairs:
        stop = start + pair.input.shape[0]
        worst = max(worst, error(predicted[start:stop], pair.output))
        start = stop
    return _Fit(kind, eps, slope, intercept, worst)


def _fits(pairs: Sequence[_Pair], shape: tuple[int, ...], epsilons: Sequence[float]) -> tuple[list[_Fit], float]:
    """Fit within tolerance in the order of the candidates, and the error of the best one that is not."""
    fits, rejected = [], math.inf
    for eps in epsilons:
        for kind in ("rms", "layer"):
            fit = _fit(pairs, kind, eps)
            if fit.error <= LOCAL:
                fits.append(fit)
            else:
                rejected = min(rejected, fit.error)
        if fits and len(pairs) > 1:
            break
    return fits, rejected


def _searched(pairs: Sequence[_Pair], shape: tuple[int, ...]) -> list[_Fit]:
    """Return an epsilon that no one would guess: minimise the error over its logarithm."""
    found = []
    for kind in ("rms", "layer"):
        grid = [_fit(pairs, kind, 10.0 ** (-12 + step / 2)) for step in range(23)]
        best = min(range(len(grid)), key=lambda index: grid[index].error)
        low, high = -12 + (best - 1) / 2, -12 + (best + 1) / 2
        for _ in range(50):
            left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
            if _fit(pairs, kind, 10.0**left).error < _fit(pairs, kind, 10.0**right).error:
                high = right
            else:
                low = left
        exact = 10.0 ** ((low + high) / 2)
        for digits in (1, 2, 3, 4, 6):
            fit = _fit(pairs, kind, float(f"{exact:.{digits}g}"))
            if fit.error <= LOCAL:
                found.append(fit)
                break
    return found


def _identified(
    fit: _Fit, parameters: Mapping[str, Tensor], shape: tuple[int, ...], pairs: Sequence[_Pair]
) -> tuple[NormSpec, dict[str, Tensor], float] | None:
    """Return the fitted scale and bias as parameters; None if they are none."""
    usable = {name: value for name, value in parameters.items() if tuple(value.shape) == shape}
    scale: tuple[str | None, float] | None = None
    if error(torch.ones_like(fit.slope), fit.slope) <= MATCH:
        scale = (None, 0.0)
    for name, value in usable.items():
        for offset in (0.0, 1.0):
            if error(value.double() + offset, fit.slope) <= MATCH:
                scale = (name, offset)
    if scale is None:
        return None
    bias: str | None = None
    if float(fit.intercept.abs().max()) > MATCH * float(fit.slope.abs().max()):
        near = [name for name, value in usable.items() if error(value.double(), fit.intercept) <= 10 * MATCH]
        if len(near) != 1:
            return None
        bias = near[0]
    spec = NormSpec(kind=fit.kind, eps=fit.eps, weight=scale[0] is not None, bias=bias is not None, offset=scale[1])
    tensors = {} if scale[0] is None else {"weight": parameters[scale[0]]}
    if bias is not None:
        tensors["bias"] = parameters[bias]
    measured = max(error(apply_norm(spec, tensors, pair.input), pair.output) for pair in pairs)
    return (spec, tensors, measured) if measured <= LOCAL else None


def apply_norm(spec: NormSpec, tensors: Mapping[str, Tensor], value: Tensor) -> Tensor:
    """Return what a norm of `spec` with these tensors gives for `value` [..., D], in the dtype of `value`."""
    out = normalised(value, spec.kind, spec.eps)
    if spec.weight:
        out = out * (tensors["weight"].to(value.dtype) + spec.offset)
    return out + tensors["bias"].to(value.dtype) if spec.bias else out
