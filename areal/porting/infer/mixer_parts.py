"""What a mixer with a state is made of: its projections, its filters, and the parameters beside them, as captured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from areal.porting.infer import capture as captures
from areal.porting.infer.capture import Filtering, Projection
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import EQUAL, combination, error, snapped
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from areal.porting.infer.capture import Capture
    from areal.porting.records import LayerContext
    from areal.porting.spec import Stateful

WIDEST = 16
"""Tokens that a convolution may see: a parameter with more numbers per channel is none."""


@dataclass(frozen=True)
class MixerParts:
    """What a mixer is made of, as it was captured on the trace's tokens."""

    context: LayerContext
    run: Capture
    first: tuple[Projection, ...]
    """The projections of the module's input."""
    last: Projection
    """The projection that gives its output."""
    second: tuple[tuple[Projection, Projection], ...]
    """Products of two matrices: a first projection, and one that reads all of its output."""
    parameters: Mapping[str, Tensor]
    """What belongs to no projection, by name."""
    input_factor: float = 1.0
    """Of what the first projections read, over what the module is given."""
    row_factors: Tensor | None = None
    """[rows], by which the outputs of the first projections are multiplied; None unless a buffer says so."""

    @property
    def name(self) -> str:
        """Of the module."""
        return self.context.name

    @property
    def width(self) -> int:
        """Features per token of what the last projection reads."""
        return int(self.last.input.shape[-1])

    def projected(self) -> Tensor:
        """Return the outputs of all first projections side by side, times their factors, [B, T, rows]."""
        flat = [each.output.reshape(self.run.batch, self.run.length, -1) for each in self.first]
        whole = torch.cat(flat, -1)
        return whole if self.row_factors is None else whole * self.row_factors

    def factor(self, places: Tensor) -> float | None:
        """Return the factor of some rows; None where they have different ones."""
        if self.row_factors is None:
            return 1.0
        found = self.row_factors[places].unique()
        return float(found[0]) if len(found) == 1 else None

    def rows(self, places: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return weight [rows, hidden] and bias of some rows of the first projections."""
        weight = torch.cat([each.weight for each in self.first])[places]
        if all(each.bias is None for each in self.first):
            return weight, None
        biases = [each.weight.new_zeros(len(each.weight)) if each.bias is None else each.bias for each in self.first]
        return weight, torch.cat(biases)[places]

    def places_of(self, projection: Projection) -> Tensor:
        """Return the rows of one of the first projections among those of all."""
        number = next(place for place, each in enumerate(self.first) if each is projection)
        start = sum(len(each.weight) for each in self.first[:number])
        return torch.arange(start, start + len(projection.weight))

    def entering(self) -> Tensor:
        """Return what the last projection reads, [B, T, width]."""
        return self.last.input.reshape(self.run.batch, self.run.length, -1)


@dataclass(frozen=True)
class MixerHypothesis:
    """A mixer with canonical tensors, and in words how its rows are arranged."""

    spec: Stateful
    tensors: Mapping[str, Tensor]
    layout: str


def look(context: LayerContext, *, scaled: bool = False) -> MixerParts:
    """Capture the module. Raises UnsupportedError unless it projects its input, and its output is a projection.

    scaled: whether the input may be multiplied by a number before."""
    run = captures.capture(context.model, context.name, context.trace.tokens, calls=context.calls)
    projections: list[Projection] = run.of(Projection)
    factor = input_factor_of(context, run, projections) if scaled else 1.0
    run = run if factor == 1.0 else replace(run, input=run.input * factor)
    flat = run.input.reshape(-1)
    first = [each for each in projections if each.input.numel() == flat.numel() and _equal(each.input, flat)]
    last = [
        each for each in projections if each.output.numel() == run.output.numel() and _equal(each.output, run.output)
    ]
    if not first or not last or last[-1] in first:
        kind = type(context.module).__name__
        detail = f"{kind} does not project its input first and its output last; no softmax over keys ran inside"
        raise UnsupportedError("a layer without softmax attention", where=context.name, detail=detail)
    second = [
        (inner, each)
        for each in projections
        for inner in first
        if each is not last[-1] and each is not inner and _equal(each.input, inner.output)
    ]
    own = {each.name.removeprefix(f"{context.name}.") for each in projections}
    parameters = {
        name: value.detach()
        for name, value in context.module.named_parameters()
        if name not in own and name.rpartition(".")[0] not in own
    }
    total = sum(len(each.weight) for each in first)
    tables = [value for _, value in context.module.named_buffers(recurse=False) if value.numel() == total]
    return MixerParts(
        context=context,
        run=run,
        first=tuple(first),
        last=last[-1],
        second=tuple(second),
        parameters=parameters,
        input_factor=factor,
        row_factors=tables[0].detach().reshape(-1) if len(tables) == 1 else None,
    )


def input_factor_of(context: LayerContext, run: Capture, projections: Sequence[Projection]) -> float:
    """Return by what the module multiplies its input before it is projected first."""
    for each in projections:
        if each.input.numel() == run.input.numel():
            (factor,), off = combination(each.input, (run.input,))
            known = snapped(factor, (1.0, *numbers_of(context.config)))
            if off <= EQUAL and error(run.input * known, each.input.view_as(run.input)) <= EQUAL:
                return known
    return 1.0


def _equal(tensor: Tensor, other: Tensor) -> bool:
    return tensor.numel() == other.numel() and torch.equal(tensor.reshape(-1), other.reshape(-1))


@dataclass(frozen=True)
class Kernel:
    """A depthwise convolution that a module may have."""

    weight: Tensor
    """[C, K]."""
    bias: Tensor | None


def kernels(parts: MixerParts, channels: int) -> Iterator[Kernel]:
    """Yield the parameters that may be the weight of a convolution over so many channels, with a vector beside them as
    bias."""
    for name, value in parts.parameters.items():
        if value.dim() < 2 or value.numel() % channels or not 1 <= value.numel() // channels <= WIDEST:
            continue
        owner = name.rpartition(".")[0]
        beside = [
            other
            for key, other in parts.parameters.items()
            if key != name and key.rpartition(".")[0] == owner and other.dim() == 1 and len(other) == channels
        ]
        flat = value.squeeze()
        flat = flat[:, None] if flat.dim() == 1 else flat
        for weight in (flat, flat.T):
            if weight.dim() == 2 and weight.shape[0] == channels:
                yield from (Kernel(weight, bias) for bias in (*beside, None))


def convolved(inputs: Tensor, kernel: Kernel) -> Tensor:
    """Return the causal convolution of [B, T, C] along T."""
    width = kernel.weight.shape[1]
    padded = torch.nn.functional.pad(inputs, (0, 0, width - 1, 0))
    total = sum(padded[:, j : j + inputs.shape[1]] * kernel.weight[:, j] for j in range(width))
    assert isinstance(total, torch.Tensor)
    return total if kernel.bias is None else total + kernel.bias


@dataclass(frozen=True)
class Filtered:
    """The rows of the first projections that filters run over, in the order of the filters."""

    rows: Tensor
    kernel: Kernel

    @property
    def bias(self) -> Tensor | None:
        """Of the filters."""
        return self.kernel.bias


def filtered(parts: MixerParts) -> Filtered | None:
    """Return which rows are convolved, found by equal numbers; None where something else than the first projections is,
    or where filters differ in their taps or biases."""
    events: list[Filtering] = parts.run.of(Filtering)
    length = parts.run.length
    columns = parts.projected().flatten(0, 1).T
    known = {column.numpy().tobytes(): row for row, column in enumerate(columns.contiguous())}
    rows: list[int] = []
    for event in events:
        inputs = event.input[..., -length:].transpose(0, 1).flatten(1).contiguous()
        rows += [known.get(column.numpy().tobytes(), -1) for column in inputs]
    if not rows or -1 in rows or len({event.weight.shape[1] for event in events}) > 1:
        return None
    biases = [event.bias for event in events if event.bias is not None]
    if biases and len(biases) < len(events):
        return None
    kernel = Kernel(torch.cat([event.weight for event in events]), torch.cat(biases) if biases else None)
    return Filtered(torch.tensor(rows), kernel)
