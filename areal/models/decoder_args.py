"""Arguments that all families share, whatever their layers compute. No torch here."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import Any

from areal.api import BaseModelArgs, ModelError


@dataclass(kw_only=True)
class DecoderArgs(BaseModelArgs, ABC):
    """What the arguments of every family add to `BaseModelArgs`. Nothing here says what a layer computes."""

    initializer_range: float = 0.02
    """Standard deviation of random weights."""
    token_ids: dict[str, Any] = field(default_factory=dict, compare=False)
    """Special token ids of the checkpoint, nulls included, written back on export; no part of the computation."""

    def __post_init__(self) -> None:
        """Refuse head counts that no attention can have, and contexts without a second token."""
        if self.max_position_embeddings < 2:
            # Reference implementations broadcast tables of one position over all, and compute something else.
            raise ModelError(
                f"a config of model_type {self.model_type!r} says max_position_embeddings="
                f"{self.max_position_embeddings}; expected room for at least 2 tokens"
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"a config of model_type {self.model_type!r} asks for num_heads={self.num_heads} query heads and "
                f"num_kv_heads={self.num_kv_heads}; expected query heads in equal groups per key-value head"
            )
