"""The page of the dataset generator: turns `--kind` and `--from` into the answers that the template renders.

`--from PATH` is looked at by `areal.dataset.inspection`, a child process of the repository's own interpreter that
speaks JSON: this package never imports the framework, and nothing of the data is executed. Without `--from` a small
invented excerpt takes its place. What is refused here is refused before anything is rendered.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.report import aligned, printable
from tooling.new.generators.child import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.new.change import Change

KINDS: Final = ("rl", "sft", "preference", "both")
COLUMNS: Final = ("question", "answer", "solution", "messages", "chosen", "rejected", "image")
"""Roles that have a question `<role>_column`."""
NUM_TRAIN, NUM_TEST = 8, 4
TIMEOUT_SECONDS: Final = 600.0
_MAX_LISTED: Final = 5
_MAX_COLUMNS: Final = 30
"""Columns that an error lists."""
_MAX_EXAMPLE: Final = 112
"""Characters of a line of the example in the module's docstring, without its indentation."""
_MAX_NAME: Final = 60
_MAX_ITEMS: Final = 4
"""Turns of a chat in that example."""
_MAX_COLUMN: Final = 40
_COLUMN = re.compile(r"[^\W_]([\w .:/-]*\w)?|\w+")
"""Names that can stand in a string of Python and in a docstring as they are."""

_INVENTED: Final[dict[str, tuple[dict[str, str], ...]]] = {
    "answered": (
        {"question": "Which planet is closest to the sun?", "answer": "Mercury"},
        {"question": "How many legs does a spider have?", "answer": "8"},
        {"question": "What is the opposite of north?", "answer": "south"},
        {"question": "Which month follows March?", "answer": "April"},
        {"question": "How many minutes are in two hours?", "answer": "120"},
        {"question": "Which metal is liquid at room temperature?", "answer": "mercury"},
    ),
    "preference": (
        {
            "question": "How do I keep bread fresh?",
            "chosen": "Wrap it in a cloth and keep it in a dry, cool place.",
            "rejected": "Bread.",
        },
        {
            "question": "Why is the sky blue?",
            "chosen": "Air scatters the blue part of sunlight more than the red part.",
            "rejected": "Because it is.",
        },
        {"question": "What is seven times eight?", "chosen": "Seven times eight is 56.", "rejected": "54."},
        {
            "question": "How long should I boil an egg?",
            "chosen": "Eight minutes for a firm yolk, six for a soft one.",
            "rejected": "A while.",
        },
    ),
}
_NUM_INVENTED_TEST: Final = {"answered": 2, "preference": 1}


def prepare(change: Change) -> dict[str, Any]:
    """Return the answers for `--kind` and `--from`.

    Raises UsageError for options that contradict each other, data that cannot be read or contradict themselves (with
    the first rows), and columns that cannot be distinguished.
    """
    request = change.request
    kind = request.options.get("kind", "")
    if kind not in ("", *KINDS):
        raise UsageError(f"{kind!r} is not a kind of dataset", where="--kind", fix=f"use one of {', '.join(KINDS)}")
    if "form" in request.answers and not request.options:
        # Everything was derived when the unit was made; the answers may have been written by hand since.
        for name in [request.answers.get(f"{role}_column", "") for role in COLUMNS]:
            _printable_column(name)
        return {}
    if "from" in request.options:
        return _inspected(change, kind)
    if "split" in request.options:
        raise UsageError("only says which split of --from to read", where="--split", fix="add --from PATH")
    return _invented(change, kind or "both")


# ----------------------------------------------------------------------------------------------------- without data


def _invented(change: Change, kind: str) -> dict[str, Any]:
    """Return the answers of a scaffold with question and answer columns, for data that come later."""
    answers = change.request.answers
    family = "preference" if kind == "preference" else "answered"
    roles = tuple(_INVENTED[family][0])
    for role in COLUMNS:
        if role not in roles and answers.get(f"{role}_column"):
            raise UsageError(
                "is a column that the scaffold without data does not have",
                where=f"--{role}-column",
                fix="inspect real data with --from PATH",
            )
    names = {role: answers.get(f"{role}_column") or role for role in roles}
    if len(set(names.values())) < len(names):
        raise UsageError("two columns have the same name", where="--question-column", fix="give each its own")
    rows = [json.dumps({names[role]: row[role] for role in roles}, ensure_ascii=False) for row in _INVENTED[family]]
    num_train = len(rows) - _NUM_INVENTED_TEST[family]
    columns = {role: names.get(role, "") for role in COLUMNS}
    mapping = {
        **columns,
        "form": "pair_texts" if family == "preference" else "text",
        "kinds": {"both": ["rl", "sft"]}.get(kind, [kind]),
        "final": "plain" if kind in ("rl", "both") else "",
        "solution": columns["answer"] if kind in ("sft", "both") else "",
        "keep": [],
    }
    if kind == "sft":
        mapping["answer"] = ""
    excerpt = {
        "train": [{"line": line} for line in rows[:num_train]],
        "test": [{"line": line} for line in rows[num_train:]],
    }
    assert change.names is not None
    change.next_steps.append(f"replace the invented rows in fixtures/{change.names.snake} by real ones")
    return _answers(mapping, excerpt, origin="")


# -------------------------------------------------------------------------------------------------------- from data


def _inspected(change: Change, kind: str) -> dict[str, Any]:
    path = Path(change.request.options["from"]).expanduser().absolute()
    report = _inspect(change, path, kind)
    where = change.request.options["from"]
    if report["mapping"] is None:
        fix = "name a column by its role, e.g. --question-column" if report["columns"] else "correct the rows"
        raise UsageError("; ".join(report["reasons"]), where=where, fix=fix, text=_columns(report))
    if report["num_fatal"]:
        fatal = [problem for problem in report["problems"] if problem["fatal"]]
        listed = "; ".join(f"{problem['place']}: {problem['problem']}" for problem in fatal[:_MAX_LISTED])
        more = report["num_fatal"] - len(fatal[:_MAX_LISTED])
        raise UsageError(
            f"{report['num_fatal']} rows contradict the schema: {listed}{f'; and {more} more' if more else ''}",
            where=f"{where}:{fatal[0]['place'].split()[-1]}",
            fix="correct the rows, or name other columns, e.g. with --answer-column",
            text=_columns(report),
        )
    excerpt = report["excerpt"]
    if not excerpt["train"] or not excerpt["test"]:
        raise UsageError(
            "no row is short enough to be packaged (1 MiB)", where=where, fix="name data with shorter rows"
        )
    change.warnings += _warnings(report)
    change.next_steps.append("make sure that the licence of the rows allows to commit the packaged ones")
    # Characters with a meaning in Python or Markdown become "_": the name goes into a docstring
    return _answers(report["mapping"], excerpt, origin=re.sub(r"[^A-Za-z0-9 ._()-]", "_", path.name)[:_MAX_NAME])


def _inspect(change: Change, path: Path, kind: str) -> dict[str, Any]:
    """Run the inspection, and return its report. Raises UsageError with what it said when it failed."""
    request = change.request
    module = [
        *("areal.dataset.inspection", str(path), "--json"),
        *("--kind", kind, "--split", request.options.get("split", "train")),
        *("--excerpt", str(NUM_TRAIN), str(NUM_TEST)),
    ]
    for role in COLUMNS:
        if request.answers.get(f"{role}_column"):
            module.append(f"--{role}-column={request.answers[f'{role}_column']}")
    if "keep_columns" in request.answers:
        kept = request.answers["keep_columns"]
        if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
            raise UsageError("expected a list of names", where="--keep-columns", fix='write e.g. ["level", "tests"]')
        module.append(f"--keep-columns={json.dumps(kept)}")
    where = request.options["from"]
    report = ask(change, module, what="the inspection", where=where, seconds=TIMEOUT_SECONDS)
    if not report["ok"]:
        raise UsageError(report["error"], where=where, fix="correct the path, the data or the columns")
    return report


def _columns(report: Mapping[str, Any]) -> str:
    """Return the columns of the data with their types and an example each, as an error shows them."""
    rows = [
        (f"  {column['name']}", ", ".join(column["types"]), printable(next(iter(column["examples"]), "")))
        for column in report["columns"][:_MAX_COLUMNS]
    ]
    more = len(report["columns"]) - len(rows)
    parts = [f"columns of the {report['rows']} rows that were read:", aligned(rows)] if rows else []
    return "\n".join([*parts, f"  and {more} more"] if more > 0 else parts)


def _warnings(report: Mapping[str, Any]) -> tuple[str, ...]:
    warnings = []
    if not report["complete"]:
        warnings.append(f"only the first {report['rows']} rows were checked")
    mapping = report["mapping"]
    used = {mapping[role] for role in COLUMNS} | set(mapping["keep"])
    unused = [column["name"] for column in report["columns"] if column["name"] not in used]
    if unused:
        warnings.append(f"columns that no loader reads: {', '.join(unused)}")
    if report["excerpt"]["train"][0]["line"] == report["excerpt"]["test"][0]["line"]:
        warnings.append("all rows ask the same, so the packaged test row is the packaged train row")
    if report["num_notes"]:
        first = next(problem for problem in report["problems"] if not problem["fatal"])
        notes = "1 note" if report["num_notes"] == 1 else f"{report['num_notes']} notes"
        warnings.append(f"{notes} about the rows, the first: {first['place']}: {first['problem']}")
    return tuple(warnings)


# ---------------------------------------------------------------------------------------------------------- answers


def _answers(
    mapping: Mapping[str, Any], excerpt: Mapping[str, Sequence[Mapping[str, str]]], *, origin: str
) -> dict[str, Any]:
    """Return what the template needs, as JSON values."""
    keep = [_printable_column(name) for name in mapping["keep"]]
    return {
        **{f"{role}_column": _printable_column(mapping[role]) for role in COLUMNS},
        "keep_columns": keep,
        "loaders": list(mapping["kinds"]),
        "form": mapping["form"],
        "final": mapping["final"] or "none",
        "origin": origin,
        "example": _example(json.loads(excerpt["train"][0]["line"])),
        "rows": {split: [row["line"] for row in rows] for split, rows in excerpt.items()},
        "finals": {split: [ascii(row["final"]) for row in rows if "final" in row] for split, rows in excerpt.items()},
    }


def _printable_column(name: str) -> str:
    """Return the name of a column, which comes from data. Raises UsageError when source code cannot hold it."""
    if name and (len(name) > _MAX_COLUMN or not _COLUMN.fullmatch(name)):
        raise UsageError(
            f"the column {name!a} has a name that cannot be written into source code",
            fix=f"rename it: letters, digits, and '_ .:/-' between them, at most {_MAX_COLUMN} characters",
        )
    return name


def _example(row: Mapping[str, Any]) -> list[str]:
    """Return a raw row for a docstring, one line for each column and each turn: JSON with long texts cut short, ASCII,
    and therefore without triple quotation marks."""
    lines: list[str] = []
    for name, value in row.items():
        start = f"{' ' if lines else '{'}{json.dumps(name)}: "
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = [f"     {_short(item, _MAX_EXAMPLE - 8)}," for item in value]
            kept = items if len(items) <= _MAX_ITEMS else [*items[: _MAX_ITEMS - 1], "     ...,", items[-1]]
            lines += [f"{start}[", *kept[:-1], f"{kept[-1][:-1]}],"]
        else:
            lines.append(f"{start}{_short(value, _MAX_EXAMPLE - len(start))},")
    return [*lines[:-1], f"{lines[-1][:-1]}}}"]


def _short(value: Any, width: int) -> str:
    for length in (100, 80, 60, 40, 20, 8):
        text = json.dumps(_cut(value, length))
        if len(text) <= width:
            return text
    return '"..."'


def _cut(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= length else f"{value[:length].rstrip()} ..."
    if isinstance(value, list):
        return [_cut(item, length) for item in value]
    if isinstance(value, dict):
        return {name: _cut(item, length) for name, item in value.items()}
    return value
