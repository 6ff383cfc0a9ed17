"""The reward table: one line per reward function, sorted. User code needs no line here: any importable path works as
a name.
"""

from __future__ import annotations

from typing import Final

REWARDS: Final[dict[str, str]] = {
    "exact": "areal.reward.exact:exact_reward",
    "gsm8k": "areal.reward.gsm8k:gsm8k_reward",
    "math_verify": "areal.reward.math_verify:math_verify_reward",
}
