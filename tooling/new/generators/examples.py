"""Reads rows of real completions (`--from-examples FILE.jsonl`) and turns them into the table of a generated test.

    {"completion": "... #### 72", "answer": "72", "prompt": "8*9=", "score": 1.0}

A row has `completion` (or `completions`, a text or a list of them), the columns of its dataset row, maybe `prompt`, and
maybe a score in one of `SCORE_KEYS` (a number, or true and false; a list of them for a list of completions). Scores
that are missing are recorded later, by running the reward (`tooling.new.generators.reward`).

Values become lines of Python source that fit a line, since templates cannot quote or break texts themselves:

    source_lines("a" * 200)      # ["(", "    'aaaa...'", "    'aaaa...'", ")"]

The source is ASCII, so that neither encoding nor look-alike letters matter; `ruff format` gives it its final quotes.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


SCORE_KEYS: Final = ("score", "reward", "label")
MAX_CANDIDATES: Final = 128
"""Rows that are scored to choose from."""
MAX_TABLE_LINES: Final = 440
"""Lines of all examples in the generated test, whose own limit is 600."""
_MAX_TEXT: Final = 4000
"""Characters of a row's texts; longer ones are left out rather than cut, since a cut completion scores differently."""
_MAX_KEY: Final = 40
_MAX_FILE_BYTES: Final = 512 << 20
_OPTION: Final = "--from-examples"


@dataclass(frozen=True, slots=True)
class Example:
    """One completion with the columns of its row."""

    line: int
    prompt: str
    completion: str
    row: Mapping[str, Any]
    score: float | None
    """None until it is recorded."""
    origin: str
    """"labelled" or "recorded"."""

    def to_answer(self) -> dict[str, Any]:
        """Return it as the template and the receipt hold it: texts as lines of Python source."""
        return {
            "line": self.line,
            "prompt": source_lines(self.prompt),
            "completion": source_lines(self.completion),
            "row": source_lines(dict(self.row)),
            "score": 0.0 if self.score is None else self.score,
            "origin": self.origin,
        }

    @property
    def num_lines(self) -> int:
        """Lines in the generated table."""
        answer = self.to_answer()
        return 5 + sum(len(answer[key]) for key in ("prompt", "completion", "row"))


def from_answer(answer: Mapping[str, Any]) -> Example:
    """Return the example of an answer of `to_answer`, maybe from a receipt. Raises UsageError for anything else."""
    try:
        texts = {key: from_source(answer[key]) for key in ("prompt", "completion", "row")}
        score = None if answer["origin"] == "recorded" else float(answer["score"])
        return Example(line=int(answer["line"]), score=score, origin=str(answer["origin"]), **texts)
    except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise UsageError(f"is not an example: {error}", where="examples", fix=f"give {_OPTION} again") from error


def read_examples(file: str) -> tuple[list[Example], list[str]]:
    """Return up to `MAX_CANDIDATES` different rows, spread over the given scores, and warnings about those left out.

    Raises UsageError with file and line for anything that is not a row.
    """
    examples: list[Example] = []
    seen: set[str] = set()
    too_long: list[int] = []
    for number, row in _rows(file):
        for example in _of_row(row, number, f"{file}:{number}"):
            key = json.dumps([example.prompt, example.completion, dict(example.row)], sort_keys=True)
            if len(key) > _MAX_TEXT:
                too_long.append(number)
            elif key not in seen:
                seen.add(key)
                examples.append(example)
    if not examples:
        what = f"all rows are longer than {_MAX_TEXT} characters" if too_long else "there are no rows"
        raise UsageError(what, where=file, fix="give rows with a completion")
    warnings = []
    if too_long:
        listed = ", ".join(map(str, too_long[:10])) + (", ..." if len(too_long) > 10 else "")
        warnings.append(f"{file}: {len(too_long)} rows with more than {_MAX_TEXT} characters left out (lines {listed})")
    return spread(examples, MAX_CANDIDATES), warnings


def spread(examples: Sequence[Example], limit: int) -> list[Example]:
    """Return at most `limit` examples, in turn from each score so that rare outcomes are kept; in the file's order."""
    by_score: dict[float | None, list[Example]] = defaultdict(list)
    for example in examples:
        by_score[example.score].append(example)
    chosen: list[Example] = []
    for depth in range(max(map(len, by_score.values()), default=0)):
        chosen += [group[depth] for group in by_score.values() if depth < len(group)]
    return sorted(chosen[:limit], key=lambda example: example.line)


def fitting(examples: Sequence[Example], limit: int) -> list[Example]:
    """Return at most `limit` examples whose table stays below `MAX_TABLE_LINES`, as `spread` chooses them."""
    for count in range(min(limit, len(examples)), 0, -1):
        chosen = spread(examples, count)
        if sum(example.num_lines for example in chosen) <= MAX_TABLE_LINES:
            return chosen
    return []


def recorded(example: Example, score: float) -> Example:
    """Return the example with the score that the reward gave it."""
    return replace(example, score=score, origin="recorded")


def _rows(file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError(f"has more than {_MAX_FILE_BYTES >> 20} MB", where=file, fix="give fewer rows")
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=file, fix="name a file of JSON lines") from error
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_refuse_constant)
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise UsageError(f"is not JSON: {error}", where=where, fix="write one object per line") from error
        if not isinstance(row, dict):
            raise UsageError(f"is a {type(row).__name__}", where=where, fix="write one object per line")
        yield number, row


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON value")


def _of_row(row: dict[str, Any], number: int, where: str) -> Iterator[Example]:
    completions = _completions(row, where)
    scores = _scores(row, len(completions), where)
    prompt = row.get("prompt", "question")
    if not isinstance(prompt, str):
        raise UsageError(f"`prompt` is a {type(prompt).__name__}", where=where, fix="write it as text")
    columns = {
        key: value for key, value in row.items() if key not in {"completion", "completions", "prompt", *SCORE_KEYS}
    }
    for key in columns:
        if len(key) > _MAX_KEY or key in {"prompt_ids", "completion_ids", "messages"}:
            raise UsageError(f"a column cannot be called {key[:50]!r}", where=where, fix="rename it or leave it out")
    for completion, score in zip(completions, scores, strict=True):
        origin = "recorded" if score is None else "labelled"
        yield Example(number, prompt, completion, columns, score, origin)


def _completions(row: dict[str, Any], where: str) -> list[str]:
    given = [row[key] for key in ("completion", "completions") if key in row]
    if len(given) != 1:
        what = "has both `completion` and `completions`" if given else "has no `completion`"
        raise UsageError(
            f"{what}; its columns are {', '.join(row) or '(none)'}"[:300], where=where, fix="give one of them"
        )
    texts = given[0] if isinstance(given[0], list) else [given[0]]
    if not all(isinstance(text, str) for text in texts):
        raise UsageError("a completion is not text", where=where, fix="write texts")
    return texts


def _scores(row: dict[str, Any], count: int, where: str) -> list[float | None]:
    given = [(key, row[key]) for key in SCORE_KEYS if row.get(key) is not None]
    if not given:
        return [None] * count
    key, value = given[0]
    values = value if isinstance(value, list) else [value] * count
    if len(given) > 1 or len(values) != count:
        fix = "give one score for each completion"
        raise UsageError(f"has {len(values)} scores in {', '.join(name for name, _ in given)}", where=where, fix=fix)
    for item in values:
        # An integer may be too large for a number of the table.
        if not isinstance(item, bool | int | float) or not -sys.float_info.max <= item <= sys.float_info.max:
            raise UsageError(f"`{key}` is {item!r:.50}", where=where, fix="write a number, true or false")
    return [float(item) for item in values]


WIDTH: Final = 84
"""Characters of one piece; the rest of the line is for indentation and punctuation."""


def source_lines(value: Any) -> list[str]:
    """Return the lines of an expression for a JSON value; broken up where it would be longer than `WIDTH`."""
    whole = ascii(value)
    if len(whole) <= WIDTH:
        return [whole]
    if isinstance(value, str):
        return ["(", *(f"    {piece}" for piece in text_pieces(value)), ")"]
    if isinstance(value, dict):
        return ["{", *_items((f"{key!a}: ", item) for key, item in value.items()), "}"]
    if isinstance(value, list):
        return ["[", *_items(("", item) for item in value), "]"]
    return [whole]


def from_source(lines: Sequence[str]) -> Any:
    """Return the value that `source_lines` was given. Raises ValueError or SyntaxError for anything but literals."""
    return ast.literal_eval("\n".join(lines))


def text_pieces(text: str) -> list[str]:
    """Return literals that Python joins to the text, broken after line ends, else between words, else anywhere."""
    pieces: list[str] = []
    rest = text
    while rest:
        width, size = 0, len(rest)
        for number, letter in enumerate(rest):
            width += len(ascii(letter)) - 2
            if width > WIDTH - 2:
                between_words = rest.rfind(" ", number // 2, number) + 1
                size = between_words or number
                break
            if letter == "\n":
                size = number + 1
                break
        pieces.append(ascii(rest[:size]))
        rest = rest[size:]
    return pieces or ["''"]


def _items(pairs: Iterator[tuple[str, Any]]) -> Iterator[str]:
    for key, item in pairs:
        lines = source_lines(item)
        lines[0] = key + lines[0]
        lines[-1] += ","
        yield from (f"    {line}" for line in lines)
