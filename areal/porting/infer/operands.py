"""Queries, keys, values, scores and attended values of a captured attention module, by head, whatever its layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from areal.porting.infer.capture import MatrixProduct, Softmax
from areal.porting.infer.scores import visible_keys
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.porting.infer.capture import Capture
    from areal.porting.records import FeatureEvidence, LayerContext
    from areal.porting.spec import AttentionSpec, LatentAttentionSpec, RotarySpec


@dataclass(frozen=True)
class Core:
    """Which events are the attention itself. Numbers count the products of a capture."""

    softmax: int
    """Index into the softmaxes of the capture."""
    score_products: tuple[int, ...]
    """More than one where scores are sums of products."""
    value_product: int
    num_heads: int
    token_major: bool
    """Rows of a product with several heads are ordered by token, then head."""
    second: int | None = None
    """Another product of the same weights: the first has the values of one half of the heads for both halves, this one
    those of the other (differential attention)."""


@dataclass(frozen=True)
class Operands:
    """What one capture holds at the core's events."""

    query: Tensor
    """[B, T, H, D], as it enters the product."""
    key: Tensor
    """[B, T, H, D], shared heads repeated."""
    value: Tensor
    """[B, T, H, V], shared heads repeated."""
    scores: Tensor
    """[B, H, T, K], as they enter the softmax."""
    probabilities: Tensor
    """[B, H, T, K]"""
    attended: Tensor
    """[B, T, H, V]"""


def find_core(capture: Capture) -> Core:
    """Recognise softmax(q k) v among the events. Raises UnsupportedError where there is no such thing."""
    batch, length, where = capture.batch, capture.length, capture.name
    found: list[Core] = []
    products = softmaxes = 0
    pending: list[int] = []
    softmax: Softmax | None = None
    for event in capture.events:
        if isinstance(event, MatrixProduct):
            if softmax is not None and event.left.shape[-1] == length and pending:
                scored = _scored_by(capture, softmax, pending)
                found.append(_core(capture, softmax, softmaxes - 1, scored, products))
                softmax, pending = None, []
            elif event.right.shape[-1] == length and event.left.shape[0] * event.left.shape[1] % (batch * length) == 0:
                pending.append(products)
            products += 1
        elif isinstance(event, Softmax):
            if event.scores.shape[-1] >= length and event.scores.numel() % (batch * length) == 0:
                softmax = event
            softmaxes += 1
    if not found:
        raise UnsupportedError(
            "a token mixer without softmax attention",
            where=where,
            detail="no softmax over keys between a product with keys and one with values was seen",
        )
    if len(found) == 2 and _are_halves(capture, *found):
        return replace(found[0], second=found[1].value_product)
    if len(found) > 1:
        raise UnsupportedError(
            "several attentions in one module", where=where, detail=f"{len(found)} softmaxes over keys in one call"
        )
    return found[0]


def _are_halves(capture: Capture, one: Core, other: Core) -> bool:
    """Return whether two products have the same weights, and each the same values for both halves of the heads."""
    products = [capture.of(MatrixProduct)[core.value_product] for core in (one, other)]
    if one.token_major or one.num_heads != other.num_heads or not torch.equal(products[0].left, products[1].left):
        return False
    for product in products:
        heads = _columns(product.right, capture, one, key=False)
        first, second = heads.chunk(2, 2)
        if not torch.equal(first, second):
            return False
    return True


SCORED = 1e-3
"""What a product may leave of the scores that are it, times a number and plus another one in each row, relatively."""


def _scored_by(capture: Capture, softmax: Softmax, pending: list[int]) -> tuple[int, ...]:
    """Return the products that make the scores: of several before a softmax, the one that does alone, or all. Others
    choose which tokens are attended to."""
    products = capture.of(MatrixProduct)
    target = softmax.scores[..., : capture.length].reshape(-1, capture.length).double()
    visible = visible_keys(target)
    for number in reversed(pending) if len(pending) > 1 else ():
        made = (products[number].left @ products[number].right).double()
        if made.numel() != target.numel():
            continue
        sides = []
        for side in (made.reshape(target.shape), target):
            inside = torch.where(visible, side, 0.0)
            mean = inside.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
            sides.append(torch.where(visible, side - mean, 0.0))
        given, scores = sides
        factor = (given * scores).sum() / given.square().sum().clamp_min(1e-30)
        if float((scores - factor * given).norm()) <= SCORED * float(scores.norm()):
            return (number,)
    return tuple(pending)


def _core(capture: Capture, softmax: Softmax, number: int, scores: tuple[int, ...], values: int) -> Core:
    batch, length = capture.batch, capture.length
    keys = softmax.scores.shape[-1]
    heads = softmax.scores.numel() // (batch * length * keys)
    products = capture.of(MatrixProduct)
    rows = products[scores[0]].left.shape[1]
    by_head = visible_keys(softmax.scores).reshape(batch, heads, length, keys)[:, :, 0, :length].sum(-1)
    token_major = rows > length and bool((by_head > 1).any())
    return Core(number, scores, values, heads, token_major)


def read(capture: Capture, core: Core) -> Operands:
    """Return the operands in this capture, which has the core's events in the core's order."""
    products: list[MatrixProduct] = capture.of(MatrixProduct)
    softmaxes: list[Softmax] = capture.of(Softmax)
    if len(products) <= core.value_product or len(softmaxes) <= core.softmax:
        raise UnsupportedError(
            "attention whose operations depend on the length",
            where=capture.name,
            detail="short sequences take another way",
        )
    queries = [_rows(products[index].left, capture, core) for index in core.score_products]
    keys = [_columns(products[index].right, capture, core, key=True) for index in core.score_products]
    finals = [products[core.value_product]]
    if core.second is not None:
        if len(products) <= core.second:
            raise UnsupportedError("several attentions in one module", where=capture.name, detail="not in all lengths")
        finals.append(products[core.second])
    values = [_columns(final.right, capture, core, key=False) for final in finals]
    value = values[0] if core.second is None else torch.cat([each.chunk(2, 2)[0] for each in values], 2)
    softmax = softmaxes[core.softmax]
    return Operands(
        query=torch.cat(queries, -1),
        key=torch.cat(keys, -1),
        value=value,
        scores=_by_head(softmax.scores, capture, core),
        probabilities=_by_head(softmax.probabilities, capture, core),
        attended=torch.cat([_rows(final.left @ final.right, capture, core) for final in finals], -1),
    )


def check_weights(capture: Capture, core: Core, operands: Operands) -> None:
    """Check that the weights of values are the softmax itself. Raises UnsupportedError where something comes
    between."""
    left = capture.of(MatrixProduct)[core.value_product].left
    weights = _rows(left, capture, core).transpose(1, 2)
    expected = operands.probabilities[..., : capture.length]
    if weights.shape != expected.shape or float((weights - expected).abs().max()) > 1e-6:
        raise UnsupportedError(
            "attention weights changed after the softmax",
            where=capture.name,
            detail="values are not averaged with the softmax of the scores",
        )


def _rows(left: Tensor, capture: Capture, core: Core) -> Tensor:
    """[N, M, D] with N * M = B * H * T to [B, T, H, D]."""
    batch, length, heads = capture.batch, capture.length, core.num_heads
    shape: Sequence[int]
    if left.shape[0] * left.shape[1] != batch * length * heads:
        raise UnsupportedError(
            "an order of heads and tokens", where=capture.name, detail=f"queries are a {tuple(left.shape)} operand"
        )
    if core.token_major:
        shape = (batch, left.shape[0] // batch, length, -1, left.shape[-1])
        return left.reshape(shape).transpose(1, 2).reshape(batch, length, heads, left.shape[-1])
    return left.reshape(batch, heads, length, left.shape[-1]).transpose(1, 2)


def _columns(right: Tensor, capture: Capture, core: Core, *, key: bool) -> Tensor:
    """[N, D, T] (keys) or [N, T, V] (values) to [B, T, H, D], repeating heads that several query heads share."""
    tensor = right.transpose(1, 2) if key else right
    if tensor.shape[0] % capture.batch or tensor.shape[1] != capture.length:
        raise UnsupportedError(
            "attention over other tokens",
            where=capture.name,
            detail=f"keys or values are a {tuple(right.shape)} operand",
        )
    tensor = tensor.reshape(capture.batch, -1, capture.length, tensor.shape[-1])
    return tensor.repeat_interleave(core.num_heads // tensor.shape[1], 1).transpose(1, 2)


def _by_head(scores: Tensor, capture: Capture, core: Core) -> Tensor:
    batch, length, keys = capture.batch, capture.length, scores.shape[-1]
    if core.token_major:
        return scores.reshape(batch, length, core.num_heads, keys).transpose(1, 2)
    return scores.reshape(batch, core.num_heads, length, keys)


# ----------------------------------------------------------------------------------------------------------------- view

# What the inference of one attention layer looks at, and what it finds.


@dataclass(frozen=True, kw_only=True)
class View:
    """One attention module, watched."""

    context: LayerContext
    run: Capture
    """On the tokens of the trace."""
    probe: Capture
    """On many short sequences: at position 0 no rotation changes anything."""
    core: Core
    operands: Operands
    """Of `run`."""
    single: Operands
    """Of `probe`."""

    @property
    def name(self) -> str:
        """Of the module."""
        return self.context.name


@dataclass(frozen=True, kw_only=True)
class AttentionHypothesis:
    """A hypothesis about one attention module, with the weights that it needs."""

    attention: AttentionSpec | LatentAttentionSpec
    rotary: RotarySpec | None
    window: int | None
    chunk: int | None
    tensors: Mapping[str, Tensor]
    evidence: tuple[FeatureEvidence, ...]
