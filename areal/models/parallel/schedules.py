"""Orders of passes in a pipeline, by name: which pieces a rank has, and what the order asks for. No torch here.

The orders themselves are those of `torch.distributed.pipelining`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from areal.api import ConfigError

ScheduleName = Literal["1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]


@dataclass(frozen=True, kw_only=True)
class ScheduleKind:
    """What is known of an order of passes."""

    pieces: int | None
    """Pieces of the model on each rank; None for as many as the configuration says."""
    returns: bool = False
    """Pieces go to the ranks and back again, so that the first rank has both ends; otherwise round and round."""
    splits_backward: bool = False
    """Gradients of hidden states are computed first, those of parameters when there is nothing else to do."""


SCHEDULES: Final[dict[str, ScheduleKind]] = {
    "1F1B": ScheduleKind(pieces=1),
    "GPipe": ScheduleKind(pieces=1),
    "Interleaved1F1B": ScheduleKind(pieces=None),
    "InterleavedZeroBubble": ScheduleKind(pieces=None, splits_backward=True),
    "ZBVZeroBubble": ScheduleKind(pieces=2, returns=True, splits_backward=True),
}


@dataclass(frozen=True, kw_only=True)
class PipelineLayout:
    """Which pieces of a model are where."""

    schedule: ScheduleName
    num_ranks: int
    pieces_per_rank: int

    @property
    def kind(self) -> ScheduleKind:
        """What is known of the schedule."""
        return SCHEDULES[self.schedule]

    @property
    def num_pieces(self) -> int:
        """Of the whole model."""
        return self.num_ranks * self.pieces_per_rank

    @property
    def last_rank(self) -> int:
        """The rank with the last piece."""
        return 0 if self.kind.returns else self.num_ranks - 1

    def pieces_of(self, rank: int) -> tuple[int, ...]:
        """Pieces of a rank, ascending."""
        if self.kind.returns:
            return (rank, self.num_pieces - 1 - rank)
        return tuple(range(rank, self.num_pieces, self.num_ranks))


def pipeline_layout(schedule: ScheduleName, num_ranks: int, pieces: int) -> PipelineLayout:
    """Return the layout of `num_ranks` ranks; pieces: as configured, for schedules that leave it open.

    Raises ConfigError for an unknown schedule and for less than one piece.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f"pp_schedule is {schedule!r}, expected one of {', '.join(SCHEDULES)}")
    if pieces < 1:
        raise ConfigError(f"pp_pieces is {pieces}, expected at least 1")
    return PipelineLayout(schedule=schedule, num_ranks=num_ranks, pieces_per_rank=SCHEDULES[schedule].pieces or pieces)
