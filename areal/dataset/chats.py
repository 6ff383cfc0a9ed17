"""Chats as data sets hold them: OpenAI messages and ShareGPT conversations, checked, brought into one form, and divided
into a prompt and the assistant's last turn.

    [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
    [{"from": "human", "value": "6*7?"}, {"from": "gpt", "value": "42"}]

Knows nothing about tokens: `areal.dataset.encoding` renders a chat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.dataset.schema import complain, messages_problem, missing_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.dataset.reading import RawRows

Chat = list[dict[str, str]]

SPEAKERS: Final[dict[str, str]] = {
    "assistant": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "function": "tool",
    "gpt": "assistant",
    "human": "user",
    "model": "assistant",
    "observation": "tool",
    "system": "system",
    "tool": "tool",
    "user": "user",
}
"""Who speaks in a ShareGPT conversation (`from`), as the role that chat templates know."""


def as_chat(turns: list[dict[str, Any]]) -> Chat:
    """Return turns with `role` and `content`, nothing else; `turns` passed `chat_problem`."""
    return [
        {"role": turn["role"], "content": turn["content"]}
        if "role" in turn
        else {"role": SPEAKERS[turn["from"]], "content": turn["value"]}
        for turn in turns
    ]


def chat_problem(turns: Any, *, answered: bool) -> str:
    """Return why `turns` is not a chat in either form; empty when it is.

    answered: it must end with an assistant turn that is not empty, after at least one other turn; otherwise it must
    end with a turn that a model can answer.
    """
    if not isinstance(turns, list) or not turns:
        return f"expected a list of turns, found {type(turns).__name__ if turns else 'an empty one'}"
    for index, turn in enumerate(turns):
        problem = _turn_problem(turn)
        if problem:
            return f"turn {index}: {problem}"
    chat = as_chat(turns)
    if not answered:
        return messages_problem(chat)
    if chat[-1]["role"] != "assistant":
        return f"ends with a turn of {chat[-1]['role']!r}, expected the assistant's"
    if not chat[-1]["content"].strip():
        return "the last assistant turn is empty"
    return messages_problem(chat[:-1]) if len(chat) > 1 else "has no turn before the assistant's"


def split_last_turn(turns: list[dict[str, Any]]) -> tuple[Chat, str]:
    """Return (all turns but the last, text of the last) of a chat that passed `chat_problem(answered=True)`."""
    chat = as_chat(turns)
    return chat[:-1], chat[-1]["content"]


def require_chats(raw: RawRows, *columns: str, answered: bool = True) -> None:
    """Raise DataError with row numbers unless every row has a chat in each of `columns` (see `chat_problem`)."""
    for column in columns:
        problems = (column_problem(row, column, answered=answered) for row in raw.rows)
        complain(raw.source, ((raw.where(index), problem) for index, problem in enumerate(problems)))


def column_problem(row: Mapping[str, Any], column: str, *, answered: bool) -> str:
    """Return why a row has no chat in a column (see `chat_problem`); empty when it has."""
    if column not in row:
        return missing_column(column, row)
    problem = chat_problem(row[column], answered=answered)
    return f"{column}: {problem}" if problem else ""


def is_turn(value: Any) -> bool:
    """Return whether a value has the fields of a turn, in either form."""
    return isinstance(value, dict) and ({"role", "content"} <= set(value) or {"from", "value"} <= set(value))


def _turn_problem(turn: Any) -> str:
    if not is_turn(turn):
        return f"{turn!r:.60} has neither role and content nor from and value"
    speaker, text = (turn["role"], turn["content"]) if "role" in turn else (turn["from"], turn["value"])
    if not isinstance(speaker, str) or not isinstance(text, str):
        return "speaker and text must be strings"
    if "role" not in turn and speaker not in SPEAKERS:
        return f"unknown speaker {speaker!r}, expected one of {', '.join(SPEAKERS)}"
    return ""
