"""Data for the tests of the templates, requests for datasets of it, and their files: page, rendering, formatting."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from tooling.kit.names import Names
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.rendering import complete_answers, format_files, render
from tooling.new.change import Change, UnitRequest
from tooling.new.generators.dataset import prepare

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "templates" / "dataset"
SHARED = ROOT.parent / "shared" / "data"
NUM_ROWS = 14


def names_of(snake: str) -> Names:
    """Names of a unit that is written in small letters already."""
    parts = snake.split("_")
    pascal = "".join(part[:1].upper() + part[1:] for part in parts)
    return Names(snake, snake, pascal, snake.upper(), "-".join(parts), snake, " ".join(parts))


def prepared(snake: str, answers: dict | None = None, **options: object) -> SimpleNamespace:
    """What the page answers; `from_=path` stands for --from."""
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    request = UnitRequest(kind="dataset", name=snake, answers=answers or {}, options=given)
    change = Change(root=ROOT, python=Path(sys.executable), request=request, names=names_of(snake))
    return SimpleNamespace(
        answers=prepare(change), warnings=tuple(change.warnings), next_steps=tuple(change.next_steps)
    )


def generated(
    snake: str, answers: dict | None = None, settings: ProjectSettings | None = None, **options: object
) -> dict[str, bytes]:
    """The formatted files of a unit."""
    names, settings = names_of(snake), settings or ProjectSettings()
    given = {**(answers or {}), **prepared(snake, answers, **options).answers}
    return format_files(ROOT, render(TEMPLATE, complete_answers(TEMPLATE, given, names, settings), names, settings))


def write_lines(path: Path, rows: list) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def write_table(folder: Path, form: str, rows: list) -> Path:
    """Write rows in a format of `datasets`; returns the path for --from."""
    import datasets

    folder.mkdir(parents=True)
    made = datasets.Dataset.from_list(rows)
    if form == "csv":
        made.to_csv(str(folder / "train.csv"))
    elif form == "parquet":
        made.to_parquet(str(folder / "train.parquet"))
    elif form == "saved":
        datasets.DatasetDict(train=made, test=made).save_to_disk(str(folder))
    else:
        (folder / "train.json").write_text(json.dumps(rows))
    return folder


def picture(number: int) -> bytes:
    """A PNG that is larger than a packaged thumbnail."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (64, 48), (number * 16, 50, 100)).save(stream, "PNG")
    return stream.getvalue()


def chat(number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": f"Say {number}."},
        {"role": "assistant", "content": f"{number}!"},
    ]


def rows_of(make: object) -> list:
    return [make(number) for number in range(NUM_ROWS)]


ROWS = {
    "answers": rows_of(lambda n: {"prompt": f"Is {n} even?", "gold": "yes" if n % 2 == 0 else "no", "level": n}),
    "hashes": rows_of(
        lambda n: {"question": f"{n}+1? \u201cquoted\u201d", "answer": f"It is\u2026\n#### {n + 1}", "id": n}
    ),
    "boxes": rows_of(lambda n: {"problem": f"{n}/2?", "solution": rf"It is $\boxed{{\frac{{{n}}}{{2}}}}$."}),
    "numbers": rows_of(lambda n: {"question": f"{n}+1?", "answer": n + 1}),
    "solutions": rows_of(lambda n: {"problem": f"{n}/2?", "solution": f"Since {n}/2", "answer": f"{n / 2}"}),
    "chats": rows_of(lambda n: {"messages": chat(n), "id": n}),
    "share": rows_of(
        lambda n: {"conversations": [{"from": "human", "value": f"{n}?"}, {"from": "gpt", "value": f"{n}!"}]}
    ),
    "waiting": rows_of(lambda n: {"messages": chat(n)[:-1], "answer": rf"\boxed{{{n}}}", "tests": [f"f({n})"]}),
    "pairs": rows_of(lambda n: {"prompt": f"Say {n}.", "chosen": str(n), "rejected": "no"}),
    "pair_chats": rows_of(
        lambda n: {"chosen": chat(n), "rejected": [*chat(n)[:-1], {"role": "assistant", "content": "no"}]}
    ),
    "transcripts": rows_of(
        lambda n: {
            "chosen": f"\n\nHuman: Say {n}.\n\nAssistant: {n}",
            "rejected": f"\n\nHuman: Say {n}.\n\nAssistant: no",
        }
    ),
    "pictures": rows_of(
        lambda n: {"question": f"{n}?", "answer": "red", "image": base64.b64encode(picture(n)).decode()}
    ),
    "albums": rows_of(
        lambda n: {
            "question": f"<image> {n}?",
            "answer": "red",
            "images": [base64.b64encode(picture(n)).decode()] * 2,
        }
    ),
    "hostile": [
        {
            "question": '{{ 7*7 }} {% raw %} """ \\ \' </script>',
            "answer": 'x\n"""\nimport os\nos.abort()\n#',
        }
    ],
}
"""Rows by the form they have, as people's data sets have them."""

MISTAKES = [
    ('"messages": user_prompt(row["question"]', '"messages": user_prompt(row["answer"]'),
    ("rpartition", "partition"),
    (', row["answer"]) for row', ', row["question"]) for row'),
    ('require_texts(raw, "question", "answer")', 'require_texts(raw, "question")'),
    ('"" if final_answer(row["answer"]) else', '"" if True else'),
]
"""What is replaced by what in a loader of question and answer."""


def requests(folder: Path) -> list[tuple[str, dict, dict]]:
    """Write data of every form and format below a folder; name, answers and options of each unit."""
    made = [("scaffold", {}, {})]
    made += [(f"scaffold_{kind}", {}, {"kind": kind}) for kind in ("rl", "sft", "preference")]
    columns = {"answers": {"question_column": "prompt", "answer_column": "gold", "keep_columns": ["level"]}}
    for name, rows in ROWS.items():
        path = write_lines(folder / f"{name}.jsonl", rows)
        made.append((f"from_{name}", columns.get(name, {}), {"from": str(path)}))
    for kind in ("rl", "sft"):
        for name in ("hashes", "chats", "solutions"):
            made.append((f"only_{kind}_{name}", {}, {"kind": kind, "from": str(folder / f"{name}.jsonl")}))
    for form in ("csv", "parquet", "saved", "json"):
        for name in ("hashes", "transcripts") if form == "csv" else ("hashes", "chats", "pair_chats"):
            path = write_table(folder / form / name, form, ROWS[name])
            made.append((f"{form}_{name}", {}, {"from": str(path)}))
    seen = {"bytes": picture(1), "path": None}
    path = write_table(folder / "pictures", "parquet", [{"question": "?", "answer": "a", "image": seen}] * 3)
    made.append(("table_pictures", {}, {"from": str(path)}))
    return made
