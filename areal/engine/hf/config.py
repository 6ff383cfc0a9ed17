"""Configuration of adapters."""

from __future__ import annotations

from dataclasses import dataclass, field

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """Low-rank adapters in place of training the model itself. Needs the package peft."""

    rank: int = number(16, at_least=1)
    """Rank of the update of each layer."""
    alpha: int = number(32, at_least=1)
    """The update is scaled by alpha / rank."""
    targets: list[str] = field(default_factory=list)
    """Last names of the linear layers that get an adapter, e.g. [q_proj, v_proj]; empty: all but heads and routers."""
    rank_stabilized: bool = False
    """Scale by alpha / sqrt(rank) instead, which suits large ranks (arXiv 2312.03732)."""
    seed: int = 0
    """Seed of the adapters' random half; the other half starts at 0, so they change nothing at first."""
