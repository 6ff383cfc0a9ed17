"""From elements of queries, keys or values back to rows of projections, through a norm or a clamp if there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from areal.porting.infer import own_norms
from areal.porting.infer.capture import Other
from areal.porting.infer.norms import infer_norm
from areal.porting.infer.own_norms import rows_under_norm
from areal.porting.infer.projections import Columns, Match, at_start, columns, match, select
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.porting.infer.capture import Capture
    from areal.porting.spec import NormSpec


@dataclass(frozen=True)
class NormUse:
    """A norm between projections and heads."""

    names: tuple[str, ...]
    events: tuple[int, ...]
    """Its calls, as indices into `Capture.events`: queries and keys may share one module."""
    spec: NormSpec
    scope: Literal["head", "each_head", "full"]
    weight: Tensor | None
    """[H, D], in the order of the elements; equal rows where heads share it."""
    bias: Tensor | None
    after_rotary: bool
    margin: float | None = None
    """Error of the best other kind of norm over the tolerance."""


@dataclass(frozen=True)
class Source:
    """Where the elements [H, D] of queries, keys or values come from."""

    match: Match
    """Of the H * D elements with rows of projections."""
    heads: int
    norm: NormUse | None = None
    clip: float | None = None

    def before_rotary(self, capture: Capture) -> Tensor:
        """[B, T, H, D] in another capture: projected, normed and clamped as far as the rotation sees it."""
        heads = select(capture, self.match).unflatten(-1, (self.heads, -1))
        if self.norm is not None and not self.norm.after_rotary:
            heads = apply_norm(self.norm, heads)
        return heads if self.clip is None else heads.clamp(-self.clip, self.clip)

    def ids(self) -> Tensor:
        """One number per element [H, D], the same for the same row of the same projection, in the order of rows."""
        return (self.match.event * 1_000_000 + self.match.column).view(self.heads, -1)


def resolve(heads: Tensor, probe: Capture, run: Capture, *, part: str, module: nn.Module) -> Source:
    """Sources of heads [tokens, H, D], taken from `probe` at position 0; `run` is a capture of long ones.

    Raises UnsupportedError if the numbers are not in this module's projections.
    """
    targets = heads.flatten(1)
    found = match(targets, columns(probe))
    if found.found:
        return Source(found, heads.shape[1])
    normed = _match_norms(targets, probe)
    if normed.found:
        return _through_norm(normed, heads.shape, probe, run)
    # The bound that several elements sit on exactly, if any.
    bound = targets.abs().max()
    clip = float(bound) if int((targets.abs() == bound).sum()) > 3 else None
    if clip is not None:
        clipped = match(targets, _clamped(columns(probe), clip))
        if clipped.found:
            return Source(clipped, heads.shape[1], clip=clip)
        normed = _match_norms(targets, probe, clip)
        if normed.found:
            return replace(_through_norm(normed, heads.shape, probe, run), clip=clip)
    own = rows_under_norm(heads, probe)
    if own is not None:
        return _own_norm(own, heads, probe, module)
    missing = int((found.event < 0).sum())
    raise UnsupportedError(
        f"{part} that are not projections of this layer's input",
        where=probe.name,
        detail=f"{missing} of {len(found.event)} elements are no rows of a projection, nor a norm of such rows",
    )


def apply_norm(use: NormUse, heads: Tensor) -> Tensor:
    """Norm [B, T, H, D]."""
    spec = use.spec
    rows = heads.flatten(-2) if use.scope == "full" else heads
    if spec.kind == "layer":
        rows = rows - rows.mean(-1, keepdim=True)
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + spec.eps)
    rows = rows.reshape(heads.shape)
    if use.weight is not None:
        rows = rows * (use.weight + spec.offset)
    return rows if use.bias is None else rows + use.bias


def _match_norms(targets: Tensor, probe: Capture, clip: float | None = None) -> Match:
    """Elements as outputs of submodules; of nested ones that give the same, the inner ones hold the parameters."""
    outputs = columns(probe, (Other,))
    names = [probe.calls[each.event].name for each in outputs]
    inner = [
        each
        for each, name in zip(outputs, names, strict=True)
        if not any(other.startswith(name + ".") for other in names)
    ]
    for pool in (inner, outputs):
        found = match(targets, pool if clip is None else _clamped(pool, clip))
        if found.found:
            break
    return found


def _own_norm(found: Match, heads: Tensor, probe: Capture, module: nn.Module) -> Source:
    """A norm that the module computes itself, before the rotation or (the same without weights) after it."""
    plain = Source(found, heads.shape[1])
    source = select(probe, found).unflatten(-1, (heads.shape[1], -1))[:, 0]
    reasons = []
    scope: Literal["head", "full"]
    for scope in ("head", "full"):
        try:
            spec, weight, bias = own_norms.fit(source, heads, module, scope, probe.name)
        except UnsupportedError as error:
            reasons.append(error)
            continue
        return replace(plain, norm=NormUse((probe.name,), (), spec, scope, weight, bias, after_rotary=False))
    raise reasons[0]


def _clamped(pool: list[Columns], clip: float) -> list[Columns]:
    return [Columns(each.event, each.values.clamp(-clip, clip)) for each in pool]


def _through_norm(normed: Match, shape: tuple[int, ...], probe: Capture, run: Capture) -> Source:
    """Follow outputs of norms to their inputs, and these to projections."""
    _, heads, width = shape
    events = normed.events()
    inputs = []
    for event in events:
        flat = at_start(probe.calls[event].input, probe)
        assert flat is not None
        inputs.append(Columns(event, flat))
    picked = torch.stack(
        [
            next(each for each in inputs if each.event == event).values[:, column]
            for event, column in zip(normed.event.tolist(), normed.column.tolist(), strict=True)
        ],
        1,
    )
    source = match(picked, columns(probe))
    names = tuple(probe.calls[event].name for event in events)
    if not source.found:
        raise UnsupportedError(
            "a norm of something that is no projection", where=names[0], detail="its input is computed in another way"
        )
    calls = [probe.calls[event] for event in events]
    run_calls = [run.calls[event] for event in events]
    after = not _sees(run_calls, source, run)
    use = _norm_use(calls, run_calls, normed, heads, width, after_rotary=after)
    # A constant between norm and product belongs to the scale, one before the norm does not exist for it.
    return Source(source, heads, norm=use)


def _sees(calls: list[Other], source: Match, run: Capture) -> bool:
    """Whether the norms' inputs are the projected elements as they are, at every position; a rotation changes them."""
    _, first = torch.unique(source.event * 1_000_000 + source.column, return_inverse=True)
    unique = torch.stack([(first == index).nonzero()[0, 0] for index in range(int(first.max()) + 1)])
    wanted = select(run, source)[..., unique].flatten().sort().values
    given = torch.cat([call.input.flatten() for call in calls]).sort().values
    return given.shape == wanted.shape and float((given - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def _norm_use(
    calls: list[Other], run_calls: list[Other], normed: Match, heads: int, width: int, *, after_rotary: bool
) -> NormUse:
    inferred = [infer_norm(call.module, call.input, call.output, name=call.name) for call in run_calls]
    spec = inferred[0].spec
    if any(each.spec != spec for each in inferred):
        raise UnsupportedError("norms of several kinds for one part", where=calls[0].name, detail="heads differ")
    over = calls[0].input.shape[-1]
    distinct = len(torch.unique(normed.event * 1_000_000 + normed.column))
    if over not in (width, distinct):
        raise UnsupportedError(
            "a norm over part of a head", where=calls[0].name, detail=f"statistics over {over}, heads have {width}"
        )
    tensors = {}
    for kind in ("weight", "bias"):
        if kind in inferred[0].tensors:
            flat = {event: each.tensors[kind].flatten() for event, each in zip(normed.events(), inferred, strict=True)}
            pairs = zip(normed.event.tolist(), normed.column.tolist(), strict=True)
            values = [flat[event][column % len(flat[event])] for event, column in pairs]
            tensors[kind] = torch.stack(values).view(heads, width)
    own = len(calls) > 1 or any(tensor.numel() > over for each in inferred for tensor in each.tensors.values())
    scope: Literal["head", "each_head", "full"]
    scope = "each_head" if own and over == width else "head" if over == width else "full"
    return NormUse(
        tuple(call.name for call in calls),
        tuple(normed.events()),
        spec,
        scope,
        tensors.get("weight"),
        tensors.get("bias"),
        after_rotary,
        min((line.margin for each in inferred for line in each.evidence if line.margin is not None), default=None),
    )
