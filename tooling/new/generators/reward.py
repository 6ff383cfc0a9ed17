"""Makes a reward: checks what questions cannot say, and turns real completions into a test.

`prepare` checks patterns, parts of composites and files of examples before anything is rendered. `finish` runs the
rendered reward, in a child process of the repository's own interpreter, on every example: scores that were given have
to come out, scores that are missing are recorded. This package never imports the framework.

The parts of a composite ("gsm8k=1.0,my_package.rewards:short=0.2") are names of the reward registry of the framework
(the repository's own, else the installed one) or of the project, or paths to a function. Both are looked up in the
source text; nothing is imported. A run finds only the framework's names, so those of another project become paths. What
the repository does not contain cannot be checked, and is reported.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import keyword
import math
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ChecksFailedError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.kit.change.plan import read_inside
from tooling.kit.kind import CheckResult
from tooling.kit.template.kinds import read_settings
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
    """Return what the templates need beyond the questions. Raises UsageError for a pattern, parts or examples that
    cannot be used, with the option and, for examples, the line."""
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
    elif style == "composite":
        assert change.names is not None
        weights, more = checked_parts(str(request.answers.get("parts", "")), change.root, change.names.key)
        answers["weights"] = [[json.dumps(name), repr(weight)] for name, weight in weights.items()]
        warnings += more
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
    # Only the parts of a composite may look at the prompt; elsewhere it would fill the table and say nothing.
    return (read if style == "composite" else [replace(one, prompt="question") for one in read]), warnings


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


_WHERE: Final = "--parts"
_NAME: Final = re.compile(r"\w+", re.ASCII)
_PATH: Final = re.compile(r"\w+(?:\.\w+)*:\w+", re.ASCII)
_MAX_PART: Final = 100
_REGISTRY: Final = "reward/registry.py"


def checked_parts(text: str, root: Path, own: str) -> tuple[dict[str, float], list[str]]:
    """Return weights by name or path, and warnings about paths that cannot be checked.

    Raises UsageError for anything that is not a list of known rewards with weights.
    """
    parts = _parsed(text)
    source = read_inside(root, f"areal/{_REGISTRY}")
    if source is None:  # the framework is not in the repository: what a run finds is that of the installed one
        found = importlib.util.find_spec("areal")  # of a package at the top: imports nothing
        places = [Path(place, _REGISTRY) for place in (found and found.submodule_search_locations) or ()]
        source = next((place.read_bytes() for place in places if place.is_file()), b"")
    frameworks = _table(source)
    projects = _table(read_inside(root, f"{read_settings(root).package_path}/{_REGISTRY}") or b"")
    known = {**projects, **frameworks}
    weights: dict[str, float] = {}
    warnings: list[str] = []
    for name, weight in parts.items():
        if name == own or known.get(name, name).endswith(f":{own}_reward"):
            raise UsageError(f"{name!r} is the reward itself", where=_WHERE, fix="leave it out")
        if _NAME.fullmatch(name):
            if name not in known:
                fix = (
                    did_you_mean(name, known) or f"registered are: {', '.join(sorted(known)) or 'none'}; or give a path"
                )
                raise UsageError(f"no reward {name!r} is registered", where=_WHERE, fix=fix)
        elif not _PATH.fullmatch(name) or len(name) > _MAX_PART:
            raise UsageError(
                f"{name!r} is neither a name nor a path",
                where=_WHERE,
                fix="write e.g. gsm8k or my_package.rewards:short",
            )
        elif not _has_function(name, root):
            warnings.append(f"--parts: {name} is not in this repository, so it was not checked")
        resolved = name if name in frameworks else projects.get(name, name)
        if resolved in weights:
            raise UsageError(f"{resolved!r} comes twice", where=_WHERE, fix="add its weights up")
        weights[resolved] = weight
    return weights, warnings


def _parsed(text: str) -> dict[str, float]:
    """Return the weights that "gsm8k=1.0,exact=0.2" or a JSON object gives."""
    pairs: Any = []
    if text.lstrip().startswith("{"):
        try:
            pairs = json.loads(text, object_pairs_hook=list)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(f"is not JSON: {error}", where=_WHERE, fix='write e.g. {"gsm8k": 1.0}') from error
    elif text.strip():
        pairs = [tuple(map(str.strip, item.rpartition("=")[::2])) for item in text.split(",")]
    parts: dict[str, float] = {}
    for name, given in pairs:
        if name in parts:
            raise UsageError(f"{name!r} comes twice", where=_WHERE, fix="add its weights up")
        try:
            weight = float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else math.nan
        except (ValueError, OverflowError):
            weight = math.nan
        if not name or not math.isfinite(weight) or weight == 0.0:
            problem = f"part {name!r} has weight {given!r}, expected a number other than 0"
            raise UsageError(problem, where=_WHERE, fix="write name=weight")
        parts[name] = weight
    if not parts:
        raise UsageError("a composite has no parts", where=_WHERE, fix="write e.g. gsm8k=1.0,exact=0.2")
    return parts


def _has_function(path: str, root: Path) -> bool:
    """Check that the repository has the path's function; False when it has nothing of its package. Raises UsageError
    when it has the package without the function."""
    module, _, function = path.partition(":")
    file = module.replace(".", "/")
    source = read_inside(root, f"{file}.py") or read_inside(root, f"{file}/__init__.py")
    if source is None:
        if not (root / module.split(".")[0]).exists():
            return False
        raise UsageError(f"there is no module {module!r}", where=_WHERE, fix=f"expected {file}.py")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file}.py cannot be read: {error}", where=_WHERE, fix="correct it first") from error
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    names += [target.id for target in targets if isinstance(target, ast.Name)]
    if function not in names:
        fix = did_you_mean(function, names) or f"it defines: {', '.join(names) or 'nothing'}"
        raise UsageError(f"{module} defines no {function!r}", where=_WHERE, fix=fix)
    return True


def _table(source: bytes) -> dict[str, str]:
    """Return text keys and values of every dict literal at the top level of a module; {} when it cannot be read."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for statement in body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        for key, item in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(item, ast.Constant):
                found[str(key.value)] = str(item.value)
    return found
