"""Traces elements of queries, keys or values back to rows of projections, through a norm or a clamp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from areal.porting.infer.capture import Other, Projection
from areal.porting.infer.norms import fit_norm, infer_norm, normalised
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        """Return one number per element [H, D], the same for the same row of the same projection, in the order of
        rows."""
        return (self.match.event * 1_000_000 + self.match.column).view(self.heads, -1)


def resolve(heads: Tensor, probe: Capture, run: Capture, *, part: str, module: nn.Module) -> Source:
    """Return the sources of heads [tokens, H, D], taken from `probe` at position 0; `run` is a capture of long ones.

    Raises UnsupportedError if the numbers are not in this module's projections.

    Example: query head 0 of granite has, at position 0 of 96 short sequences, the numbers of rows 0 to 23 of q_proj's
    output, bit for bit or up to one factor. Equal numbers in 96 sequences are no chance, so these rows are the head, in
    this order; no name was read. If a norm stands between, differences of logarithms are compared instead (see
    `rows_under_norm`).
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
    """Return the norm [B, T, H, D]."""
    spec = use.spec
    rows = heads.flatten(-2) if use.scope == "full" else heads
    rows = normalised(rows, spec.kind, spec.eps).reshape(heads.shape)
    if use.weight is not None:
        rows = rows * (use.weight + spec.offset)
    return rows if use.bias is None else rows + use.bias


def _match_norms(targets: Tensor, probe: Capture, clip: float | None = None) -> Match:
    """Return the elements as outputs of submodules; of nested ones that give the same, the inner ones hold the
    parameters."""
    outputs = columns(probe, (Other,))
    names = [probe.calls[each.event].name for each in outputs]
    inner = [
        each
        for each, name in zip(outputs, names, strict=True)
        if not any(other.startswith(name + ".") for other in names)
    ]
    for pool in (inner, outputs):
        given = pool if clip is None else _clamped(pool, clip)
        found = match(targets, given)
        if found.found:
            if _is_multiple(found):
                return found
            # Norms of the same projection give the same columns but for a factor each, which says nothing: Gemma 4
            # norms keys and values so. The one that gives all elements, times one number, is the norm.
            alone = (match(targets, [columns]) for columns in given)
            return next((one for one in alone if one.found and _is_multiple(one)), found)
    return found


def _is_multiple(found: Match) -> bool:
    """Return whether all elements come from one call, times one number."""
    factor = float(found.factor.mean())
    return len(found.events()) == 1 and float((found.factor - factor).abs().max()) <= MATCH_TOLERANCE * abs(factor)


def _own_norm(found: Match, heads: Tensor, probe: Capture, module: nn.Module) -> Source:
    """Return a norm that the module computes itself, before the rotation or (the same without weights) after it."""
    plain = Source(found, heads.shape[1])
    source = select(probe, found).unflatten(-1, (heads.shape[1], -1))[:, 0]
    reasons = []
    scope: Literal["head", "full"]
    for scope in ("head", "full"):
        try:
            spec, weight, bias = fit(source, heads, module, scope, probe.name)
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
            "a norm of something that is not a projection",
            where=names[0],
            detail="its input is computed in another way",
        )
    calls = [probe.calls[event] for event in events]
    run_calls = [run.calls[event] for event in events]
    # A rotation between projection and norm changes the elements that the norm sees.
    _, first = torch.unique(source.event * 1_000_000 + source.column, return_inverse=True)
    unique = torch.stack([(first == index).nonzero()[0, 0] for index in range(int(first.max()) + 1)])
    wanted = select(run, source)[..., unique].flatten().sort().values
    given = torch.cat([call.input.flatten() for call in run_calls]).sort().values
    sees = given.shape == wanted.shape and float((given - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    use = _norm_use(calls, run_calls, normed, heads, width, after_rotary=not sees)
    # A constant between norm and product belongs to the scale, one before the norm does not exist for it.
    return Source(source, heads, norm=use)


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


# ------------------------------------------------------------------------------------------------------------ own norms

# Root-mean-square norms that an attention module computes itself, between its projections and its heads. No submodule
# shows what goes in. But a norm multiplies all elements of a head by one number per token, so the differences of
# logarithms between an element and the row it comes from are the same for all elements of the head, up to a constant.


SAME = 1e-3
"""Largest difference of logarithms, at tokens where no number is close to zero."""


def rows_under_norm(heads: Tensor, probe: Capture) -> Match | None:
    """Return the rows of projections [H * D] that heads [tokens, H, D] are a norm of, whatever its weights; None if
    nothing is."""
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
    """Return the logarithms of [tokens, elements], centred per element; transposed."""
    logs = values.abs().clamp_min(1e-12).log()
    return (logs - logs.mean(0)).t()


def _rows_of_head(head: Tensor, logs: Tensor) -> Tensor | None:
    """Return, for a head [D, tokens], the rows whose logarithms differ from it by the same numbers everywhere."""
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
    """Return the norm of source [tokens, H, D] that gives target, over heads ("head") or all together ("full").

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
    """Return the factors between a norm [N, D] and what was made of it: none, that of a norm without weight, or with
    one."""
    slope = (unit * target).sum(0) / unit.square().sum(0)
    factors = [1.0, float(slope.mean())]
    for parameter in parameters.values():
        for weight in (parameter, parameter + 1):
            if weight.shape == slope.shape:
                ratio = slope / weight
                if float((ratio / ratio.mean() - 1).abs().max()) < SAME:
                    factors.append(float(ratio.mean()))
    return factors


# ---------------------------------------------------------------------------------------------------------- projections

# Which rows of which matrices feed queries, keys and values: found by equal numbers, not by names or layouts. At
# position 0 a rotation is the identity, so there every element of a query is one row of a projection (or one output of
# a norm after it) up to a common factor. Over enough different tokens no two rows agree, so the match is unique.


MATCH_TOLERANCE = 2e-5
"""Of the distance between a column and its match, in norms of the column."""


@dataclass(frozen=True)
class Columns:
    """A column of numbers, one per token, for each element of `place`."""

    event: int
    """Index into `Capture.events`."""
    values: Tensor
    """[tokens, elements]."""


@dataclass(frozen=True)
class Match:
    """Where elements come from. All tensors have one entry per element."""

    event: Tensor
    """Index into `Capture.events`; -1: nowhere."""
    column: Tensor
    factor: Tensor
    """element = factor * source."""
    error: Tensor
    """Distance over the element's norm."""

    @property
    def found(self) -> bool:
        """Whether every element has a source."""
        return bool((self.event >= 0).all())

    def events(self) -> list[int]:
        """Return the events that take part, in order."""
        return sorted({int(event) for event in self.event if event >= 0})


def columns(capture: Capture, kinds: tuple[type, ...] = (Projection,)) -> list[Columns]:
    """Return the outputs of these events at position 0."""
    pool = []
    for index, event in enumerate(capture.events):
        if isinstance(event, kinds) and isinstance(event, Projection | Other):
            flat = at_start(event.output, capture)
            if flat is not None:
                pool.append(Columns(index, flat))
    return pool


def at_start(tensor: Tensor, capture: Capture) -> Tensor | None:
    """[B, elements] at position 0, if the tensor has something for every token."""
    flat = per_token(tensor, capture)
    return None if flat is None else flat.unflatten(0, (capture.batch, capture.length))[:, 0]


def per_token(tensor: Tensor, capture: Capture) -> Tensor | None:
    """[B * T, elements], if the tensor has something for every token: [B, T, ...], [B * T, ...] or [B, H, T, D]."""
    batch, length = capture.batch, capture.length
    if tensor.dim() > 1 and tensor.shape[:2] == (batch, length):
        return tensor.reshape(batch * length, -1)
    if tensor.dim() == 4 and tensor.shape[0] == batch and tensor.shape[2] == length:
        return tensor.transpose(1, 2).reshape(batch * length, -1)
    if tensor.dim() > 1 and tensor.shape[0] == batch * length:
        return tensor.reshape(batch * length, -1)
    return None


def match(targets: Tensor, pool: Sequence[Columns]) -> Match:
    """Find for each column of targets [tokens, elements] the column of the pool that is a multiple of it."""
    count = targets.shape[1]
    nothing = Match(
        torch.full((count,), -1), torch.zeros(count, dtype=torch.long), torch.ones(count), torch.ones(count)
    )
    if not pool:
        return nothing
    sources = torch.cat([columns.values for columns in pool], 1).double()
    owners = torch.cat([torch.full((columns.values.shape[1],), columns.event) for columns in pool])
    places = torch.cat([torch.arange(columns.values.shape[1]) for columns in pool])
    targets = targets.double()
    lengths = sources.norm(dim=0).clamp_min(1e-30)
    likeness = (targets / targets.norm(dim=0).clamp_min(1e-30)).t() @ (sources / lengths)
    best = likeness.abs().argmax(1)
    chosen = sources[:, best]
    factor = (targets * chosen).sum(0) / lengths[best] ** 2
    error = (targets - factor * chosen).norm(dim=0) / targets.norm(dim=0).clamp_min(1e-30)
    event = torch.where(error <= MATCH_TOLERANCE, owners[best], -1)
    return Match(event, places[best], factor, error)


def rows(capture: Capture, found: Match) -> tuple[Tensor, Tensor | None]:
    """Return the weight [elements, in] and bias [elements] of matched elements, all of them from projections of equal
    input."""
    weights, biases = [], []
    for event, column in zip(found.event.tolist(), found.column.tolist(), strict=True):
        projection = capture.events[event]
        assert isinstance(projection, Projection)
        weights.append(projection.weight[column])
        biases.append(None if projection.bias is None else projection.bias[column])
    present = [bias for bias in biases if bias is not None]
    if not present:
        return torch.stack(weights), None
    return torch.stack(weights), torch.stack([torch.zeros(()) if bias is None else bias for bias in biases])


def select(capture: Capture, found: Match) -> Tensor:
    """Return the matched columns in another capture of the same module: [B, T, elements]."""
    flat = {event: per_token(capture.events[event].output, capture) for event in found.events()}  # type: ignore[union-attr]  # matches are projections or others
    pairs = zip(found.event.tolist(), found.column.tolist(), strict=True)
    picked = [flat[event][:, column] for event, column in pairs]  # type: ignore[index]  # as for `flat`: never None
    return torch.stack(picked, 1).reshape(capture.batch, capture.length, -1)
