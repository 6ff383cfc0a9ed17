r"""Find the answer in a text, so that samples can vote.

    auto      the last \boxed{...}; else what follows the last "####"; else the last number; else the whole text
    boxed     the content of the last \boxed{...}
    number    the last number, also in a box or after "####", as a plain decimal: "$1,080.00" votes with "1080"
    text      the whole text without surrounding white space
    a path    "package.module:function", a function from text to text or None

An answer only says which samples agree. Whether it is right is the reward's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from areal.api import ConfigError, load
from areal.reward.boxed import last_boxed
from areal.reward.gsm8k import final_number, first_number
from areal.trainer.evaluation_config import RULES

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

_MARK: Final = "####"


def answer_rule(name: str) -> Callable[[str], str | None]:
    """Return the function that finds answers by the rule `name`. Raises RegistryError or ConfigError for others."""
    found = load("answer rule", name, RULES)
    if not callable(found):
        raise ConfigError(
            f"answer rule {name!r} is {type(found).__name__}, expected a function from text to text or None",
            fix=f"use one of {', '.join(RULES)}, or package.module:function",
        )
    rule: Callable[[str], str | None] = found
    return rule


def auto(completion: str) -> str | None:
    """Return the answer in the first of the places above that has one."""
    content = last_boxed(completion)
    if content is not None:
        return _short(content)
    if _MARK in completion:
        return _short(completion.rpartition(_MARK)[2])
    return _plain(final_number(completion)) or text(completion)


def boxed(completion: str) -> str | None:
    """Return the content of the last box."""
    content = last_boxed(completion)
    return None if content is None else _short(content)


def number(completion: str) -> str | None:
    """Return the number that the text ends with, or puts into a box."""
    return _plain(final_number(completion))


def text(completion: str) -> str | None:
    """Return the whole text."""
    return completion.strip() or None


def _short(content: str) -> str | None:
    """Numbers as plain decimals, where the text is one; else the text without white space."""
    squeezed = "".join(content.split())
    digits = squeezed.replace(",", "").replace("$", "").replace("\\", "").rstrip(".")
    is_number = digits.lstrip("+-").replace(".", "", 1).isdecimal()
    return (_plain(first_number(squeezed)) if is_number else squeezed) or None


def _plain(found: Decimal | None) -> str | None:
    if found is None:
        return None
    digits = f"{found:f}"
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return digits if digits not in ("-0", "") else "0"
