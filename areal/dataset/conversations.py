"""Conversations as rows of supervised fine-tuning that learn every assistant turn, with a mask that is exact.

    conversation_rows(messages, tokenizer)                    # one row, all assistant turns learned
    conversation_rows(messages, tokenizer, turns="each")      # one row per assistant turn
    conversation_rows(messages, tokenizer, tools=[...])       # JSON schemas for the chat template

Which tokens are the assistant's is known in three cases, and refused in all others:

- The conversation is one answer at its end: prompt and answer are encoded apart, as RL continues a prompt.
- The chat template marks them with `{% generation %}`.
- Prefixes are rendered exactly: the rendering of the turns before an answer, and of those up to its end, are both the
  beginning of the whole rendering, token by token. What lies between is the answer. Templates that write earlier turns
  differently once others follow (some drop their reasoning) fail this; turns="each" is exact for them as well, since
  every answer is then learned where it is the last, as it was sampled.

An answer ends with the control token that ends its turn; line breaks that a template writes after it are not sampled,
so they are not learned.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import ConfigError, DataError
from areal.dataset.encoding import control_token_problem, encode_answer, encode_prompt, has_chat_template, render_chat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Turns = Literal["all", "each", "last"]

TURNS: Final[tuple[Turns, ...]] = ("all", "each", "last")
"""all: one row that learns every assistant turn; each: a row per assistant turn, which learns that one; last: one row
that learns the last."""

_MARKERS: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SHOWN_TOKENS: Final = 8


def conversation_problem(messages: Any) -> str:
    """Return why a list of messages cannot be learned; empty when it can.

    It ends with an assistant turn after at least one other turn. Every assistant turn has text or tool calls, every
    other turn has text.
    """
    if not isinstance(messages, list) or len(messages) < 2:
        return "expected a chat of at least two turns that ends with an assistant turn"
    for index, message in enumerate(messages):
        if problem := _turn_problem(message):
            return f"turn {index}: {problem}"
    if messages[-1]["role"] != "assistant":
        return f"ends with a turn of {messages[-1]['role']!r}, expected an assistant turn to learn"
    return ""


def _turn_problem(message: Any) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return f"{message!r:.60} is not a mapping with role and content"
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str):
        return f"content is {type(content).__name__}, expected a string"
    if calls and (message["role"] != "assistant" or not isinstance(calls, list)):
        return "only an assistant turn has tool_calls, and they are a list"
    if message["role"] == "assistant":
        return "" if calls or (content and content.strip()) else "the assistant turn is empty"
    return f"a turn of {message['role']!r} without content" if content is None else ""


def conversation_rows(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    *,
    turns: Turns = "all",
    tools: Sequence[Any] | None = None,
) -> list[dict[str, list[int]]]:
    """Return rows with `input_ids` and `loss_mask`, of messages without `conversation_problem`.

    turns: which assistant turns are learned (`TURNS`). tools: JSON schemas for the chat template.

    Raises DataError for control tokens in a text, and when it is not exact which tokens are the assistant's;
    ConfigError for a tokenizer without chat template.
    """
    if not has_chat_template(tokenizer):
        raise ConfigError(
            "conversations need a tokenizer with a chat template", fix="set one, or use prompt and answer"
        )
    for index, message in enumerate(messages):
        calls = json.dumps(message.get("tool_calls") or "", ensure_ascii=False, default=str)
        if problem := control_token_problem((message.get("content") or "") + calls, tokenizer):
            raise DataError(f"turn {index} {problem}")
    # A greeting answers nothing: it is only read.
    ends = [index + 1 for index, message in enumerate(messages) if index and message["role"] == "assistant"]
    if turns != "all":
        ends = ends if turns == "each" else ends[-1:]
        return [_last_turn(messages[:end], tokenizer, tools) for end in ends]
    if len(ends) == 1:
        return [_last_turn(messages, tokenizer, tools)]
    return [_all_turns(messages, tokenizer, tools)]


def _last_turn(messages: Sequence[Mapping[str, Any]], tokenizer: Any, tools: Sequence[Any] | None) -> dict[str, Any]:
    """Return the row that learns the last turn only, the others standing before it as they would in a prompt."""
    if tools or any(message.get("tool_calls") or message.get("reasoning_content") for message in messages):
        return _row(*_from_prefixes(messages, tokenizer, tools, learned=[len(messages) - 1]), tokenizer)
    prompt = encode_prompt([{**turn, "content": turn.get("content") or ""} for turn in messages[:-1]], tokenizer)
    answer = encode_answer(messages[-1]["content"], tokenizer)
    return {"input_ids": prompt + answer, "loss_mask": [0] * len(prompt) + [1] * len(answer)}


def _all_turns(messages: Sequence[Mapping[str, Any]], tokenizer: Any, tools: Sequence[Any] | None) -> dict[str, Any]:
    if _MARKERS.search(_template(tokenizer, tools)):
        return _row(*_from_markers(messages, tokenizer, tools), tokenizer)
    learned = [index for index, message in enumerate(messages) if index and message["role"] == "assistant"]
    return _row(*_from_prefixes(messages, tokenizer, tools, learned=learned), tokenizer)


def _from_markers(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, tools: Sequence[Any] | None
) -> tuple[list[int], list[int]]:
    rendered = render_chat(messages, tokenizer, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = list(rendered["input_ids"]), [int(value) for value in rendered["assistant_masks"]]
    runs = sum(1 for before, value in zip([0, *mask], mask, strict=False) if value and not before)
    # Neighbouring assistant turns may be one run.
    expected = sum(
        message["role"] == "assistant" and before["role"] != "assistant" for before, message in pairwise(messages)
    )
    if runs < expected:
        raise DataError(
            f"the chat template marks {runs} of {expected} assistant turns with {{% generation %}}, so the others "
            f"would not be learned",
            fix='mend the template, or set options.turns to "each" or "last"',
        )
    return ids, mask


def _from_prefixes(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, tools: Sequence[Any] | None, *, learned: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Find the turns `learned` in the rendering of all messages by rendering what comes before each, and up to its
    end."""
    whole = _render(messages, tokenizer, tools, prompt=False)
    mask = [0] * len(whole)
    for index in learned:
        begin = _prefix(whole, _render(messages[:index], tokenizer, tools, prompt=True), index, "before", tokenizer)
        end = _prefix(whole, _render(messages[: index + 1], tokenizer, tools, prompt=False), index, "up to", tokenizer)
        if end <= begin:
            raise DataError(f"the chat template renders nothing of assistant turn {index}", fix=_FIX)
        end = begin + _without_tail(whole[begin:end], tokenizer)
        mask[begin:end] = [1] * (end - begin)
    return whole, mask


_FIX: Final = (
    'set options.turns to "each" (a row per assistant turn) or "last", or give the tokenizer a chat template that '
    "marks answers with {% generation %}"
)


def _prefix(whole: list[int], part: list[int], turn: int, what: str, tokenizer: Any) -> int:
    """Return the length of `part`, which must be the beginning of `whole`."""
    if whole[: len(part)] == part:
        return len(part)
    same = next((i for i, (a, b) in enumerate(zip(whole, part, strict=False)) if a != b), min(len(whole), len(part)))
    alone, within = (tokenizer.decode(ids[same : same + _SHOWN_TOKENS]) for ids in (part, whole))
    raise DataError(
        f"the chat template writes the turns {what} assistant turn {turn} differently in the whole conversation (from "
        f"token {same}: {within!r} instead of {alone!r}), so it is not exact which tokens are the assistant's",
        fix=_FIX,
    )


def _render(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, tools: Sequence[Any] | None, *, prompt: bool
) -> list[int]:
    return list(render_chat(messages, tokenizer, tools=tools, add_generation_prompt=prompt, return_dict=False))


def _without_tail(ids: list[int], tokenizer: Any) -> int:
    """Return the length of an answer without what a template writes after the control token that ends it."""
    control = {*tokenizer.all_special_ids, tokenizer.eos_token_id}
    last = next((i for i in reversed(range(len(ids))) if ids[i] in control), None)
    if last is None or tokenizer.decode(ids[last + 1 :]).strip():
        return len(ids)
    return last + 1


def _row(ids: list[int], mask: list[int], tokenizer: Any) -> dict[str, list[int]]:
    """Return the row up to the last learned token, which ends the last answer."""
    length = len(mask) - mask[::-1].index(1)
    ids, mask = ids[:length], mask[:length]
    if ids[-1] not in {*tokenizer.all_special_ids, tokenizer.eos_token_id} and tokenizer.eos_token_id is not None:
        # A template without a mark of the end: the model would never learn to stop.
        ids, mask = [*ids, tokenizer.eos_token_id], [*mask, 1]
    return {"input_ids": ids, "loss_mask": mask}


def _template(tokenizer: Any, tools: Sequence[Any] | None) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        name = "tool_use" if tools and "tool_use" in template else "default"
        template = template.get(name, "")
    return str(template)
