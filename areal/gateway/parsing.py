"""Read what was sampled: reasoning, text and tool calls, as the canonical turn that goes to the client.

Calls are in the format of Hermes and Qwen, any number of them:

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "8*9"}}
    </tool_call>

A call that is broken is text, and so is everything else in that answer: the model's mistake, which it may learn from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.gateway.conversation import FunctionCall, Turn, cleaned_value, refuse_constant

if TYPE_CHECKING:
    from collections.abc import Callable

CALL_START: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
THINK_START: Final = "<think>"
THINK_END: Final = "</think>"
_FIELDS: Final = {"name", "arguments"}


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What an answer says."""

    turn: Turn
    broken_call: bool = False
    """Whether it has a call that cannot be read, and is returned as text for that."""


def read_answer(text: str, *, in_reasoning: bool, clean: Callable[[str], str], new_id: Callable[[], str]) -> ReadAnswer:
    """Read the text of an answer, without the token that ended it.

    in_reasoning: the prompt ended inside of reasoning, so that the answer begins there. clean: takes control tokens
    out. new_id: gives the id of each call.
    """
    reasoning, rest = _split_reasoning(text, in_reasoning=in_reasoning)
    if CALL_START not in rest and CALL_END not in rest:
        return ReadAnswer(Turn("assistant", clean(rest), clean(reasoning)))
    try:
        said, calls = _split_calls(rest, clean, new_id)
    except ValueError:
        return ReadAnswer(Turn("assistant", clean(rest), clean(reasoning)), broken_call=True)
    return ReadAnswer(Turn("assistant", clean(said), clean(reasoning), tuple(calls)))


def _split_reasoning(text: str, *, in_reasoning: bool) -> tuple[str, str]:
    if not in_reasoning:
        head, start, body = text.partition(THINK_START)
        if not start or head.strip():
            return "", text
        text = body
    reasoning, end, rest = text.partition(THINK_END)
    if not end:
        return reasoning.strip("\n"), ""  # cut while it was thinking
    return reasoning.strip("\n"), rest.lstrip("\n")


def _split_calls(text: str, clean: Callable[[str], str], new_id: Callable[[], str]) -> tuple[str, list[FunctionCall]]:
    """Return the text around the calls, and them. Raises ValueError for a call that cannot be read."""
    said: list[str] = []
    calls: list[FunctionCall] = []
    rest = text
    while CALL_START in rest:
        before, _, rest = rest.partition(CALL_START)
        body, closed, rest = rest.partition(CALL_END)
        if not closed or CALL_END in before:
            raise ValueError("a call is not closed, or was not opened")
        said.append(before)
        calls.append(_read_call(body, clean, new_id))
    if CALL_END in rest:
        raise ValueError("a call was not opened")
    said.append(rest)
    return "\n".join(part for part in (part.strip() for part in said) if part), calls


def _read_call(body: str, clean: Callable[[str], str], new_id: Callable[[], str]) -> FunctionCall:
    try:
        found = json.loads(body, object_pairs_hook=_distinct, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError("a call is too deep") from error
    if not isinstance(found, dict) or set(found) != _FIELDS:
        raise ValueError('a call is an object with exactly "name" and "arguments"')
    name, arguments = found["name"], found["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError('"name" must be a string and "arguments" an object')
    return FunctionCall(clean(name), cleaned_value(arguments, clean), new_id())


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a call has a key twice")
    return found
