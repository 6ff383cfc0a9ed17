"""The reward table: one line per reward function, sorted. User code needs no line here: any importable path works as
a name.
"""

from __future__ import annotations

from typing import Final

REWARDS: Final[dict[str, str]] = {
    "clevr_count": "areal.reward.clevr_count:clevr_count_reward",
    "code": "areal.reward.code:CodeReward",
    "exact": "areal.reward.exact:exact_reward",
    "format": "areal.reward.format:FormatReward",
    "geometry3k": "areal.reward.geometry3k:geometry3k_reward",
    "gsm8k": "areal.reward.gsm8k:gsm8k_reward",
    "ifeval": "areal.reward.ifeval:IFEvalReward",
    "judge": "areal.reward.judge:JudgeReward",
    "length": "areal.reward.length:LengthReward",
    "math_verify": "areal.reward.math_verify:math_verify_reward",
    "unscored": "areal.reward.unscored:unscored_reward",
}

IMMEDIATE: Final = frozenset({"exact", "gsm8k"})
"""Rewards of ours that are asked where they are needed, without a process: their time is linear in the length of a
completion, whatever it holds; they run nothing of it, and keep nothing."""
