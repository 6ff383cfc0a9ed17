"""Where answers to a template's questions come from: options, a JSON file, and a person at a terminal.

    add_questions(group, kind)                    # --style {exact,boxed}, --strict/--no-strict, --from PATH
    answers, options = read_answers(arguments)
    answers = ask_missing(questions, answers)     # only with a terminal

Texts become typed values here; whether a value is allowed is `tooling.kit.template.questions.check_answers`' matter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.report import printable

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from tooling.kit.kind import OptionEntry
    from tooling.kit.template.kinds import KindSource
    from tooling.kit.template.questions import Question

_ANSWER, _OPTION = "answer ", "option "
"""Start of the names in a Namespace; with the space they cannot meet the name of another option."""
_STRUCTURED = ("json", "yaml")
ELSEWHERE = ("--all",)
"""Options of `update`, which takes the questions of a kind too."""
MAX_ATTEMPTS = 3
"""How often a person is asked the same question."""


def asked(questions: Sequence[Question]) -> list[Question]:
    """Questions that a caller may answer; the others are computed by the template."""
    return [question for question in questions if not question.computed]


def flag(name: str) -> str:
    """The option of a question: "answer_column" -> "--answer-column"."""
    return f"--{name.replace('_', '-')}"


def name_option(error: UsageError, questions: Sequence[Question]) -> None:
    """Where an error is about a question, say it by the option: "answer_column" -> "--answer-column"."""
    if any(error.where == question.name for question in asked(questions)):
        error.where = flag(error.where)


def add_questions(group: argparse._ArgumentGroup, kind: KindSource) -> None:
    """Add an option for each question and each manifest option. `group` belongs to a parser that has all its other
    options: a question of the same name raises UsageError."""
    from tooling.kit.template.manifest import load_manifest
    from tooling.kit.template.questions import load_questions

    questions = load_questions(kind.folder)
    group.set_defaults(questions=questions)
    for question in asked(questions):
        if flag(question.name) in ELSEWHERE:
            raise _name_taken(kind, f"question {question.name!r}", flag(question.name))
        try:
            _add_question(group, question)
        except argparse.ArgumentError as error:
            raise _name_taken(kind, f"question {question.name!r}", flag(question.name)) from error
    for option in load_manifest(kind.folder).options:
        try:
            _add_option(group, option)
        except argparse.ArgumentError as error:
            raise _name_taken(kind, f"option {option.name!r}", f"--{option.name}") from error


def read_answers(arguments: Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Given answers, typed, and given manifest options, of a parser with `add_questions`. Options win over the file of
    `--answers`. Raises UsageError naming the option whose text is not a value of the question's type."""
    from tooling.kit.template.questions import parse_answer

    answers = answers_file(arguments.answers) if arguments.answers is not None else {}
    questions = {question.name: question for question in getattr(arguments, "questions", ())}
    options = {}
    for name, value in vars(arguments).items():
        if value is None:
            continue
        if name.startswith(_ANSWER):
            question = questions[name.removeprefix(_ANSWER)]
            text = _text(question, value)
            answers[question.name] = parse_answer(question, text) if isinstance(text, str) else text
        elif name.startswith(_OPTION):
            options[name.removeprefix(_OPTION)] = value
    return answers, options


def may_ask(*, as_json: bool) -> bool:
    """Whether a person sits there: questions go to stderr and answers come from stdin, so both must be terminals."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask_name(kind: KindSource) -> str:
    """Ask for the unit's name. Raises UsageError when there is no answer."""
    for _ in range(MAX_ATTEMPTS):
        if name := _ask(f"name of the new {kind.name}: "):
            return name
    raise UsageError("no name was given")


def ask_missing(questions: Sequence[Question], answers: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the required questions that have no answer yet; all answers. Raises UsageError when there is none."""
    found = dict(answers)
    for question in asked(questions):
        if question.required and question.name not in found and _applies(question, questions, found):
            found[question.name] = _ask_question(question)
    return found


def _applies(question: Question, questions: Sequence[Question], answers: Mapping[str, Any]) -> bool:
    """Whether a question is asked, as far as answers and plain defaults tell; else the template's own check will."""
    from tooling.kit.template.expressions import holds

    defaults = {other.name: other.default for other in questions if not other.required}
    try:
        return holds(question.when, {**defaults, **answers}, where=f"{question.name}: when")
    except UsageError:
        return False


def _ask_question(question: Question) -> Any:
    from tooling.kit.template.questions import parse_answer

    said = f" [{', '.join(map(str, question.choices))}]" if question.choices else ""
    for _ in range(MAX_ATTEMPTS):
        text = _ask(f"{question.name}{said} - {question.help}: ")
        if not text:
            continue
        try:
            answer = parse_answer(question, text)
        except UsageError as error:
            sys.stderr.write(f"{printable(str(error))}\n")
            continue
        if not question.choices or all(item in question.choices for item in _listed(answer)):
            return answer
        sys.stderr.write(f"{printable(repr(text))} is not a choice\n")
    raise UsageError(f"the question {question.name!r} was not answered", where=flag(question.name))


def _listed(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def _ask(prompt: str) -> str:
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        raise UsageError("the input ended before all questions were answered")
    return line.strip()


def _add_question(group: argparse._ArgumentGroup, question: Question) -> None:
    name, destination = flag(question.name), _ANSWER + question.name
    text = _escaped(_help(question))
    if question.type == "bool" and not question.multiselect:
        group.add_argument(name, dest=destination, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    group.add_argument(name, dest=destination, metavar=_metavar(question), help=text)


def _add_option(group: argparse._ArgumentGroup, option: OptionEntry) -> None:
    name, destination, text = f"--{option.name}", _OPTION + option.name, _escaped(option.help)
    if option.metavar:
        group.add_argument(name, dest=destination, metavar=option.metavar, help=text)
    else:
        group.add_argument(name, dest=destination, action="store_const", const="", help=text)


def _metavar(question: Question) -> str:
    if question.choices:
        return "{" + ",".join(map(str, question.choices)) + "}"
    return "JSON|@FILE" if question.type in _STRUCTURED else question.type.upper()


def _help(question: Question) -> str:
    """When it is asked, what it is about, what holds without an answer: "[style regex] The pattern (default: .+)"."""
    from tooling.kit.template.questions import ELSE, occasion

    when = occasion(question.when)
    asked_when = f"[{when}] " if when else ""
    if question.required:
        default = "required" + (" where it is asked" if when == ELSE else f" for {when}" if when else "")
    else:
        default = f"default: {_shown(question.default)}"
    return f"{asked_when}{question.help} ({default})".strip()


def _shown(value: Any) -> str:
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return "depends on other answers"
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def _escaped(text: str) -> str:
    """argparse formats help texts with `%`."""
    return text.replace("%", "%%")


def _text(question: Question, value: Any) -> Any:
    """The text of an option; for structured values "@FILE" stands for the file's content."""
    if question.type not in _STRUCTURED or not isinstance(value, str) or not value.startswith("@"):
        return value
    return _read(value[1:], flag(question.name))


def answers_file(name: str) -> dict[str, Any]:
    """The object of answers in a JSON file ("-": stdin). Raises UsageError when it is none."""
    text = sys.stdin.read() if name == "-" else _read(name, "--answers")
    try:
        answers = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}", where="--answers", fix="write an object of answers") from error
    if not isinstance(answers, dict):
        raise UsageError(
            f"{name} holds a {type(answers).__name__}, expected an object",
            where="--answers",
            fix='write e.g. {"style": "exact"}',
        )
    return answers


def _read(name: str, where: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{name} cannot be read: {reason}", where=where, fix="name a readable text file") from error


def _name_taken(kind: KindSource, what: str, option: str) -> UsageError:
    return UsageError(
        f"the {what} of the template would become {option}, which areal-new uses itself",
        where=os.fspath(kind.folder / "copier.yml"),
        fix="give it another name in the template",
    )
