"""Turn conversations into rows for supervised fine-tuning, with an exact loss mask over the assistant turns.

    conversation_rows(messages, tokenizer)                    # one row, all assistant turns learned
    conversation_rows(messages, tokenizer, turns="each")      # one row per assistant turn
    conversation_rows(messages, tokenizer, tools=[...])       # JSON schemas for the chat template

The tokens of the assistant are known exactly in three cases; any other conversation is refused:

- The conversation is one answer at its end: prompt and answer are encoded apart, as RL continues a prompt.
- The chat template marks them with `{% generation %}`.
- Prefixes are rendered exactly: the rendering of the turns before an answer, and of those up to its end, are both the
  beginning of the whole rendering, token by token. What lies between is the answer. Templates that write earlier turns
  differently once others follow (some drop their reasoning) fail this; turns="each" is exact for them as well, since
  every answer is then learned where it is the last, as it was sampled.

Turns that are not the assistant's may have images, one for each "<image>" of their texts. Marks of a template know
nothing of images, so that such conversations are rendered by prefixes.

An answer ends with the control token that ends its turn; line breaks that a template writes after it are not sampled,
so they are not learned.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import ConfigError, DataError
from areal.dataset.encoding import (
    control_token_problem,
    encode_answer,
    encode_prompt,
    encode_text,
    has_chat_template,
    render_chat,
)
from areal.dataset.images import IMAGE_MARK, sft_image_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Turns = Literal["all", "each", "last"]

TURNS: Final[tuple[Turns, ...]] = ("all", "each", "last")
"""all: one row that learns every assistant turn; each: a row per assistant turn, which learns that one; last: one row
that learns the last."""

_MARKERS: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SHOWN_TOKENS: Final = 8
_IMAGE: Final = -1
"""Stands among token ids for an image until the row is complete."""


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
    images: Sequence[str] = (),
) -> list[dict[str, list[Any]]]:
    """Return rows with `input_ids` and `loss_mask`, of messages without `conversation_problem`.

    turns: which assistant turns are learned (`TURNS`). tools: JSON schemas for the chat template. images: base64 of
    files, in the order of their marks; rows then have `images` and `image_places` too, as `sft_image_row` gives them.

    Raises DataError for control tokens in a text, for another number of images than of marks, and when it is not exact
    which tokens are the assistant's; ConfigError for a tokenizer without chat template.
    """
    if not has_chat_template(tokenizer):
        raise ConfigError(
            "conversations need a tokenizer with a chat template", fix="set one, or use prompt and answer"
        )
    for index, message in enumerate(messages):
        calls = json.dumps(message.get("tool_calls") or "", ensure_ascii=False, default=str)
        content = message.get("content") or ""
        if images and message["role"] == "assistant" and IMAGE_MARK in content:
            raise DataError(
                f"turn {index} is the assistant's and has a mark {IMAGE_MARK}; no model answers with images"
            )
        text = content.replace(IMAGE_MARK, " ") if images else content
        if problem := control_token_problem(text + calls, tokenizer):
            raise DataError(f"turn {index} {problem}")
    if images and (found := _num_marks(messages)) != len(images):
        raise DataError(f"the conversation has {found} {IMAGE_MARK} marks for {len(images)} images, expected one each")
    # An assistant turn that opens the conversation answers nothing: it is context only.
    ends = [index + 1 for index, message in enumerate(messages) if index and message["role"] == "assistant"]
    if turns != "all":
        ends = ends if turns == "each" else ends[-1:]
        return [_last_turn(messages[:end], tokenizer, tools, images) for end in ends]
    if len(ends) == 1:
        return [_last_turn(messages, tokenizer, tools, images)]
    if not images and _MARKERS.search(_template(tokenizer, tools)):
        return [_row(*_from_markers(messages, tokenizer, tools), tokenizer)]
    learned = [end - 1 for end in ends]
    return [_row(*_from_prefixes(messages, tokenizer, tools, learned=learned, images=images), tokenizer, images)]


def _num_marks(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum((message.get("content") or "").count(IMAGE_MARK) for message in messages)


def _last_turn(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, tools: Sequence[Any] | None, images: Sequence[str]
) -> dict[str, Any]:
    """Return the row that learns the last turn only, the others standing before it as they would in a prompt."""
    if tools or any(message.get("tool_calls") or message.get("reasoning_content") for message in messages):
        learned = [len(messages) - 1]
        return _row(*_from_prefixes(messages, tokenizer, tools, learned=learned, images=images), tokenizer, images)
    turns = [{**turn, "content": turn.get("content") or ""} for turn in messages[:-1]]
    if images:
        return sft_image_row(turns, images[: _num_marks(turns)], messages[-1]["content"], tokenizer)
    prompt = encode_prompt(turns, tokenizer)
    answer = encode_answer(messages[-1]["content"], tokenizer)
    return {"input_ids": prompt + answer, "loss_mask": [0] * len(prompt) + [1] * len(answer)}


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
            fix='correct the template, or set options.turns to "each" or "last"',
        )
    return ids, mask


def _from_prefixes(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    tools: Sequence[Any] | None,
    *,
    learned: Sequence[int],
    images: Sequence[str],
) -> tuple[list[int], list[int]]:
    """Find the turns `learned` in the rendering of all messages by rendering what comes before each, and up to its
    end."""

    def render(num_turns: int, *, prompt: bool) -> list[int]:
        chosen = messages[:num_turns]
        options: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
        if not images:
            return list(render_chat(chosen, tokenizer, **options, return_dict=False))
        pieces = render_chat(chosen, tokenizer, **options, tokenize=False).split(IMAGE_MARK)
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            ids += [_IMAGE] * (number > 0) + (encode_text(piece, tokenizer) if piece else [])
        return ids

    whole = render(len(messages), prompt=False)
    mask = [0] * len(whole)
    for index in learned:
        begin = _prefix(whole, render(index, prompt=True), index, "before", tokenizer)
        end = _prefix(whole, render(index + 1, prompt=False), index, "up to", tokenizer)
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
    shown = [[token for token in ids[same : same + _SHOWN_TOKENS] if token != _IMAGE] for ids in (part, whole)]
    alone, within = map(tokenizer.decode, shown)
    raise DataError(
        f"the chat template writes the turns {what} assistant turn {turn} differently in the whole conversation (from "
        f"token {same}: {within!r} instead of {alone!r}), so it is not exact which tokens are the assistant's",
        fix=_FIX,
    )


def _without_tail(ids: list[int], tokenizer: Any) -> int:
    """Return the length of an answer without what a template writes after the control token that ends it."""
    control = {*tokenizer.all_special_ids, tokenizer.eos_token_id}
    last = next((i for i in reversed(range(len(ids))) if ids[i] in control), None)
    if last is None or tokenizer.decode(ids[last + 1 :]).strip():
        return len(ids)
    return last + 1


def _row(ids: list[int], mask: list[int], tokenizer: Any, images: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Return the row up to the last learned token, which ends the last answer."""
    length = len(mask) - mask[::-1].index(1)
    ids, mask = ids[:length], mask[:length]
    if ids[-1] not in {*tokenizer.all_special_ids, tokenizer.eos_token_id} and tokenizer.eos_token_id is not None:
        # A template without a mark of the end: the model would never learn to stop.
        ids, mask = [*ids, tokenizer.eos_token_id], [*mask, 1]
    if not images:
        return {"input_ids": ids, "loss_mask": mask}
    columns = [column for column, token in enumerate(ids) if token == _IMAGE]
    return {
        "input_ids": [token for token in ids if token != _IMAGE],
        "loss_mask": [learned for token, learned in zip(ids, mask, strict=True) if token != _IMAGE],
        "images": list(images[: len(columns)]),
        # Of the tokens before an image, as many are images as there were before it.
        "image_places": [column - number for number, column in enumerate(columns)],
    }


def _template(tokenizer: Any, tools: Sequence[Any] | None) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        name = "tool_use" if tools and "tool_use" in template else "default"
        template = template.get(name, "")
    return str(template)
