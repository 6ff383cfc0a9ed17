"""Exact match: the completion is the answer, character for character.

completion "72", answer "72"     -> 1.0
completion " 72", answer "72"    -> 0.0
completion "72 ", answer "72"    -> 0.0
answer missing or empty          -> ValueError (the row is at fault, not the model)
"""

from __future__ import annotations

from typing import Any


def exact_reward(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any) -> float:
    """1.0 when `completions` equals `data["answer"]` exactly, else 0.0.

    Raises ValueError when the row has no answer to compare with.
    """
    answer = data.get("answer")
    if answer is None or str(answer) == "":
        raise ValueError(
            f"the row has no answer to compare with; its columns are {', '.join(sorted(data)) or '(none)'}"
        )
    return float(completions == str(answer))
