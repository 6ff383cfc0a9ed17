"""Rewards for the tests of the templates, by hand and from examples; plans of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tooling.new.change import Change, UnitRequest, open_project
from tooling.new.commands.generate import plan_unit

ROOT = Path(__file__).resolve().parents[2]
TOTAL = r"(?i)total\s{0,5}=\s{0,5}(?P<answer>[\d,.]+)"
UNITS: dict[str, dict[str, Any]] = {
    "ours_exact": {"style": "exact"},
    "ours_boxed": {"style": "boxed", "answer_column": "solution"},
    "ours_math": {"style": "math_verify", "answer_column": "final"},
    "ours_regex": {"style": "regex"},
    "ours_total": {"style": "regex", "pattern": TOTAL, "example": "the total = 1,080", "comparison": "number"},
    "ours_choice": {"style": "choice", "letters": "B-J"},
    "ours_code": {"style": "code", "tests_column": "checks", "time_limit_seconds": 5.0},
    "ours_judge": {
        "style": "llm_judge",
        "model": "judge-7b",
        "rubric": 'Is it "kind"?\nBe \\ strict. ' * 9,
        "scale": 5,
    },
    "ours_open_judge": {"style": "llm_judge", "model": "org/judge", "answer_column": ""},
}

ODD = '\u2019\u202e\ud83d\ude00 \0 \x1b[31m \\ " \' """ {{ x }} {% y %} # not a comment \t end'
LABELLED: list[Any] = [
    {"completion": "The answer is B.", "answer": "B", "score": 1.0},
    {"completion": "The answer is C.", "answer": "B", "score": 0},
    {"completion": f"{ODD}\nThe answer is B", "answer": "B", "reward": True, "source": ODD},
    {"completions": ["B", "A or B", ""], "answer": "B", "label": [1, 0, False], "prompt": "Which?"},
]


def solutions(number: int) -> list[Any]:
    """Real worked solutions from the packaged rows of GSM8K (MIT licence), every third with another row's answer."""
    lines = (ROOT / "areal/dataset/fixtures/gsm8k/train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[:number]]
    finals = [row["answer"].rpartition("#### ")[2] for row in rows]
    return [
        {"prompt": row["question"], "completion": row["answer"], "answer": finals[index - (index % 3 == 2)]}
        for index, row in enumerate(rows)
    ]


NUMBERED = {"style": "regex", "pattern": r"#### (.+)", "comparison": "number"}
EXAMPLES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "solved": (solutions(64), NUMBERED),
    "choices": (LABELLED, {"style": "choice"}),
    "both": ([{"prompt": ODD, "completion": "72", "answer": "72"}], {"style": "exact"}),
    "snippets": (
        [
            {"completion": f"```python\ndef f():\n    return {value}\n```", "tests": ["assert f() == 3"]}
            for value in (3, 4)
        ],
        {"style": "code"},
    ),
}
"""Rows and answers of rewards made from examples."""


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows as lines of JSON; a text is a line already."""
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def planned(root: Path, name: str, answers: dict[str, Any], **options: object) -> Change:
    """Plan a reward. Options are written with underscores."""
    given = {option.replace("_", "-"): str(value) for option, value in options.items()}
    return plan_unit(open_project(root), UnitRequest(kind="reward", name=name, answers=answers, options=given))
