r"""Format: whether a completion is written as agreed, by tags in order or by a regular expression. Not what it says.

tags: [think, answer]

    "<think>6*7</think> <answer>42</answer>"                       -> 1.0
    "<answer>42</answer> <think>6*7</think>"                       -> 0.0, the order is wrong
    "<think>6*7</think> <answer>42</answer> <answer>43</answer>"   -> 0.0, twice; 0.5 with scoring: fraction
    "Well: <think>6*7</think> <answer>42</answer>"                 -> 0.0 with nothing_else: true, else 1.0

pattern: "(?:.*\n)*ANSWER: \\d+"                                   -> 1.0 when it matches the whole text, stripped

It follows the format reward of DeepSeek-R1 (2025, arXiv:2501.12948, section 2.2.2). A model that learns a format only
writes it: weigh it below the reward for what is right. A pattern that backtracks without end makes the reward time out,
which is a fault and no score.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCORINGS: Final = ("all", "fraction")
_TAG: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


class FormatReward:
    """Scores the form of a completion.

    tags: names of tags that must each be opened and closed exactly once, one after the other, with something inside.
    opened: the prompt ends with the first tag already opened, as some chat templates do, so it is not repeated.
    nothing_else: only blanks stand outside tags.
    scoring: `all` gives 1.0 or 0.0; `fraction` gives the share of tags that are there exactly once, with something
        inside and in order.
    pattern: a regular expression in place of tags; "." matches line breaks, too.
    """

    def __init__(
        self,
        *,
        tags: Sequence[str] = (),
        opened: bool = False,
        nothing_else: bool = False,
        scoring: str = "all",
        pattern: str = "",
    ) -> None:
        if bool(tags) is bool(pattern):
            raise ConfigError(f"reward 'format': tags is {list(tags)!r} and pattern {pattern!r}, expected one of them")
        wrong = [tag for tag in tags if _TAG.fullmatch(tag) is None]
        if wrong or len(set(tags)) < len(tags):
            raise ConfigError(f"reward 'format': tags is {list(tags)!r}, expected different names without brackets")
        if scoring not in _SCORINGS:
            raise ConfigError(f"reward 'format': scoring is {scoring!r}, expected one of {', '.join(_SCORINGS)}")
        try:
            self._pattern = re.compile(pattern, re.DOTALL) if pattern else None
        except re.error as error:
            raise ConfigError(f"reward 'format': pattern {pattern!r} is not a regular expression: {error}") from error
        self._tags, self._opened = list(tags), opened
        self._nothing_else, self._fraction = nothing_else, scoring == "fraction"

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
    ) -> float:
        """Return the score of one completion, from 0.0 to 1.0."""
        text = completions.strip()
        if self._pattern is not None:
            return float(self._pattern.fullmatch(text) is not None)
        if self._opened:
            text = f"<{self._tags[0]}>{text}"
        position, right, outside = 0, 0, []
        for tag in self._tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start, end = text.find(opening), text.find(closing)
            once = text.count(opening) == 1 and text.count(closing) == 1
            if once and position <= start < end and text[start + len(opening) : end].strip():
                right += 1
                outside.append(text[position:start])
                position = end + len(closing)
        outside.append(text[position:])
        if self._nothing_else and "".join(outside).strip():
            return 0.0
        share = right / len(self._tags)
        return share if self._fraction else float(share == 1.0)
