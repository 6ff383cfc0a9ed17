"""The reward table, and that its entries run behind the wrapper."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from areal.api import FaultError, FaultKind, load
from areal.reward import AsyncRewardWrapper
from areal.reward.registry import REWARDS


def test_the_table_is_sorted_and_resolves():
    assert list(REWARDS) == sorted(REWARDS)
    assert all(callable(load("reward", name, REWARDS)) for name in REWARDS)


# Rewards for numbers; those of other answers have a test of their own that calls a worker.
@pytest.mark.parametrize("name", ["exact", "gsm8k", "math_verify"])
def test_rewards_for_numbers_score_right_wrong_and_unusable_rows_in_a_worker(name):
    async def run():
        reward = AsyncRewardWrapper(name, timeout_seconds=60)
        try:
            right = await reward("8*9=", "72", [1], [2], answer="72", problem=3)
            wrong = await reward("8*9=", "71", [1], [2], answer="72", problem=3)
            with pytest.raises(FaultError) as caught:
                await reward("8*9=", "72", [1], [2], problem=3)
            return right, wrong, caught.value.kind
        finally:
            reward.close()

    assert asyncio.run(run()) == (1.0, 0.0, FaultKind.REWARD_RAISED)


def test_importing_rewards_loads_no_heavy_library():
    code = "import sys, areal.reward, areal.reward.gsm8k, areal.reward.math_verify; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "'areal.reward.gsm8k'" in loaded
    assert not any(
        f"'{name}'" in loaded for name in ("torch", "transformers", "datasets", "sympy", "areal.reward.isolation")
    )
