r"""GSM8K: grade-school word problems with worked solutions (Cobbe et al. 2021, arXiv:2110.14168; MIT licence).

A raw row (`train.jsonl` has 7473, `test.jsonl` 1319):

    {"question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. ...",
     "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 ...\n#### 72"}

The text in << >> is an annotation for a calculator; the final answer follows "#### ". A row becomes, for RL,
{"messages": ..., "answer": "72"} and for SFT token ids of question and solution. path "" reads the 64 + 32 packaged
rows; the whole set is the hub id "openai/gsm8k". Reward: `areal.reward.gsm8k`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from areal.dataset.building import rl_dataset, sft_dataset, user_prompt
from areal.dataset.encoding import as_messages
from areal.dataset.reading import FIXTURES, RawRows, read_rows
from areal.dataset.schema import complain, require_texts

if TYPE_CHECKING:
    from datasets import Dataset

_ANNOTATION: Final = re.compile(r"<<[^<>]*>>")
_MARK: Final = "####"
RL_INSTRUCTION: Final = "Reason step by step and write the final answer inside \\boxed{}."


def get_gsm8k_rl_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = RL_INSTRUCTION
) -> Dataset:
    """Return `messages` (question and instruction) and `answer` (the final number as written, e.g. "1,080").

    instruction: appended to the question on a line of its own; "" appends nothing. Rows whose prompt has more than
    `max_length` tokens are dropped.
    """
    raw = read_gsm8k(path, split)
    rows = []
    for row in raw.rows:
        prompt = f"{row['question']}\n{instruction}" if instruction else row["question"]
        rows.append({"messages": as_messages(prompt, tokenizer), "answer": final_answer(row["answer"])})
    return rl_dataset(raw, rows, tokenizer, max_length)


def get_gsm8k_sft_dataset(
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    instruction: str = "",
    keep_annotations: bool = False,
) -> Dataset:
    """Return `input_ids` and `loss_mask`: question, then the worked solution with its end as the part to learn.

    keep_annotations: leave the <<48/2=24>> marks in the solution.
    """
    raw = read_gsm8k(path, split)
    pairs = [
        (
            user_prompt(row["question"], instruction, tokenizer),
            row["answer"] if keep_annotations else _ANNOTATION.sub("", row["answer"]),
        )
        for row in raw.rows
    ]
    return sft_dataset(raw, pairs, tokenizer, max_length)


def read_gsm8k(path: str, split: str) -> RawRows:
    """Return raw rows, checked: both columns are texts and every answer has a "#### " line."""
    raw = read_rows(path or str(FIXTURES / "gsm8k"), split, hub_config="main")
    require_texts(raw, "question", "answer")
    complain(
        raw.source,
        (
            (raw.where(index), "" if final_answer(row["answer"]) else "answer has no final line such as '#### 72'")
            for index, row in enumerate(raw.rows)
        ),
    )
    return raw


def final_answer(solution: str) -> str:
    """Return the text after the last "####", "" when there is none."""
    return solution.rpartition(_MARK)[2].strip() if _MARK in solution else ""
