"""Finds the numbers of prose, and whether two languages name the same ones.

"1,000" is 1000, "10k" is 1 万, "March 5" is 3 月 5 日, "two threads" are 2 个线程: a number is missing only when the
other side names it in no way that is looked for here.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Final

_NUMBER: Final = re.compile(
    r"(?P<digits>\d+(?:[.,]\d+)*)\s?(?P<unit>[kKMB](?![A-Za-z])|thousand|million|billion|万|亿|千|百)?"
)
_GROUPED: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_UNITS: Final = {
    "k": 10**3,
    "thousand": 10**3,
    "m": 10**6,
    "million": 10**6,
    "b": 10**9,
    "billion": 10**9,
    "百": 100,
    "千": 1000,
    "万": 10**4,
    "亿": 10**8,
}
_DIGITS: Final = "零一二三四五六七八九"
_WORDS: Final = {
    0: "zero no none",
    1: "one once first single a an",
    2: "two twice second both pair double half",
    3: "three third triple",
    4: "four fourth quarter",
    5: "five fifth",
    6: "six sixth",
    7: "seven seventh",
    8: "eight eighth",
    9: "nine ninth",
    10: "ten tenth",
    11: "eleven",
    12: "twelve dozen",
    20: "twenty",
    30: "thirty",
    40: "forty",
    50: "fifty half",
    60: "sixty",
    100: "hundred",
    1000: "thousand",
}
_MONTHS: Final = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]

Number = frozenset[str]
"""One number in all the ways it may be read: {"10", "10000"} for "10k"."""


def numbers(text: str) -> list[Number]:
    """Return numbers written in digits, in order."""
    found = []
    for match in _NUMBER.finditer(unicodedata.normalize("NFKC", text)):
        digits = match["digits"]
        parts = [digits.replace(",", "")] if _GROUPED.fullmatch(digits) else digits.split(",")
        for position, part in enumerate(parts):
            unit = match["unit"] if position == len(parts) - 1 else None
            found.append(_readings(part, unit))
    return found


def missing(ours: str, theirs: str) -> list[str]:
    """Return numbers in digits of `ours` that `theirs` names in no way, each once, in order."""
    known = {reading for number in numbers(theirs) for reading in number}
    lost = []
    for number in numbers(ours):
        if not number & known and not any(_is_spelt(reading, theirs) for reading in number):
            lost.append(min(number, key=len))
    return list(dict.fromkeys(lost))


def _readings(digits: str, unit: str | None) -> Number:
    plain = digits.lstrip("0") or "0" if digits.isdigit() else digits
    if unit is None:
        return frozenset({plain})
    try:
        whole = Decimal(plain) * _UNITS[unit.lower()]
    except InvalidOperation:  # 1.2.3k: a version, and no number
        return frozenset({plain})
    return frozenset({plain, f"{whole.normalize():f}"})


def _is_spelt(reading: str, text: str) -> bool:
    if not reading.isdigit() or int(reading) > 9999:
        return False
    value, lower = int(reading), text.lower()
    words = _WORDS.get(value, "").split() + [
        short for month in _MONTHS[value - 1 : value] for short in (month, month[:3])
    ]
    if any(re.search(rf"\b{word}(?:s|th)?\b", lower) for word in words):
        return True
    return any(form in text for form in _chinese(value))


def _chinese(value: int) -> list[str]:
    """Spell a number up to 9999: 12 -> 十二; 2 also 两."""
    if value < 10:
        return [_DIGITS[value], *(["两", "双", "半"] if value == 2 else [])]
    if value >= 100:
        whole, name = (value // 1000, "千") if value % 1000 == 0 else (value // 100, "百")
        return [f"{_DIGITS[whole]}{name}"] if value % 100 == 0 and whole < 10 else []
    tens, ones = divmod(value, 10)
    return [f"{_DIGITS[tens] if tens > 1 else ''}十{_DIGITS[ones] if ones else ''}"]
