"""Tokens that follow a finished answer: the end of the assistant turn, the environment's turn, the start of the next
answer.

They are computed once, from the chat template alone, by rendering a conversation with and without the further turn
and taking the difference. Nothing the model sampled takes part, so earlier tokens stay as they were sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.dataset.encoding import encode_text, has_chat_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.api import ImageRef

_QUESTION: Final = "areal-probe-question"
_ANSWER: Final = "areal-probe-answer"
_FEEDBACK: Final = "areal-probe-feedback"


def feedback_ids(tokenizer: Any, feedback: str, *, enable_thinking: bool, strict_template: bool) -> list[int]:
    """Tokens from the end of an assistant answer to the start of the next one, with `feedback` as a user turn between.

    Without a chat template: the feedback text as it stands. Raises ConfigError when the tokenizer cannot encode the
    feedback, or when the template renders earlier turns differently once the conversation goes on (with
    `strict_template`).
    """
    if not feedback:
        raise ConfigError("feedback is empty: without it the next turn would only continue the last answer")
    before, after = feedback_frame(tokenizer, enable_thinking=enable_thinking, strict_template=strict_template)
    try:
        return encode_text(f"{before}{feedback}{after}", tokenizer)
    except ValueError as error:
        raise ConfigError(f"feedback cannot be encoded; give one in workflow_options.feedback ({error})") from error


def feedback_frame(tokenizer: Any, *, enable_thinking: bool, strict_template: bool) -> tuple[str, str]:
    """Return what the chat template writes before and after a user turn that follows an answer; empty without one.

    Raises ConfigError as `feedback_ids`.
    """
    if not has_chat_template(tokenizer):
        return "", ""
    asked = [{"role": "user", "content": _QUESTION}]
    continued = [*asked, {"role": "assistant", "content": _ANSWER}, {"role": "user", "content": _FEEDBACK}]
    prompt = _render(tokenizer, asked, enable_thinking)
    head, mark, tail = _render(tokenizer, continued, enable_thinking).partition(_ANSWER)
    if not mark:
        raise ConfigError("the chat template drops the assistant turn, so a conversation cannot go on after an answer")
    if strict_template and head != prompt:
        raise ConfigError(
            f"the chat template is not prefix-preserving: the text before an answer is {prompt[-60:]!r} when it is "
            f"generated but {head[-60:]!r} once the conversation goes on (templates that drop earlier reasoning "
            f"do this). Set workflow_options.strict_template=false to keep the tokens as they were generated, or use "
            f"another template"
        )
    before, mark, after = tail.partition(_FEEDBACK)
    if not mark:
        raise ConfigError("the chat template drops a user turn that follows an answer, so no feedback can be given")
    return before, after


def frame_of(tokenizer: Any, roles: Sequence[str], *, enable_thinking: bool) -> list[str] | None:
    """Return what the chat template writes before, between and after messages of these roles that follow an answer.

    None for a template that refuses such messages, drops one, or changes their order. n roles have n + 1 pieces.
    """
    marks = [f"{_FEEDBACK}-{index}-" for index in range(len(roles))]
    asked = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    try:
        rest = _render(tokenizer, [*asked, *messages], enable_thinking).partition(_ANSWER)[2]
    except Exception:  # noqa: BLE001 - a template raises what its author wrote, mostly jinja2's TemplateError
        return None
    pieces = []
    for mark in marks:
        piece, found, rest = rest.partition(mark)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, rest]


def after_answer(suffix: Sequence[int], answer: Sequence[int]) -> list[int]:
    """`suffix` without its first token when the answer already ended with it (the sampled end-of-turn token)."""
    return list(suffix[1:] if answer and suffix and answer[-1] == suffix[0] else suffix)


def images_after_answer(
    suffix: Sequence[int], images: Sequence[ImageRef], answer: Sequence[int]
) -> tuple[list[int], tuple[ImageRef, ...]]:
    """`after_answer` for a suffix with images, whose columns move along."""
    shown = after_answer(suffix, answer)
    # What the answer ended with stands before the first image.
    return shown, tuple(replace(ref, start=ref.start - len(suffix) + len(shown)) for ref in images)


def _render(tokenizer: Any, messages: list[dict[str, str]], enable_thinking: bool) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, enable_thinking=enable_thinking
    )
    return text
