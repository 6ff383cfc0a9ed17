"""Writes the packaged GSM8K rows and arithmetic annotations (`areal/dataset/fixtures/gsm8k`) from a folder with the
whole set.

    python scripts/make_gsm8k_fixture.py path/to/gsm8k

The folder holds train.jsonl, test.jsonl and LICENSE as published at https://github.com/openai/grade-school-math. The
output depends on nothing else, so running it again leaves the repository unchanged.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Final

from areal.dataset.arithmetic import PACKAGED_OPERAND_DIGITS, extract_facts
from areal.dataset.reading import FIXTURES

NUM_ROWS: Final = {"train": 64, "test": 32}
_SIGNS_TO_SPACE: Final = str.maketrans("+-*/", "    ")


def write_fixture(source: Path, target: Path) -> None:
    """Copy the first rows of each split and every short one-operator annotation of all rows."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "LICENSE", target / "LICENSE")
    for split, num_rows in NUM_ROWS.items():
        lines = (source / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        (target / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines[:num_rows]), encoding="utf-8")
        facts = extract_facts(json.loads(line)["answer"] for line in lines)
        short = [fact for fact in facts if longest_operand(fact.expression) <= PACKAGED_OPERAND_DIGITS]
        rows = "".join(f"{fact.problem}\t{fact.expression}={fact.result}\n" for fact in short)
        (target / f"annotations_{split}.tsv").write_text(rows, encoding="utf-8")


def longest_operand(expression: str) -> int:
    """Digits of the longer operand of "12*9": 2."""
    return max(len(operand) for operand in expression.translate(_SIGNS_TO_SPACE).split())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with train.jsonl, test.jsonl and LICENSE")
    parser.add_argument(
        "--target", type=Path, default=FIXTURES / "gsm8k", help="folder to write (default: %(default)s)"
    )
    arguments = parser.parse_args()
    write_fixture(arguments.source, arguments.target)
