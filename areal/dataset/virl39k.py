r"""ViRL39K: mixed questions on one or several images, for RL and SFT.

Source: the hub id "TIGER-Lab/ViRL39K" (38,870 rows, train only), arXiv:2504.08837.
Licence: MIT for the collection; its sources have licences of their own. Packaged rows are not from it: their figures
were drawn for this project. Reward: `areal.reward.geometry3k`.

A raw row of `virl39k`:

    {"question": "<image>The two legs of the right triangle are labelled. Find x.",
     "image": ["iVBORw0KGgoAAAANSUhEUgAAABgAAAAVCAIAAADTi7lxAAABlklEQVR42rWUv2vCQBTH3xnPA10UzWap ..."],
     "answer": "\\boxed{5}",
     "source": "drawn"}

`answer` is a worked solution whose final answer is in \boxed{...}.
`image` holds an image or a list of them; RL rows carry them as base64 in the column `images`,
and the text has one "<image>" for each.
path "" reads the 32 packaged rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.dataset.building import image_prompts, rl_dataset, sft_image_dataset
from areal.dataset.reading import RawRows, read_rows
from areal.dataset.schema import complain, require_texts

if TYPE_CHECKING:
    from datasets import Dataset

INSTRUCTION: Final = "Reason step by step and write the final answer inside \\boxed{}."
PACKAGED_ROWS: Final = Path(__file__).parent / "fixtures" / "virl39k"
_MARK: Final = "\\boxed{"


def get_virl39k_rl_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = INSTRUCTION
) -> Dataset:
    """Return columns `messages`, `images`, `answer`, and what a reward may want besides.

    instruction: appended to the question on a line of its own; "" appends nothing. Rows whose prompt has more than
    `max_length` tokens are dropped.
    """
    raw = read_virl39k(path, split)
    prompts = image_prompts(raw, "question", "image", instruction=instruction, tokenizer=tokenizer)
    rows = [
        {"messages": prompt, "images": images, "answer": final_answer(row["answer"]), "source": row.get("source")}
        for row, (prompt, images) in zip(raw.rows, prompts, strict=True)
    ]
    return rl_dataset(raw, rows, tokenizer, max_length)


def get_virl39k_sft_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, instruction: str = INSTRUCTION
) -> Dataset:
    """Return prompts as for RL, and the whole worked solution as the part to learn (`sft_image_dataset`).

    instruction: as for RL.
    """
    raw = read_virl39k(path, split)
    prompts = image_prompts(raw, "question", "image", instruction=instruction, tokenizer=tokenizer)
    triples = [(prompt, row["answer"], images) for row, (prompt, images) in zip(raw.rows, prompts, strict=True)]
    return sft_image_dataset(raw, triples, tokenizer, max_length)


def read_virl39k(path: str, split: str) -> RawRows:
    """Return raw rows, checked: texts are not empty, and every answer has a final one."""
    raw = read_rows(path or str(PACKAGED_ROWS), split)
    require_texts(raw, "question", "answer")
    complain(
        raw.source,
        (
            (raw.where(index), "" if final_answer(row["answer"]) else "answer has no final answer")
            for index, row in enumerate(raw.rows)
        ),
    )
    return raw


def final_answer(solution: str) -> str:
    r"""Return the content of the last \boxed{...}, braces nested; "" when there is none, or it is not closed."""
    start = solution.rfind(_MARK)
    begin, depth = start + len(_MARK), 1
    for position in range(begin, len(solution) if start >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[begin:position].strip()
    return ""
