"""Checks the pattern of a regex reward before it is generated, and makes its worked cases.

    group = checked_pattern(r"Answer: (\\w+)", python)         # "1"; raises UsageError with what is wrong with it
    worked_cases(r"Answer: (\\w+)", "Answer: red", "text")     # [WorkedCase("Answer: red", "red", 1.0), ...]

A pattern runs on whatever a model writes, so one that can take for ever is refused: by its shape (a repeat of an
unbounded repeat), and by running it on hostile texts in a child process that is killed when it takes too long.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import warnings
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.new.generators.examples import source_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW: Final = 4096
"""Characters that the generated reward searches."""
_MAX_PATTERN: Final = 300
_MAX_EXAMPLE: Final = 300
_TRIAL_SECONDS: Final = 2
"""Processor time for all texts; the kernel ends a pattern that takes longer."""
_TRIAL_WALL_SECONDS: Final = 60.0
_SLOW_SECONDS: Final = 0.5
"""For one text of `WINDOW` characters."""
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?", re.ASCII)
_NOT_PLAIN: Final = re.compile(r"[^ -~\n]|[$\\{]")
_FULL_WIDTH: Final = str.maketrans({str(digit): chr(0xFF10 + digit) for digit in range(10)})
_TRIAL: Final = """
import json, re, resource, sys, time
pattern, texts, seconds = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
compiled = re.compile(pattern)
for text in texts:
    started = time.process_time()
    for match in compiled.finditer(text):
        pass
    print(time.process_time() - started, flush=True)
"""
_ADVICE: Final = "bound the inner repeat, as in {1,20}, or make it possessive, as in ++"


def checked_pattern(pattern: str, python: Path) -> str:
    """Return the group that holds the answer, as a Python literal ("1" or "'answer'").

    Raises UsageError for a pattern that does not compile, has no such group, matches the empty text, or is too slow.
    """
    where = "--pattern"
    if len(pattern) > _MAX_PATTERN:
        raise UsageError(f"the pattern has {len(pattern)} characters", where=where, fix=f"use at most {_MAX_PATTERN}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(pattern)
            tree = importlib.import_module("re._parser").parse(pattern)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise UsageError(f"the pattern does not compile: {error}", where=where, fix="correct it") from error
    if "answer" not in compiled.groupindex and compiled.groups != 1:
        raise UsageError(
            f"the pattern has {compiled.groups} groups, so it is not clear which holds the answer",
            where=where,
            fix="write one group (others as (?:...)), or name it: (?P<answer>...)",
        )
    if compiled.search("") or compiled.fullmatch(" "):
        raise UsageError(
            "the pattern finds an answer in an empty completion", where=where, fix="have it require a character"
        )
    if _nested(tree, inside=False):
        raise UsageError(
            "the pattern repeats something that is itself repeated without bound; some texts would take for ever",
            where=where,
            fix=_ADVICE,
        )
    _refuse_slow(pattern, python)
    return '"answer"' if "answer" in compiled.groupindex else "1"


def _nested(tree: Any, *, inside: bool) -> bool:
    """Check whether an unbounded repeat holds another. Possessive repeats and atomic groups never go back inside."""
    for operation, argument in tree:
        name = str(operation)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            unbounded = int(argument[1]) > WINDOW
            if (inside and unbounded) or _nested(argument[2], inside=inside or unbounded):
                return True
        elif any(_nested(part, inside=inside and name != "ATOMIC_GROUP") for part in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> Iterator[Any]:
    """Yield patterns inside the argument of an operation, however it nests them."""
    if type(argument).__name__ == "SubPattern":
        yield argument
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from _parts(item)


def _refuse_slow(pattern: str, python: Path) -> None:
    """Raise UsageError when the pattern takes too long for a hostile text, in a process that can be killed."""
    texts = list(_hostile_texts(pattern))
    command = [str(python), "-I", "-S", "-c", _TRIAL]
    try:
        trial = subprocess.run(
            command,
            input=json.dumps([pattern, texts, _TRIAL_SECONDS]),
            capture_output=True,
            text=True,
            timeout=_TRIAL_WALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the pattern could not be tried with {python}: {error}", where="--pattern") from error
    times = [float(line) for line in trial.stdout.splitlines()]
    slow = next((number for number, seconds in enumerate(times) if seconds > _SLOW_SECONDS), len(times))
    if slow < len(texts):
        raise UsageError(
            f"the pattern takes more than {_SLOW_SECONDS} s for {WINDOW} characters that begin with "
            f"{texts[slow][:12]!r}",
            where="--pattern",
            fix=_ADVICE,
        )


def _hostile_texts(pattern: str) -> Iterator[str]:
    """Yield long runs of what the pattern itself is about, each followed by something that no run contains."""
    letters = dict.fromkeys([*(letter for letter in pattern if letter.isalnum()), *"a0A _-.,:(\n\t"])
    for letter in list(letters)[:24]:
        yield letter * (WINDOW - 1) + "\0"
    words = re.findall(r"[A-Za-z]{2,}", pattern)[:4]
    for word in words:
        yield (word * WINDOW)[: WINDOW - 1] + "\0"
        yield f"{word}: " + "a" * (WINDOW - len(word) - 3) + "\0"
        yield f"{word} " + " " * (WINDOW - len(word) - 2) + "\0"
    for pair in ("ab", "a ", "0,", "a.", "0.", " \n"):
        yield (pair * WINDOW)[: WINDOW - 1] + "\0"


# --------------------------------------------------------------------------------------------------- worked cases


@dataclass(frozen=True, slots=True)
class WorkedCase:
    """A completion, the row's answer, and the score: what the text is, and how a test writes it."""

    completion: str
    answer: str
    score: float
    suffix: str = ""
    """Source of a long end of the completion, '"x" * 5000'."""


def worked_cases(pattern: str, example: str, comparison: str) -> list[list[str]]:
    """Return cases as Python literals (completion, answer, score), the example first.

    Raises UsageError when the pattern finds nothing to compare in the example.
    """
    if not example:
        raise UsageError("a pattern needs a completion that it finds an answer in", where="--example", fix="give one")
    if len(example) > _MAX_EXAMPLE:
        raise UsageError(f"has {len(example)} characters", where="--example", fix=f"use at most {_MAX_EXAMPLE}")
    compiled = re.compile(pattern)
    answer = _value(last_found(compiled, example), comparison)
    if answer is None:
        what = "a number" if comparison == "number" else "an answer"
        raise UsageError(
            f"the pattern does not find {what} in {example!r}", where="--example", fix="give a completion that it fits"
        )
    cases = []
    for case in dict.fromkeys(_intended(example, answer, comparison)):
        # Not every pattern refuses the bare answer: only what is true of this one becomes a case.
        text = case.completion + ("-" * 5000 if case.suffix else "")
        found = _value(last_found(compiled, text), comparison)
        same = found == case.answer
        if comparison == "number" and found is not None:
            same = Decimal(found) == Decimal(case.answer)
        if same == (case.score == 1.0):
            lines = source_lines(case.completion)
            if case.suffix:
                lines[-1] += f" + {case.suffix}"
            cases.append(["\n".join(lines), ascii(case.answer), repr(case.score)])
    return cases


def matches(pattern: str, text: str) -> list[str]:
    """Return the parts of a text that the pattern matches."""
    return [match[0] for match in re.finditer(pattern, text[-WINDOW:])]


def last_found(compiled: re.Pattern[str], text: str) -> str | None:
    """Return what the generated reward finds: the answer's group of the last match in the window."""
    found = None
    group: int | str = "answer" if "answer" in compiled.groupindex else 1
    for match in compiled.finditer(text[-WINDOW:]):
        found = match[group]
    return found


def _value(found: str | None, comparison: str) -> str | None:
    if comparison == "number":
        # The reward also reads currencies, LaTeX and other minus signs; worked cases stay with plain numbers.
        match = None if _NOT_PLAIN.search(found or "") else _NUMBER.search(found or "")
        return match[0].replace(",", "") if match else None
    return (found or "").strip() or None


def _intended(example: str, answer: str, comparison: str) -> Iterator[WorkedCase]:
    """Yield the cases that most patterns are about."""
    written, other = answer, f"not{answer}"
    if comparison == "number":
        # As it is written in the example: "1,080" for the number 1080.
        numbers = (match[0] for match in _NUMBER.finditer(example))
        written = next((text for text in numbers if text.replace(",", "") == answer), answer)
        other = str(Decimal(answer) + 1)
    wrong = example.replace(written, other)
    yield WorkedCase(example, answer, 1.0)
    yield WorkedCase(f"Let me think.\n{example}", answer, 1.0)
    yield WorkedCase(f"{example}\n", answer, 1.0)
    yield WorkedCase(f"{wrong}\n{example}", answer, 1.0)
    yield WorkedCase(f"{example}\n{wrong}", answer, 0.0)
    yield WorkedCase(example, other, 0.0)
    yield WorkedCase(wrong, answer, 0.0)
    yield WorkedCase(answer, answer, 0.0)
    yield WorkedCase("I do not know.", answer, 0.0)
    yield WorkedCase("", answer, 0.0)
    yield WorkedCase(" \t\n", answer, 0.0)
    yield WorkedCase(example.translate(_FULL_WIDTH), answer, 0.0)
    yield WorkedCase(example.swapcase(), answer, 0.0)
    yield WorkedCase(f"{example}\n", answer, 0.0, suffix='"-" * 5000')
