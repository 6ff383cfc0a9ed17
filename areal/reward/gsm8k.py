r"""GSM8K: the final number of the completion equals the answer numerically. See `areal.dataset.gsm8k` for the rows.

Where the final number is looked for, first that occurs:

    1. the last "\boxed{...}"             "so \boxed{1,080}."       -> 1080
    2. the text after the last "####"     "... #### $72.00"         -> 72
    3. the last number of the text        "She has 72 clips."       -> 72    (only when `strict` is false, the default)

Commas between thousands, a dollar sign, a percent sign, units after the number and trailing zeros do not matter;
fractions and expressions are not evaluated (`areal.reward.math_verify` does). A wrong, missing or unreadable number
scores 0.0.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from areal.reward.boxed import last_boxed

_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|[-+]?\.\d+", re.ASCII)
_MINUS_SIGNS: Final = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"})
_MARK: Final = "####"
_MAX_DIGITS: Final = 64
"""Longer digit strings are no answer, and must not cost time."""
_WINDOW: Final = 4096
"""Characters at the end of a completion that are searched for the last number."""


def gsm8k_reward(
    prompt: str,
    completions: str,
    prompt_ids: list[int],
    completion_ids: list[int],
    *,
    strict: bool = False,
    **data: Any,
) -> float:
    """1.0 when the final number of `completions` equals `data["answer"]`, else 0.0.

    strict: accept only a number in a box or after "####". Raises ValueError when the row's answer holds no number.
    """
    expected = last_number(str(data.get("answer", "")).rpartition(_MARK)[2])
    if expected is None:
        raise ValueError(f"the row's answer is {data.get('answer')!r}, expected a text with a number")
    found = final_number(completions, strict=strict)
    return float(found is not None and found == expected)


def final_number(text: str, *, strict: bool = False) -> Decimal | None:
    """Return the number a completion commits to (rules above); None when there is none."""
    boxed = last_boxed(text)
    if boxed is not None:
        return first_number(boxed)
    if _MARK in text:
        return first_number(text.rpartition(_MARK)[2])
    return None if strict else last_number(text[-_WINDOW:])


def first_number(text: str) -> Decimal | None:
    """Return the number a short text begins with, after an optional sign and currency, e.g. Decimal("1080") for "$1,080
    a year".
    """
    match = _NUMBER.search(_normalised(text[:_WINDOW]))
    return _value(match[0]) if match else None


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text."""
    matches = _NUMBER.findall(_normalised(text))
    return _value(matches[-1]) if matches else None


def _normalised(text: str) -> str:
    # "-$5" and "$-5" both read as -5; a hyphen inside "6*12-72" stays an operator because a digit precedes it.
    text = text.translate(_MINUS_SIGNS).replace("\\$", "").replace("$", "").replace("\\!", "").replace("{,}", ",")
    return re.sub(r"(?<=[\w)])-(?=\d)", "- ", text)


def _value(number: str) -> Decimal | None:
    return Decimal(number.replace(",", "")) if len(number) <= _MAX_DIGITS else None
