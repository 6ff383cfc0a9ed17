"""Root-mean-square norms that an attention module computes itself, between its projections and its heads.

No submodule shows what goes in. But a norm multiplies all elements of a head by one number per token, so the
differences of logarithms between an element and the row it comes from are the same for all elements of the head, up to
a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.porting.infer.norms import fit_norm
from areal.porting.infer.projections import Match, columns
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from areal.porting.infer.capture import Capture
    from areal.porting.spec import NormSpec

SAME = 1e-3
"""Largest difference of logarithms, at tokens where no number is close to zero."""


def rows_under_norm(heads: Tensor, probe: Capture) -> Match | None:
    """Rows of projections [H * D] that heads [tokens, H, D] are a norm of, whatever its weights; None if nothing is."""
    pool = columns(probe)
    if not pool or heads.shape[2] < 2:
        return None
    sources = torch.cat([each.values for each in pool], 1).double()
    events = torch.cat([torch.full((each.values.shape[1],), each.event) for each in pool])
    places = torch.cat([torch.arange(each.values.shape[1]) for each in pool])
    logs = _centred(sources)
    chosen = []
    for head in heads.double().unbind(1):
        found = _rows_of_head(_centred(head), logs)
        if found is None:
            return None
        chosen.append(found)
    index = torch.cat(chosen)
    zeros = torch.zeros(len(index))
    return Match(events[index], places[index], zeros + 1, zeros)


def _centred(values: Tensor) -> Tensor:
    """Logarithms of [tokens, elements], centred per element; transposed."""
    logs = values.abs().clamp_min(1e-12).log()
    return (logs - logs.mean(0)).t()


def _rows_of_head(head: Tensor, logs: Tensor) -> Tensor | None:
    """head [D, tokens]: the rows whose logarithms differ from it by the same numbers everywhere."""
    # A candidate row for element 0 fixes the norm; it is the right one if every other element then has a row too.
    first, second = head[0] - logs, head[1] - logs
    distance = torch.cdist(first, second)
    distance.fill_diagonal_(float("inf"))
    row = int(distance.argmin()) // logs.shape[0]
    rest = torch.cdist(head - first[row], logs)
    nearest = rest.min(1)
    tokens = logs.shape[1]
    return nearest.indices if float(nearest.values.max()) <= SAME * tokens**0.5 else None


def fit(
    source: Tensor, target: Tensor, module: nn.Module, scope: str, name: str
) -> tuple[NormSpec, Tensor | None, Tensor | None]:
    """The norm of source [tokens, H, D] that gives target, over heads ("head") or all together ("full").

    With its weight and bias as [H, D]. A constant factor that follows belongs to the scale. Raises UnsupportedError.
    """
    parameters = {key: value.detach() for key, value in module.named_parameters() if value.dim() == 1}
    heads, width = source.shape[1:]
    if scope == "full":
        source, target = source.flatten(1), target.flatten(1)
    unit = source * torch.rsqrt(source.square().mean(-1, keepdim=True))
    for factor in _factors(unit.flatten(0, -2), target.flatten(0, -2), parameters):
        try:
            inferred = fit_norm(source, target / factor, parameters, name=name)
        except UnsupportedError:
            continue
        whole = {
            kind: tensor.flatten().expand(heads, width) if tensor.numel() == width else tensor.view(heads, width)
            for kind, tensor in inferred.tensors.items()
        }
        return inferred.spec, whole.get("weight"), whole.get("bias")
    raise UnsupportedError(
        "a norm inside attention", where=name, detail="heads are normed, but by no norm with parameters of the module"
    )


def _factors(unit: Tensor, target: Tensor, parameters: Mapping[str, Tensor]) -> list[float]:
    """Factors between a norm [N, D] and what was made of it: none, that of a norm without weight, or with one."""
    slope = (unit * target).sum(0) / unit.square().sum(0)
    factors = [1.0, float(slope.mean())]
    for parameter in parameters.values():
        for weight in (parameter, parameter + 1):
            if weight.shape == slope.shape:
                ratio = slope / weight
                if float((ratio / ratio.mean() - 1).abs().max()) < SAME:
                    factors.append(float(ratio.mean()))
    return factors
