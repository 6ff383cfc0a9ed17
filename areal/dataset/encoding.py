"""Turns text into token ids the same way in loaders and workflows, so that what SFT learns is what RL continues.

A prompt is a chat (a list of messages, rendered by the tokenizer's chat template) or a plain string. A plain string
is encoded as it stands: no BOS and no other special token is added, so write them into the string when a model wants
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ConfigError, DataError
from areal.dataset.schema import messages_problem
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from datasets import Dataset

logger = getLogger(__name__)

Messages = "list[dict[str, str]] | str"
"""A chat, or a plain string."""


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer can render a chat."""
    return bool(getattr(tokenizer, "chat_template", None))


def as_messages(text: str, tokenizer: Any, *, system: str = "") -> list[dict[str, str]] | str:
    """Return one user turn as a chat when the tokenizer has a template, else as a string (after the system text)."""
    if not has_chat_template(tokenizer):
        return f"{system}\n{text}" if system else text
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": text}]


def encode_prompt(messages: Any, tokenizer: Any, *, enable_thinking: bool = False) -> list[int]:
    """Return the token ids of a prompt, ending where the model's answer begins.

    enable_thinking: handed to the chat template; templates without that switch ignore it. Raises DataError for an
    empty prompt, a chat without a template to render it, and a chat whose text contains one of the tokenizer's
    control tokens (it would be read as control, not as text).
    """
    problem = messages_problem(messages)
    if problem:
        raise DataError(problem)
    if isinstance(messages, str):
        return encode_text(messages, tokenizer)
    if not has_chat_template(tokenizer):
        raise DataError(
            "messages is a chat but the tokenizer has no chat template; give a plain string, or set a template"
        )
    for index, message in enumerate(messages):
        for token in tokenizer.all_special_tokens:
            if token in message["content"]:
                raise DataError(
                    f"messages[{index}] contains the control token {token!r} as text, which would be read as control; "
                    f"remove it, or give the whole prompt as a rendered string"
                )
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False, enable_thinking=enable_thinking
    )
    return list(ids)


def encode_text(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of a text, without BOS or EOS; raises DataError when the tokenizer cannot represent it."""
    try:
        return list(tokenizer.encode(text, add_special_tokens=False))
    # The Rust tokenizers raise bare Exception for a character outside a vocabulary without an unknown token.
    except Exception as error:
        raise DataError(f"the tokenizer cannot encode {text[:60]!r}: {error}") from error


def encode_answer(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of an answer and the end-of-sequence token, as the policy would have to sample them."""
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-sequence token, so answers could never end; set eos_token")
    return [*encode_text(text, tokenizer), tokenizer.eos_token_id]


def sft_row(messages: Any, answer: str, tokenizer: Any) -> dict[str, list[int]]:
    """Return `input_ids` of prompt and answer, `loss_mask` 1 on the answer and its end-of-sequence token."""
    prompt_ids = encode_prompt(messages, tokenizer)
    answer_ids = encode_answer(answer, tokenizer)
    return {"input_ids": prompt_ids + answer_ids, "loss_mask": [0] * len(prompt_ids) + [1] * len(answer_ids)}


def to_dataset(rows: Sequence[dict[str, Any]], source: str, lengths: Iterable[int], max_length: int | None) -> Dataset:
    """Build the dataset from mapped rows, leaving out those longer than `max_length` tokens (counted in the log).

    lengths: tokens of each row. Rows may lack columns others have; the gap becomes None. Raises DataError when no row
    is left or a column mixes types.
    """
    from datasets import Dataset

    kept = [row for row, length in zip(rows, lengths, strict=True) if max_length is None or length <= max_length]
    num_dropped = len(rows) - len(kept)
    if num_dropped:
        logger.warning("%s: dropped %d of %d rows with more than %s tokens", source, num_dropped, len(rows), max_length)
    if not kept:
        reason = f"all {num_dropped} are longer than max_length {max_length}" if num_dropped else "the source is empty"
        raise DataError(f"{source}: 0 rows left: {reason}")
    columns = list(dict.fromkeys(column for row in kept for column in row))
    table = {column: [row.get(column) for row in kept] for column in columns}
    try:
        return Dataset.from_dict(table)
    # pyarrow's errors subclass ValueError and TypeError; they name neither the source nor the columns.
    except (TypeError, ValueError) as error:
        raise DataError(f"{source}: a column of {', '.join(columns)} mixes types across rows: {error}") from error
