r"""CLEVR counting: how many items a scene has, for RL and SFT.

Source: the hub id "BUAADreamer/clevr_count_70k" (70,000 train, 200 test rows), scenes of CLEVR (Johnson et al. 2017).
Licence: its card names none; images of CLEVR are CC BY 4.0. Packaged rows are not from it: their scenes were drawn for
this project. Reward: `areal.reward.clevr_count`.

A raw row of `clevr_count_70k`:

    {"problem": "<image>How many items are there in the image?",
     "images": ["iVBORw0KGgoAAAANSUhEUgAAABgAAAAQCAIAAACDRijCAAABRUlEQVR42s3STUsCURQG4POeOyMoU5kx ..."],
     "answer": "4"}

`images` holds an image or a list of them; RL rows carry them as base64 in the column `images`,
and the text has one "<image>" for each.
path "" reads the 32 + 8 packaged rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.dataset.building import image_prompts, rl_dataset, sft_image_dataset
from areal.dataset.reading import RawRows, read_rows
from areal.dataset.schema import require_texts

if TYPE_CHECKING:
    from datasets import Dataset

INSTRUCTION: Final = "Write the final number in square brackets, for example [7]."
PACKAGED_ROWS: Final = Path(__file__).parent / "fixtures" / "clevr_count_70k"


def get_clevr_count_70k_rl_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = INSTRUCTION
) -> Dataset:
    """Return columns `messages`, `images`, `answer`.

    instruction: appended to the question on a line of its own; "" appends nothing. Rows whose prompt has more than
    `max_length` tokens are dropped.
    """
    raw = read_clevr_count_70k(path, split)
    prompts = image_prompts(raw, "problem", "images", instruction=instruction, tokenizer=tokenizer)
    rows = [
        {"messages": prompt, "images": images, "answer": row["answer"]}
        for row, (prompt, images) in zip(raw.rows, prompts, strict=True)
    ]
    return rl_dataset(raw, rows, tokenizer, max_length)


def get_clevr_count_70k_sft_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = INSTRUCTION
) -> Dataset:
    """Return prompts as for RL, and the count in square brackets, which the reward reads, as the part to learn
    (`sft_image_dataset`).

    instruction: as for RL.
    """
    raw = read_clevr_count_70k(path, split)
    prompts = image_prompts(raw, "problem", "images", instruction=instruction, tokenizer=tokenizer)
    triples = [
        (prompt, f"[{row['answer'].strip('[] ')}]", images)
        for row, (prompt, images) in zip(raw.rows, prompts, strict=True)
    ]
    return sft_image_dataset(raw, triples, tokenizer, max_length)


def read_clevr_count_70k(path: str, split: str) -> RawRows:
    """Return raw rows, checked: texts are not empty."""
    raw = read_rows(path or str(PACKAGED_ROWS), split)
    require_texts(raw, "problem", "answer")
    return raw
