"""Build a checked dataset of one kind from mapped raw rows; every error names its row.

    raw = read_rows(path, split)
    rows = [{"messages": user_prompt(row["question"], "", tokenizer), "answer": row["answer"]} for row in raw.rows]
    return rl_dataset(raw, rows, tokenizer, max_length)

Every row is encoded once, also where only its length is needed: a row that cannot be tokenised is found before a model
is loaded. What columns mean is the loader's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from areal.api import ConfigError, DataError
from areal.dataset.conversations import TURNS, Turns, conversation_problem, conversation_rows
from areal.dataset.encoding import (
    as_messages,
    encode_answer,
    encode_prompt,
    has_chat_template,
    sft_row,
    to_dataset,
)
from areal.dataset.images import require_images, sft_image_row, text_ids, with_image_marks
from areal.dataset.schema import complain
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from datasets import Dataset

    from areal.dataset.reading import RawRows

logger = getLogger(__name__)

Item = TypeVar("Item")
Encoded = TypeVar("Encoded")


def user_prompt(text: str, instruction: str, tokenizer: Any) -> Any:
    """Return one user turn: the text, and the instruction (unless empty) on a line of its own.

    For a tokenizer without chat template a plain string that ends with a line break, which is then all that tells the
    prompt from the answer; RL and SFT rows share it.
    """
    prompt = f"{text}\n{instruction}" if instruction else text
    return as_messages(prompt if has_chat_template(tokenizer) else f"{prompt}\n", tokenizer)


def image_prompts(
    raw: RawRows, text: str, images: str, *, instruction: str, tokenizer: Any
) -> list[tuple[Any, list[str]]]:
    """Return the prompt of every row, as `user_prompt`, with one mark for each of its images, and base64 of these.

    text, images: columns. Raises DataError with row numbers as `require_images`.
    """
    found = require_images(raw, images)
    return [
        (user_prompt(with_image_marks(row[text], len(files)), instruction, tokenizer), files)
        for row, files in zip(raw.rows, found, strict=True)
    ]


def rl_dataset(raw: RawRows, rows: Sequence[dict[str, Any]], tokenizer: Any, max_length: int | None) -> Dataset:
    """Return rows with `messages` and what the reward needs, without prompts of more than `max_length` tokens.

    Raises ConfigError for chats without chat template, DataError with row numbers for rows that cannot be encoded.
    """
    prompts = [row["messages"] for row in rows]
    _require_template(raw, prompts, tokenizer)
    lengths = _encode_each(raw, rows, lambda row: len(text_ids(row, tokenizer)))
    return to_dataset(rows, raw.source, lengths, max_length, unit=raw.unit, numbers=raw.numbers)


def sft_dataset(raw: RawRows, pairs: Sequence[tuple[Any, str]], tokenizer: Any, max_length: int | None) -> Dataset:
    """Return `input_ids` and `loss_mask` of (prompt, answer) pairs; only the answer and its end are learned.

    Pairs with more than `max_length` tokens are dropped. Raises as `rl_dataset`.
    """
    _require_template(raw, [prompt for prompt, _ in pairs], tokenizer)
    rows = _encode_each(raw, pairs, lambda pair: sft_row(*pair, tokenizer))
    lengths = (len(row["input_ids"]) for row in rows)
    return to_dataset(rows, raw.source, lengths, max_length, unit=raw.unit, numbers=raw.numbers)


def sft_image_dataset(
    raw: RawRows, triples: Sequence[tuple[Any, str, list[str]]], tokenizer: Any, max_length: int | None
) -> Dataset:
    """Return SFT rows of (prompt with marks, answer, images) as `sft_image_row` makes them.

    `max_length` counts the tokens of texts here; a run counts those of images too. Raises as `rl_dataset`.
    """
    _require_template(raw, [prompt for prompt, _, _ in triples], tokenizer)
    rows = _encode_each(raw, triples, lambda item: sft_image_row(item[0], item[2], item[1], tokenizer))
    lengths = (len(row["input_ids"]) for row in rows)
    return to_dataset(rows, raw.source, lengths, max_length, unit=raw.unit, numbers=raw.numbers)


def conversation_dataset(
    raw: RawRows,
    chats: Sequence[list[dict[str, Any]]],
    tokenizer: Any,
    max_length: int | None,
    *,
    turns: Turns = "all",
    tools: Sequence[Any] | None = None,
    images: Sequence[list[str]] | None = None,
) -> Dataset:
    """Return `input_ids` and `loss_mask` of chats that end with an assistant turn; every assistant turn is learned.

    turns: "all", "each" or "last" (`areal.dataset.conversations`). tools: for each chat, JSON schemas for its template;
    images: for each chat, base64 of the files of its marks. Rows with more than `max_length` tokens, those of images
    not counted, are dropped. Raises as `rl_dataset`, also with row numbers for chats of which it is not exact which
    tokens are the assistant's.
    """
    if turns not in TURNS:
        raise ConfigError(f"turns is {turns!r}, expected one of {', '.join(TURNS)}")
    _require_template(raw, chats, tokenizer)
    complain(raw.source, ((raw.where(i), conversation_problem(chat)) for i, chat in enumerate(chats)))
    given: Sequence[Any] = [None] * len(chats) if tools is None else tools
    pictures: Sequence[Any] = [()] * len(chats) if images is None else images
    items = list(zip(chats, given, pictures, strict=True))
    encoded = _encode_each(
        raw, items, lambda item: conversation_rows(item[0], tokenizer, turns=turns, tools=item[1], images=item[2])
    )
    rows = [row for made in encoded for row in made]
    numbers = [number for number, made in zip(raw.numbers, encoded, strict=True) for _ in made]
    lengths = (len(row["input_ids"]) for row in rows)
    return to_dataset(rows, raw.source, lengths, max_length, unit=raw.unit, numbers=numbers)


def preference_dataset(
    raw: RawRows,
    triples: Sequence[tuple[Any, str, str]],
    tokenizer: Any,
    max_length: int | None,
    *,
    margins: Sequence[float] | None = None,
) -> Dataset:
    """Return token ids and masks of (prompt, chosen answer, rejected answer), the masks 1 on the answers.

    margins: by how much each chosen answer is better; becomes the column `margin`.

    Pairs with an empty or equal answer carry no preference; they are dropped and counted in the log, as are pairs of
    which one side has more than `max_length` tokens. Raises as `rl_dataset`.
    """
    _require_template(raw, [prompt for prompt, _, _ in triples], tokenizer)
    rows = _encode_each(raw, triples, lambda triple: _preference_row(*triple, tokenizer))
    if margins is not None:
        rows = [{**row, "margin": float(margin)} for row, margin in zip(rows, margins, strict=True)]
    told = [i for i, (_, c, r) in enumerate(triples) if c.strip() and r.strip() and c != r]
    usable = [rows[i] for i in told]
    if len(usable) < len(rows):
        logger.warning(
            "%s: dropped %d of %d pairs with an empty or equal answer", raw.source, len(rows) - len(usable), len(rows)
        )
    lengths = (max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in usable)
    numbers = [raw.numbers[i] for i in told]
    return to_dataset(usable, raw.source, lengths, max_length, unit=raw.unit, numbers=numbers)


def _preference_row(prompt: Any, chosen: str, rejected: str, tokenizer: Any) -> dict[str, Any]:
    prompt_ids = encode_prompt(prompt, tokenizer)
    row: dict[str, Any] = {}
    for side, answer in (("chosen", chosen), ("rejected", rejected)):
        answer_ids = encode_answer(answer, tokenizer)
        row[f"{side}_ids"] = prompt_ids + answer_ids
        row[f"{side}_loss_mask"] = [0] * len(prompt_ids) + [1] * len(answer_ids)
    return row


def _encode_each(raw: RawRows, items: Iterable[Item], encode: Callable[[Item], Encoded]) -> list[Encoded]:
    encoded: list[Encoded] = []
    problems: list[tuple[str, str]] = []
    fixes: list[str] = []
    for index, item in enumerate(items):
        try:
            encoded.append(encode(item))
        except DataError as error:
            problems.append((raw.where(index), str(error)))
            fixes.append(error.fix)
    complain(raw.source, problems, fix=next(filter(None, fixes), ""))
    return encoded


def _require_template(raw: RawRows, prompts: Iterable[Any], tokenizer: Any) -> None:
    if not has_chat_template(tokenizer) and any(not isinstance(prompt, str) for prompt in prompts):
        raise ConfigError(
            f"{raw.source} holds chats but the tokenizer has no chat template; use prompt strings or set one"
        )
