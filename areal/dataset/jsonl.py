r"""Your own rows: JSON lines (also gzip), parquet or a saved Hugging Face dataset, with column names given as options.

A raw row for RL has a prompt or a chat; every further column reaches the reward as a keyword argument:

    {"prompt": "What is 6 times 7?", "answer": "42", "source": "table"}
    {"messages": [{"role": "user", "content": "What is 6 times 7?"}], "answer": "42"}

A raw row for SFT has a prompt and an answer, or a chat that ends with an assistant turn; all assistant turns are
learned, calls of tools too. One of preferences has a prompt, or a chat that ends with a user turn, and two answers to
it:

    {"prompt": "What is 6 times 7?", "chosen": "42", "rejected": "36", "margin": 1.5}

Rows for SFT may have `images` (paths in the folder of the data, or base64), one for each "<image>" of the prompt, or of
the turns of a chat that are not the assistant's.

path is required: a file, or a folder with `<split>.jsonl`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.dataset.building import (
    conversation_dataset,
    preference_dataset,
    rl_dataset,
    sft_dataset,
    sft_image_dataset,
)
from areal.dataset.encoding import as_messages
from areal.dataset.images import require_images
from areal.dataset.reading import RawRows, read_rows
from areal.dataset.schema import (
    complain,
    messages_problem,
    missing_column,
    require_numbers,
    require_texts,
    require_unique,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from areal.dataset.conversations import Turns


def get_jsonl_rl_dataset(
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    prompt_column: str = "prompt",
    messages_column: str = "messages",
    answer_column: str = "answer",
    system: str = "",
    instruction: str = "",
    id_column: str = "",
) -> Dataset:
    """Return `messages`, `answer` (renamed from `answer_column` where rows have it) and every other column.

    A row with `messages_column` is taken as it is; otherwise the prompt is `system`, then the text of
    `prompt_column`, then `instruction` on a line of its own. id_column: when given, its values must not repeat.
    """
    raw = _read(path, split, id_column)
    prompts = _prompts(raw, prompt_column, messages_column, tokenizer, system=system, instruction=instruction)
    rows = []
    for row, messages in zip(raw.rows, prompts, strict=True):
        rest = {k: v for k, v in row.items() if k not in (prompt_column, messages_column, answer_column)}
        answer = {"answer": row[answer_column]} if answer_column in row else {}
        rows.append({**rest, **answer, "messages": messages})
    return rl_dataset(raw, rows, tokenizer, max_length)


def get_jsonl_sft_dataset(  # noqa: PLR0913 - all but the first four are options of a configuration
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    prompt_column: str = "prompt",
    messages_column: str = "messages",
    answer_column: str = "answer",
    turns: Turns = "all",
    system: str = "",
    instruction: str = "",
    id_column: str = "",
) -> Dataset:
    """Return `input_ids` and `loss_mask`; the answer is learned, or every assistant turn of a chat.

    turns: of a chat, learn "all" assistant turns in one row, "each" in a row of its own, or the "last" only
    (`areal.dataset.conversations` says when all is refused). A column `tools` has JSON schemas for the chat template;
    rows may lack it. Other options as for RL.
    """
    raw = _read(path, split, id_column)
    if _has_chats(raw, messages_column):
        without = [i for i, row in enumerate(raw.rows) if messages_column not in row]
        complain(raw.source, ((raw.where(i), missing_column(messages_column, raw.rows[i])) for i in without))
        chats = [row[messages_column] for row in raw.rows]
        tools = [row.get("tools") for row in raw.rows]
        images = require_images(raw, "images", optional=True) if any(row.get("images") for row in raw.rows) else None
        return conversation_dataset(raw, chats, tokenizer, max_length, turns=turns, tools=tools, images=images)
    require_texts(raw, prompt_column, answer_column)
    prompts = _prompts(raw, prompt_column, messages_column, tokenizer, system=system, instruction=instruction)
    pairs = [(messages, row[answer_column]) for row, messages in zip(raw.rows, prompts, strict=True)]
    if any(row.get("images") for row in raw.rows):
        images = require_images(raw, "images", optional=True)
        triples = [(*pair, own) for pair, own in zip(pairs, images, strict=True)]
        return sft_image_dataset(raw, triples, tokenizer, max_length)
    return sft_dataset(raw, pairs, tokenizer, max_length)


def get_jsonl_preference_dataset(
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    prompt_column: str = "prompt",
    messages_column: str = "messages",
    chosen_column: str = "chosen",
    rejected_column: str = "rejected",
    margin_column: str = "",
    system: str = "",
) -> Dataset:
    """Return `chosen_ids`, `rejected_ids`, `chosen_loss_mask`, `rejected_loss_mask`, and `margin` when margin_column
    names a column: by how much the chosen answer is better, a number >= 0. Other options as for RL.
    """
    raw = _read(path, split, "")
    # They would silently be left out.
    problems = ("preference pairs with images are not supported" if row.get("images") else "" for row in raw.rows)
    complain(raw.source, ((raw.where(i), problem) for i, problem in enumerate(problems)), fix="remove the column")
    require_texts(raw, chosen_column, rejected_column)
    prompts = _prompts(raw, prompt_column, messages_column, tokenizer, system=system)
    triples = [
        (messages, row[chosen_column], row[rejected_column]) for row, messages in zip(raw.rows, prompts, strict=True)
    ]
    margins = None
    if margin_column:
        require_numbers(raw, margin_column)
        margins = [float(row[margin_column]) for row in raw.rows]
        problems = (f"{margin_column} is {margin:g}, expected a finite number >= 0" for margin in margins)
        wrong = [(raw.where(i), text) for i, text in enumerate(problems) if not 0 <= margins[i] < math.inf]
        complain(raw.source, wrong)
    return preference_dataset(raw, triples, tokenizer, max_length, margins=margins)


def _prompts(
    raw: RawRows, prompt_column: str, messages_column: str, tokenizer: Any, *, system: str = "", instruction: str = ""
) -> list[Any]:
    """Return the chat of every row, or one made of its prompt; no row has a chat, or all must have one."""
    if _has_chats(raw, messages_column):
        problems = (
            messages_problem(row[messages_column]) if messages_column in row else missing_column(messages_column, row)
            for row in raw.rows
        )
        complain(raw.source, ((raw.where(i), problem) for i, problem in enumerate(problems)))
        return [row[messages_column] for row in raw.rows]
    require_texts(raw, prompt_column)
    texts = [f"{row[prompt_column]}\n{instruction}" if instruction else row[prompt_column] for row in raw.rows]
    return [as_messages(text, tokenizer, system=system) for text in texts]


def _has_chats(raw: RawRows, column: str) -> bool:
    return any(column in row for row in raw.rows)


def _read(path: str, split: str, id_column: str) -> RawRows:
    if not path:
        raise ConfigError(
            "dataset path is empty: the jsonl loaders have no packaged rows; set path to a file or folder"
        )
    raw = read_rows(path, split)
    if id_column:
        require_unique(raw, id_column)
    return raw
