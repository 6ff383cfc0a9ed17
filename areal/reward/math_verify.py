r"""Mathematical equality through the math-verify library: fractions, LaTeX, sets and expressions.

    completion "\boxed{\frac{1}{2}}", answer "0.5"      -> 1.0
    completion "The answer is 1/2", answer "0.5"        -> 1.0
    completion "\boxed{}", answer "0.5"                 -> 0.0
    completion "9^{9^{9}}", answer "0.5"                -> 0.0, without evaluating it
    answer that is not mathematics                      -> ValueError (the row is at fault)

The library's own time limit uses signals, which work in the main thread only; it is off, and the worker process that
every reward runs in is killed at its limit instead. So that a model cannot turn wrong answers into timeouts, texts
whose evaluation is known to explode (towers of powers, huge factorials, sums) score 0.0 beforehand.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from areal.reward.boxed import last_boxed

_WINDOW: Final = 1000
"""Characters at the end of a completion without a box that are searched for an answer; also the longest box read."""
_EXPLOSIVE: Final = re.compile(
    r"(?:\^|\*\*)[\s{(]*[-+]?\d{4,}"  # exponent of four digits or more
    r"|(?:\^|\*\*)[\s{(]*[^\s^*]{1,20}(?:\^|\*\*)"  # tower of powers
    r"|\d{3,}[\s})]*!|!\s*!"  # huge or repeated factorial
    r"|\\(?:[dt]?binom|sum|prod|int|iint|oint|lim)\b"  # evaluated by brute force
    r"|\d{400,}"
)


def math_verify_reward(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
) -> float:
    """1.0 when the completion's answer equals `data["answer"]` mathematically, else 0.0.

    The answer is the last \\boxed{...}, else what the library finds in the last 1000 characters. Raises ValueError
    when the row's answer cannot be parsed.
    """
    from math_verify import parse, verify

    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they warn that the library's time limit is off
    answer = str(data.get("answer") or "")
    gold = parse(f"\\boxed{{{answer}}}", parsing_timeout=None, raise_on_error=True) if answer.strip() else []
    if not gold:
        raise ValueError(f"the row's answer is {data.get('answer')!r}, expected something that parses as mathematics")
    region = answer_region(completions)
    if region is None or _EXPLOSIVE.search(region):
        return 0.0
    try:
        found = parse(region, parsing_timeout=None, raise_on_error=True)
        return float(verify(gold, found, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    # The gold answer has just been through the same code, so whatever the library raises now is about the model's text.
    except Exception:  # noqa: BLE001 - a third-party parser on arbitrary text
        return 0.0


def answer_region(completion: str) -> str | None:
    """Return the part of a completion to parse; None when the last box is empty, never closed or absurdly long."""
    boxed = last_boxed(completion)
    if boxed is None:
        return completion[-_WINDOW:]
    return f"\\boxed{{{boxed}}}" if boxed.strip() and len(boxed) <= _WINDOW else None
