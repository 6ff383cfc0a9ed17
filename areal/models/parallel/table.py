"""The words in which a family says how its parameters are split under tensor parallelism. No torch here."""

from __future__ import annotations

from enum import StrEnum


class Shard(StrEnum):
    """How tensor parallelism splits a parameter over ranks; a parameter without an entry is replicated."""

    COLUMN = "column"
    """By output features: dimension 0 of a matrix and of its bias."""
    ROW = "row"
    """By input features: dimension 1 of a matrix; the outputs of all ranks are summed."""
    EXPERT_COLUMN = "expert_column"
    """As COLUMN, for experts stacked along dimension 0: dimension 1."""
    EXPERT_ROW = "expert_row"
    """As ROW, for stacked experts: dimension 2."""
