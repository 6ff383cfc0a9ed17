"""Configurations of runs that learn from preference pairs: policies (DPO and its relatives) and reward models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from areal.algorithm.preference import PreferenceConfig
from areal.api import ConfigError, DatasetKind
from areal.trainer.config import RowsConfig


@dataclass(frozen=True, kw_only=True)
class DPOConfig(RowsConfig):
    """Learning a policy from preference pairs: DPO and its relatives."""

    kind: Literal["dpo"] = "dpo"
    """Selects the trainer."""
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    """The loss."""
    reference_path: str = ""
    """Checkpoint folder of the reference model; empty means the trained model before its first step. It is only needed
    before the run, which keeps two numbers per row, and takes no memory while the run trains."""

    dataset_kind: ClassVar[DatasetKind] = "preference"
    """What the rows must be made for."""

    def __post_init__(self) -> None:
        """Refuse a reference that nothing would ask."""
        RowsConfig.__post_init__(self)
        if self.reference_path and not self.preference.uses_reference:
            raise ConfigError(
                f"reference_path is set, but the loss {self.preference.loss!r} uses no reference; remove it"
            )


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(RowsConfig):
    """Training a reward model on preference pairs (Bradley-Terry)."""

    kind: Literal["reward_model"] = "reward_model"
    """Selects the trainer."""
    use_margins: bool = False
    """Ask for a difference of scores of at least the column `margin` of each row."""
    center_coef: float = 0.0
    """Weight of (sum of the two scores)^2, which keeps scores around 0; 0.01 is usual where scores are used as rewards,
    0 leaves their level open."""

    dataset_kind: ClassVar[DatasetKind] = "preference"
    """What the rows must be made for."""

    def __post_init__(self) -> None:
        """Refuse a weight that would drive scores apart."""
        RowsConfig.__post_init__(self)
        if not (math.isfinite(self.center_coef) and self.center_coef >= 0):
            raise ConfigError(f"center_coef is {self.center_coef}, expected a finite number >= 0")
