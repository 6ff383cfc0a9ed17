r"""Find the answer in a text, so that samples can vote, and count the votes.

    auto      the last \boxed{...}; else what follows the last "####"; else the last number; else the whole text
    boxed     the content of the last \boxed{...}
    number    the last number, also in a box or after "####", as a plain decimal: "$1,080.00" votes with "1080"
    text      the whole text without surrounding white space
    a path    "package.module:function", a function from text to text or None

An answer only says which samples agree. Whether it is right is the reward's business.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError, load
from areal.reward.boxed import last_boxed
from areal.reward.gsm8k import final_number, first_number
from areal.trainer.evaluation_config import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


def majority_at_k(answers: Sequence[str | None], rewards: Sequence[float], k: int) -> float:
    """Return the expected reward of the answer that most of `k` samples give, drawn from these without replacement.

    Exact: every draw is counted, none is simulated. Answers with equally many votes share the vote. A sample without
    answer (None) abstains; where all `k` abstain, the value is their mean reward. The reward of an answer is the mean
    over all samples that gave it.

    Raises ValueError unless there are as many rewards as answers and 1 <= k <= their number.
    """
    if len(answers) != len(rewards) or not 1 <= k <= len(answers):
        raise ValueError(f"maj@{k} of {len(answers)} answers with {len(rewards)} rewards: expected 1 <= k <= samples")
    votes: dict[str, list[float]] = {}
    abstained: list[float] = []
    for answer, reward in zip(answers, rewards, strict=True):
        (abstained if answer is None else votes.setdefault(answer, [])).append(reward)
    counts = sorted(map(len, votes.values()))
    total = math.comb(len(answers), k)
    value = 0.0
    for group in votes.values():
        others = list(counts)
        others.remove(len(group))
        value += _wins(len(group), tuple(others), len(abstained), k) / total * (sum(group) / len(group))
    if len(abstained) >= k:
        value += math.comb(len(abstained), k) / total * (sum(abstained) / len(abstained))
    return value


@lru_cache(maxsize=65536)
def _wins(own: int, others: tuple[int, ...], abstained: int, k: int) -> float:
    """Count the draws of `k` in which an answer with `own` votes wins, a tie of m answers as 1/m of a draw."""
    found = 0.0
    for drawn in range(1, min(own, k) + 1):
        rest = k - drawn
        # ways[x][t]: draws of x votes for other answers, none with more than `drawn` and t with as many.
        ways: list[dict[int, int]] = [{} for _ in range(rest + 1)]
        ways[0][0] = 1
        for count in others:
            following: list[dict[int, int]] = [{} for _ in range(rest + 1)]
            for taken, by_ties in enumerate(ways):
                for votes in range(min(count, drawn, rest - taken) + 1):
                    chosen = math.comb(count, votes)
                    target = following[taken + votes]
                    for ties, number in by_ties.items():
                        now = ties + (votes == drawn)
                        target[now] = target.get(now, 0) + number * chosen
            ways = following
        draws = sum(
            number * math.comb(abstained, rest - taken) / (ties + 1)
            for taken, by_ties in enumerate(ways)
            for ties, number in by_ties.items()
        )
        found += math.comb(own, drawn) * draws
    return found


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
