"""Computes how a pipeline spends a step, from the order of its passes: who waits, who holds activations.

Passes of all pieces cost the same, gradients of hidden states as much as a forward pass, those of parameters again as
much; sending is free. Under these conditions the shares are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.distributed.pipelining.schedules import get_schedule_class

if TYPE_CHECKING:
    from areal.models.parallel.schedules import PipelineLayout

_COST: Final = {"F": 1, "I": 1, "W": 1, "B": 2}
_OF_ONE: Final = _COST["F"] + _COST["B"]
"""Cost of a micro-batch and a piece."""
Pass = tuple[int, str, int]
"""Piece, kind (as in `_COST`) and micro-batch."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What follows from an order of passes."""

    idle_share: float
    """Of the ranks' time in a step, between 0 and 1; blank micro-batches that fill the pipeline are idle time too."""
    held: int
    """Activations, of one piece and one micro-batch each, that a rank has at its peak: the largest of all ranks."""


def timeline(layout: PipelineLayout, micro_batches: int) -> Timeline:
    """Of a step with this many micro-batches, of which blank ones make a multiple of the number of ranks."""
    run = micro_batches + -micro_batches % layout.num_ranks
    orders = _orders(layout, run)
    length = max(_ends(layout, orders).values())
    useful = _OF_ONE * layout.num_pieces * micro_batches
    return Timeline(
        idle_share=1 - useful / (layout.num_ranks * length), held=max(_held(passes) for passes in orders.values())
    )


class _PretendedStage:
    """What schedules ask of a stage before they run."""

    def __init__(self, layout: PipelineLayout) -> None:
        self.num_stages = layout.num_pieces
        self.group_size = layout.num_ranks
        self.group_rank = 0
        self.submod = nn.Module()


def _orders(layout: PipelineLayout, micro_batches: int) -> dict[int, list[Pass]]:
    """Return the passes of each rank in torch's order."""
    if layout.kind.pieces == 1:
        return {rank: _of_one_piece(layout, rank, micro_batches) for rank in range(layout.num_ranks)}
    stages: Any = [_PretendedStage(layout) for _ in range(layout.pieces_per_rank)]
    schedule: Any = get_schedule_class(layout.schedule)(stages, n_microbatches=micro_batches)
    return {
        rank: [
            (action.stage_index, action.computation_type.value, action.microbatch_index)
            for action in actions
            if action is not None and action.computation_type.value in _COST
        ]
        for rank, actions in schedule.pipeline_order.items()
    }


def _of_one_piece(layout: PipelineLayout, rank: int, micro_batches: int) -> list[Pass]:
    """Torch has no table of these orders that is right: forward passes until the first can come back, then in turn."""
    ahead = micro_batches if layout.schedule == "GPipe" else min(micro_batches, layout.num_ranks - rank)
    passes: list[Pass] = [(rank, "F", number) for number in range(ahead)]
    for number in range(micro_batches):
        passes.append((rank, "B", number))
        if number + ahead < micro_batches:
            passes.append((rank, "F", number + ahead))
    return passes


def _ends(layout: PipelineLayout, orders: dict[int, list[Pass]]) -> dict[Pass, int]:
    """When each pass ends, if each rank starts the next one of its order as soon as what it needs is there."""
    ends: dict[Pass, int] = {}
    clocks = dict.fromkeys(orders, 0)
    waiting = {rank: list(reversed(passes)) for rank, passes in orders.items()}
    while any(waiting.values()):
        progressed = False
        for rank, passes in waiting.items():
            while passes and all(_end_of(need, ends) is not None for need in _needs(layout, passes[-1])):
                step = passes.pop()
                ready = max((_end_of(need, ends) or 0 for need in _needs(layout, step)), default=0)
                clocks[rank] = ends[step] = max(clocks[rank], ready) + _COST[step[1]]
                progressed = True
        assert progressed, f"the order of {layout.schedule} does not end"
    return ends


def _needs(layout: PipelineLayout, step: Pass) -> list[Pass]:
    """Return the passes of other ranks whose results a pass starts from; "I" stands for "B" too."""
    piece, kind, micro_batch = step
    if kind == "F":
        return [(piece - 1, "F", micro_batch)] if piece else []
    if kind == "W" or piece == layout.num_pieces - 1:
        return []
    return [(piece + 1, "I", micro_batch)]


def _end_of(step: Pass, ends: dict[Pass, int]) -> int | None:
    piece, kind, micro_batch = step
    found = ends.get(step)
    return ends.get((piece, "B", micro_batch)) if found is None and kind == "I" else found


def _held(passes: list[Pass]) -> int:
    now = most = 0
    for _, kind, _ in passes:
        now += {"F": 1, "I": 0}.get(kind, -1)
        most = max(most, now)
    return most
