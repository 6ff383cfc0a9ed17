"""CLEVR counting: the last number in square brackets is the answer.

    completion "there are [3]", answer "3"       -> 1.0   ([03] and [3.0] are 3 as well)
    completion "[1][2][3]", answer "3"           -> 1.0, or 0.0 when `strict` asks for exactly one
    completion "3", answer "3"                   -> 0.0, there are no brackets
    answer that is not a whole number            -> ValueError, the row is at fault

The answer of a row may have brackets itself.
"""

from __future__ import annotations

import re
from typing import Any, Final

_BRACKETS: Final = re.compile(r"\[\s*([+-]?\d{1,12})(?:\.0{1,12})?\s*\]", re.ASCII)
_WINDOW: Final = 4096
"""Characters at the end of a completion that are searched, so that a long one costs no time."""


def clevr_count_reward(
    prompt: str,
    completions: str,
    prompt_ids: list[int],
    completion_ids: list[int],
    *,
    strict: bool = False,
    **data: Any,
) -> float:
    """1.0 when the last whole number in square brackets is the row's answer, else 0.0.

    strict: score 0.0 unless there is exactly one. Raises ValueError when the row's answer is not a whole number.
    """
    answer = str(data.get("answer")).strip()
    expected = _BRACKETS.fullmatch(answer if answer.startswith("[") else f"[{answer}]")
    if expected is None:
        raise ValueError(f"the row's answer is {data.get('answer')!r}, expected a text with a whole number")
    found = _BRACKETS.findall(completions[-_WINDOW:])
    if not found or (strict and len(found) != 1):
        return 0.0
    return float(int(found[-1]) == int(expected[1]))
