r"""Geometry3k: the last box of the completion equals the answer as mathematics.

    completion "\boxed{2\sqrt{221}}", answer "2 \sqrt { 221 }"  -> 1.0
    completion "\boxed{45^\circ}", answer "45"                  -> 1.0, degree signs and units do not count
    completion "\boxed{221}", answer "2 \sqrt { 221 }"          -> 0.0
    completion "the answer is 45", answer "45"                  -> 0.0, there is no box
    completion "\boxed{C}", answer "C"                          -> 1.0, a letter only where the answer is one
    answer that is not mathematics                              -> ValueError, the row is at fault

What is refused because it would take for ever: `areal.reward.math_verify`. Rows of ViRL39K have their answer in a box.
"""

from __future__ import annotations

import re
from typing import Any, Final

from areal.reward.boxed import last_boxed
from areal.reward.math_verify import math_verify_reward

_UNITS: Final = re.compile(
    r"\^\s*\{?\s*\\circ\s*\}?|\\degree|\N{DEGREE SIGN}"
    r"|\\(?:text|mathrm)\s*\{\s*(?:degrees?|units?|cm|mm|km|m|in|ft|yd|feet|inches|meters?)\s*(?:\^\s*\{?[23]\}?)?\s*\}"
)
_CHOICES: Final = frozenset("ABCDE")
_LONGEST: Final = 1000
"""Longer boxes are not answers."""


def geometry3k_reward(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
) -> float:
    """1.0 when the last box of `completions` equals the row's answer as mathematics, else 0.0.

    Raises ValueError when the row's answer cannot be parsed.
    """
    answer = str(data.get("answer") or "").strip()
    boxed = last_boxed(answer)
    expected = _bare(answer if boxed is None else boxed)
    found = last_boxed(completions)
    own = "" if found is None or len(found) > _LONGEST else _bare(found)
    if expected in _CHOICES:
        return float(own == expected)
    # An empty box is scored as well, so that a row at fault is found whatever the completion is.
    return math_verify_reward(prompt, f"\\boxed{{{own}}}", prompt_ids, completion_ids, answer=expected)


def _bare(answer: str) -> str:
    """Return an answer without degree signs and units."""
    return _UNITS.sub("", answer).strip()
