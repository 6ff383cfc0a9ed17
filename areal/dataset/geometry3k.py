r"""Geometry3K: problems on a drawn figure, for RL and SFT.

Source: Lu et al. 2021, arXiv:2105.04165; the hub id "hiyouga/geometry3k" (2101 train, 300 validation, 601 test rows).
Licence: MIT, as its card says. Packaged rows are not from it: their figures were drawn for this project.
Reward: `areal.reward.geometry3k`.

A raw row of `geometry3k`:

    {"problem": "<image>Find the area of the rectangle.",
     "images": ["iVBORw0KGgoAAAANSUhEUgAAABgAAAAVCAIAAADTi7lxAAAA50lEQVR42t1UPQ6CMBh9rQ2UBsImd3Jh ..."],
     "answer": "12",
     "id": 2}

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

INSTRUCTION: Final = "Reason step by step and write the final answer inside \\boxed{}."
SFT_INSTRUCTION: Final = "Write the final answer inside \\boxed{}."
PACKAGED_ROWS: Final = Path(__file__).parent / "fixtures" / "geometry3k"


def get_geometry3k_rl_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = INSTRUCTION
) -> Dataset:
    """Return columns `messages`, `images`, `answer`, and what a reward may want besides.

    instruction: appended to the question on a line of its own; "" appends nothing. Rows whose prompt has more than
    `max_length` tokens are dropped.
    """
    raw = read_geometry3k(path, split)
    prompts = image_prompts(raw, "problem", "images", instruction=instruction, tokenizer=tokenizer)
    rows = [
        {"messages": prompt, "images": images, "answer": row["answer"], "id": row.get("id")}
        for row, (prompt, images) in zip(raw.rows, prompts, strict=True)
    ]
    return rl_dataset(raw, rows, tokenizer, max_length)


def get_geometry3k_sft_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = SFT_INSTRUCTION
) -> Dataset:
    """Return prompts as for RL, and the answer in a box as the part to learn (`sft_image_dataset`).

    instruction: as for RL but for its default, since no steps are learned.
    """
    raw = read_geometry3k(path, split)
    prompts = image_prompts(raw, "problem", "images", instruction=instruction, tokenizer=tokenizer)
    triples = [
        (prompt, f"\\boxed{{{row['answer']}}}", images) for row, (prompt, images) in zip(raw.rows, prompts, strict=True)
    ]
    return sft_image_dataset(raw, triples, tokenizer, max_length)


def read_geometry3k(path: str, split: str) -> RawRows:
    """Return raw rows, checked: texts are not empty."""
    raw = read_rows(path or str(PACKAGED_ROWS), split)
    require_texts(raw, "problem", "answer")
    return raw
