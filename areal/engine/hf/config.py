"""Configuration of adapters."""

from __future__ import annotations

from dataclasses import dataclass, field

from areal.api import Config, ConfigError


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """Low-rank adapters in place of training the model itself. Needs the package peft."""

    rank: int = 16
    """Rank of the update of each layer."""
    alpha: int = 32
    """The update is scaled by alpha / rank."""
    targets: list[str] = field(default_factory=list)
    """Last names of the linear layers that get an adapter, e.g. [q_proj, v_proj]; empty: all but heads and routers."""
    rank_stabilized: bool = False
    """Scale by alpha / sqrt(rank) instead, which suits large ranks (arXiv 2312.03732)."""
    seed: int = 0
    """Seed of the adapters' random half; the other half starts at 0, so they change nothing at first."""

    def __post_init__(self) -> None:
        """Refuse adapters without size."""
        if self.rank < 1 or self.alpha < 1:
            raise ConfigError(f"lora.rank is {self.rank} and lora.alpha {self.alpha}, expected at least 1")
