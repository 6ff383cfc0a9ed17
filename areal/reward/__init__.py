"""Reward functions, and the wrapper that runs them in worker processes.

Importing this package imports neither: workers start by importing it, and must not load the parent's side of the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal.reward.isolation import AsyncRewardWrapper

__all__ = ["AsyncRewardWrapper"]


def __getattr__(name: str) -> Any:
    """`areal.reward.AsyncRewardWrapper`, on first use."""
    if name == "AsyncRewardWrapper":
        from areal.reward.isolation import AsyncRewardWrapper

        return AsyncRewardWrapper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
