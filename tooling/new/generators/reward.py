"""Makes a reward: checks what questions cannot say, and turns real completions into a test.

`prepare` checks patterns and files of examples before anything is rendered. `finish` runs the rendered reward, in a
child process of the repository's own interpreter, on every example: scores that were given have to come out, scores
that are missing are recorded. This package never imports the framework.
"""

from __future__ import annotations

import ast
import json
import keyword
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ChecksFailedError, UsageError
from tooling.kit.kind import CheckResult
from tooling.new.generators import examples as table
from tooling.new.generators.examples import text_pieces
from tooling.new.generators.patterns import checked_pattern, last_found, matches, worked_cases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.new.change import Change, UnitRequest
    from tooling.new.generators.examples import Example


DEFAULT_PATTERN: Final = "[Aa]nswer:[ \\t]*(.+)"
DEFAULT_EXAMPLE: Final = "Answer: 72"
DEFAULT_RUBRIC: Final = "Is the answer correct, complete and to the point?"
DEFAULT_EXAMPLES: Final = 32
_MAX_EXAMPLES: Final = 64
_SCORING_SECONDS: Final = 300.0
_MAX_LISTED: Final = 5


def prepare(change: Change) -> dict[str, Any]:
    """Return what the templates need beyond the questions. Raises UsageError for a pattern or examples that cannot be
    used, with the option and, for examples, the line."""
    request = change.request
    style = request.answers.get("style", "exact")
    for question in ("answer_column", "tests_column"):  # columns become keyword arguments in the generated test
        if keyword.iskeyword(str(request.answers.get(question, ""))):
            fix = "rename the column in the dataset"
            raise UsageError(f"{request.answers[question]!r} is a keyword of Python", where=question, fix=fix)
    read, warnings = _examples(request, style)
    answers: dict[str, Any] = {"examples": [example.to_answer() for example in read]} if read else {}
    if read:
        text = request.options.get("max-examples", str(DEFAULT_EXAMPLES))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_EXAMPLES:
            raise UsageError(
                f"{text!r} is not a number of rows", where="--max-examples", fix=f"use 1 to {_MAX_EXAMPLES}"
            )
        answers["max_examples"] = int(text)
        # For a comment: no folders, no characters that end or disguise a line.
        name = Path(request.options["from-examples"]).name
        answers["examples_file"] = "".join(c if c.isascii() and c.isprintable() else "?" for c in name)[:60]
    if style == "regex":
        answers |= _regex(change, read)
    elif style == "llm_judge":
        answers["rubric_lines"] = text_pieces(str(request.answers.get("rubric", DEFAULT_RUBRIC)).strip())
    change.warnings += warnings
    return answers


def finish(change: Change, answers: Mapping[str, Any], folder: Path) -> Mapping[str, Any] | None:
    """Return the scores of the examples, from the rendered reward in `folder`. None without examples.

    Raises ChecksFailedError when a given score does not come out, UsageError when the reward raises for a row; both
    name the lines.
    """
    examples = answers.get("examples") or []
    if not examples:
        return None
    read = [table.from_answer(example) for example in examples]
    scored = _compared(read, _scores(change, folder, read), str(answers.get("examples_file") or "examples"))
    chosen = table.fitting(scored, int(answers.get("max_examples", DEFAULT_EXAMPLES)))
    return {"examples": [example.to_answer() for example in chosen]}


def _examples(request: UnitRequest, style: str) -> tuple[list[Example], list[str]]:
    file = request.options.get("from-examples", "")
    if not file:
        if "max-examples" in request.options:
            raise UsageError(
                "only limits --from-examples", where="--max-examples", fix="add --from-examples FILE.jsonl"
            )
        return [], []
    if style == "llm_judge":
        raise UsageError(
            "a judge's scores are not the same every time, so they cannot be a test's table",
            where="--from-examples",
            fix="leave it out for --style llm_judge",
        )
    read, warnings = table.read_examples(file)
    # No style looks at the prompt; it would fill the table and say nothing.
    return [replace(one, prompt="question") for one in read], warnings


def _regex(change: Change, read: list[Example]) -> dict[str, Any]:
    """Return what the template of a pattern needs: a checked pattern, an example that it fits, and worked cases."""
    request = change.request
    pattern = str(request.answers.get("pattern") or DEFAULT_PATTERN)
    group = checked_pattern(pattern, change.python)
    example = str(request.answers.get("example") or "")
    if not example and pattern == DEFAULT_PATTERN:
        example = DEFAULT_EXAMPLE
    if not example:
        # What matched is enough of an example; a pattern that looks around itself needs the whole completion.
        found = (text for one in read for text in (*matches(pattern, one.completion), one.completion))
        example = min((text for text in found if last_found(re.compile(pattern), text)), key=len, default="")
    comparison = str(request.answers.get("comparison", "text"))
    literal = f'r"{pattern}"'  # a raw string where that is possible: it is what a person would write
    plain = pattern.isascii() and pattern.isprintable() and '"' not in pattern and not pattern.endswith("\\")
    if not plain or len(literal) > 84 or ast.literal_eval(literal) != pattern:
        literal = "\n".join(text_pieces(pattern))
    return {
        "pattern": pattern,
        "example": example,
        "pattern_literal": literal,
        "group": group,
        "cases": worked_cases(pattern, example, comparison),
    }


# ---------------------------------------------------------------------------------------------------------- scoring


def _scores(change: Change, folder: Path, read: list[Example]) -> list[dict[str, Any]]:
    """Run the rendered reward on each example in a child process, and return what it says."""
    assert change.names is not None
    snake = change.names.snake
    file = next(iter(sorted(folder.rglob(f"reward/{snake}.py"))), None)
    if file is None:
        raise UsageError(f"the template renders no reward/{snake}.py", where="template", fix="correct the template")
    request = {
        "root": str(change.root),
        "file": str(file),
        "function": f"{snake}_reward",
        "rows": [{"prompt": one.prompt, "completion": one.completion, "row": dict(one.row)} for one in read],
    }
    script = Path(__file__).with_name("score_rows.py")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [str(change.python), "-P", str(script)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_SCORING_SECONDS,
            check=False,
            cwd=change.root,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        message = f"scoring {len(read)} examples took more than {_SCORING_SECONDS:g} s"
        raise UsageError(message, where="--from-examples", fix="give fewer or shorter rows") from error
    except OSError as error:
        raise UsageError(f"{change.python} cannot be started: {error.strerror}", where="--from-examples") from error
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    if len(outcomes) != len(read):
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UsageError(
            f"the generated reward could not be run on the examples: {reason}",
            where="--from-examples",
            fix="make `areal` importable for the repository's interpreter",
        )
    return outcomes


def _compared(read: list[Example], outcomes: list[dict[str, Any]], file: str) -> list[Example]:
    """Return the examples with their scores. Raises for rows that the reward refuses or scores otherwise."""
    raised = [(one, outcome["error"]) for one, outcome in zip(read, outcomes, strict=True) if "error" in outcome]
    if raised:
        one, error = raised[0]
        raise UsageError(
            f"the reward raises for {len(raised)} of {len(read)} rows; the first says {error}",
            where=f"{file}:{one.line}",
            fix="correct the rows, or choose the style and columns that fit them",
        )
    pairs = list(zip(read, (float(outcome["value"]) for outcome in outcomes), strict=True))
    wrong = [(one, value) for one, value in pairs if one.score is not None and abs(one.score - value) > 1e-6]
    if wrong:
        lines = [f"line {one.line}: expected {one.score:g}, got {value:g}" for one, value in wrong]
        if len(lines) > _MAX_LISTED:
            lines[_MAX_LISTED:] = [f"and {len(lines) - _MAX_LISTED} more"]
        raise ChecksFailedError(
            f"the reward disagrees with {len(wrong)} of {len(read)} given scores",
            where=f"{file}:{wrong[0][0].line}",
            fix="choose the style that these scores came from, or correct them",
            checks=(CheckResult("examples", ok=False, seconds=0.0, detail="\n".join(lines)),),
        )
    return [one if one.score is not None else table.recorded(one, value) for one, value in pairs]
