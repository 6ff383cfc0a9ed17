"""Reads the questions of a template from copier.yml, checks answers, and describes them as a JSON schema.

    questions = load_questions(folder)
    answers = check_answers(questions, {"style": "boxed"}, context)    # complete: defaults are filled in
    parsed("int", "3", "workers")        # 3; from the command line
    typed("float", 3, "weight")          # 3.0; from JSON, where types are there already
    cast("str", 3, "label")              # "3"; as a template's author wrote it
    occasion("{{ style == 'regex' }}")   # "style regex"; the `when` of a question in words

Copier asks people and checks what they type; here nobody is asked, so defaults, conditions and validators are evaluated
by the same rules (tests compare both). Keys that start with "_" are settings of the renderer and are read there.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.kit.names import NAME_FIELDS
from tooling.kit.template.expressions import FALSE_WORDS, TRUE_WORDS, evaluate, holds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from tooling.kit.kind import OptionEntry


TYPES = ("bool", "float", "int", "json", "path", "str", "yaml")


def parsed(kind: str, text: str, where: str) -> Any:
    """Return a value of the type, from text."""
    try:
        if kind == "bool":
            folded = text.strip().lower()
            if folded not in TRUE_WORDS | FALSE_WORDS:
                raise ValueError(text)
            return folded in TRUE_WORDS
        if kind == "int":
            return int(text)
        if kind == "float":
            if not math.isfinite(float(text)):
                raise ValueError("not a finite number")
            return float(text)
        if kind == "json":
            return json.loads(text, parse_constant=_refuse_constant)
        if kind == "yaml":
            import yaml

            try:
                return yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(str(error)) from error
        return text
    except ValueError as error:
        said = f": {error}" if kind in {"json", "yaml"} else ""
        raise UsageError(f"{text!r} is not of type {kind}{said}", where=where, fix=f"expected {kind}") from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def typed(kind: str, value: Any, where: str) -> Any:
    """Return a given value, which has to be of the type already (an int passes as a float)."""
    fits: tuple[type, ...] = {"bool": (bool,), "int": (int,), "float": (float, int)}.get(kind, (str,))
    if kind in {"json", "yaml"}:
        return value
    if not isinstance(value, fits) or (isinstance(value, bool) and kind != "bool"):
        raise UsageError(f"got {value!r} of type {type(value).__name__}", where=where, fix=f"expected {kind}")
    return parsed("float", str(value), where) if kind == "float" else value


def cast(kind: str, value: Any, where: str) -> Any:
    """Return a value as the template's author meant it: text is parsed, numbers become text where text is asked for."""
    if isinstance(value, str):
        return parsed(kind, value, where)
    if kind in {"str", "path"} and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if kind == "bool" and isinstance(value, (int, float)):
        return bool(value)
    return typed(kind, value, where)


ELSE: Final = "depends on other answers"
"""Said of what has no short form."""


def condition(when: str | bool) -> str:
    """Return the expression of a `when` without its braces; "" for a question that is always (or never) asked."""
    if isinstance(when, bool):
        return ""
    text = when.strip()
    inner = text.removeprefix("{{").removesuffix("}}").strip()
    return inner if "{" not in inner and "}" not in inner else text


def occasion(when: str | bool) -> str:
    """Return `condition` for people: "style regex", "style a or b", "style other than a or b".

    ELSE when it is not a simple comparison, "" for a question that is always asked.
    """
    text = condition(when)
    if not text:
        return ""
    try:
        return _phrase(ast.parse(text, mode="eval").body) or ELSE
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ELSE


def _phrase(node: ast.expr) -> str:
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Name)):
        return ""
    right = node.comparators[0]
    items = right.elts if isinstance(right, ast.List | ast.Tuple) else [right]
    constants = [item.value for item in items if isinstance(item, ast.Constant) and item.value not in (None, "")]
    if not constants or len(constants) < len(items):
        return ""
    values = " or ".join(map(str, constants))
    if isinstance(node.ops[0], ast.Eq | ast.In):
        return f"{node.left.id} {values}"
    return f"{node.left.id} other than {values}" if isinstance(node.ops[0], ast.NotEq | ast.NotIn) else ""


FILE = "copier.yml"
CONTEXT_NAMES = (*NAME_FIELDS, "kind", "package", "package_path", "tests")
"""What every template knows besides answers; no question may be called so."""
_QUESTION = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_BUILT_IN = frozenset({"make_secret", "now"})
"""Copier's own variables, and the names it refuses for questions."""
_ATTRIBUTES = frozenset(
    {"choices", "default", "help", "multiselect", "required", "secret", "type", "validator", "when"}
)
_PROMPT_ATTRIBUTES = frozenset({"ask", "multiline", "placeholder", "qmark"})
"""Say how a person is asked; read and not used."""


class _Missing:
    """Marks "no default"; None is an answer of json and yaml questions."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Question:
    """One question. Example: Question("style", "str", default="exact", choices=("exact", "boxed"))."""

    name: str
    type: str = "str"
    default: Any = MISSING
    """As written: text may hold Jinja expressions over names and earlier answers."""
    choices: tuple[Any, ...] = ()
    help: str = ""
    multiselect: bool = False
    validator: str = ""
    """A Jinja template that renders nothing for a good answer, and what is wrong with a bad one."""
    when: str | bool = True
    """Whether the question is asked; false marks a computed value."""

    @property
    def required(self) -> bool:
        """Check whether somebody has to answer it (as long as `when` holds)."""
        return self.default is MISSING

    @property
    def computed(self) -> bool:
        """Check whether it is never asked: a value made of others, or by a generator page."""
        return self.when is False


# ---------------------------------------------------------------------------------------------------------- reading


def load_questions(folder: Path) -> list[Question]:
    """Return the questions of a template, in their order. Raises UsageError naming the file and an odd question."""
    where = os.fspath(folder / FILE)
    return [
        _question(name, details, f"{where}: {name}")
        for name, details in load_configuration(folder).items()
        if not name.startswith("_")
    ]


def load_configuration(folder: Path) -> dict[str, Any]:
    """Return copier.yml as it is, settings included; {} when it is empty.

    Raises UsageError when it is missing, not YAML, has a key twice, or uses YAML tags (copier's `!include` among them).
    """
    import yaml

    path = folder / FILE
    try:
        loaded = yaml.load(path.read_bytes(), Loader=_loader())  # a SafeLoader, stricter still
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise UsageError(message, where=os.fspath(path), fix="a kind needs copier.yml and template.toml") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"is not YAML that can be used: {said}", where=os.fspath(path), fix="correct it") from error
    loaded = {} if loaded is None else loaded
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise UsageError("expected one table of questions by name", where=os.fspath(path), fix="correct it")
    return loaded


def _loader() -> type[Any]:
    import yaml

    base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it was built

    class StrictLoader(base):  # type: ignore[valid-type, misc]  # either loader constructs by the same rules
        """Refuses keys that come twice: the second would silently win."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} comes twice", key.start_mark)
            seen.add(str(key.value))
        return loader.construct_mapping(node, deep=True)

    StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return StrictLoader


def _question(name: str, details: Any, where: str) -> Question:
    if not _QUESTION.fullmatch(name):
        raise UsageError("is not a name for a question", where=where, fix="use small letters, digits and underscores")
    if name in CONTEXT_NAMES or name in _BUILT_IN:
        raise UsageError("is a name that every template has already", where=where, fix="rename the question")
    if not isinstance(details, dict):
        details = {"default": details}
    known = _ATTRIBUTES | _PROMPT_ATTRIBUTES
    for attribute in details:
        if attribute not in known:
            fix = did_you_mean(str(attribute), sorted(known)) or f"known: {', '.join(sorted(known))}"
            raise UsageError(f"unknown attribute {attribute!r}", where=where, fix=fix)
    for attribute, kinds in {"help": str, "validator": str, "multiselect": bool, "secret": bool, "type": str}.items():
        if attribute in details and not isinstance(details[attribute], kinds):
            raise UsageError(f"`{attribute}` has to be of type {kinds.__name__}", where=where, fix="correct it")
    return _made(name, details, where)


def _made(name: str, details: dict[str, Any], where: str) -> Question:
    default = details.get("default", MISSING)
    kind = details.get("type") or (type(default).__name__ if type(default).__name__ in TYPES else "yaml")
    if kind not in TYPES:
        raise UsageError(f"unknown type {kind!r}", where=where, fix=f"use one of: {', '.join(TYPES)}")
    when = details.get("when", True)
    if not isinstance(when, (bool, str)):
        raise UsageError("`when` has to be a bool or a Jinja expression", where=where, fix="correct it")
    if details.get("secret"):
        raise UsageError(
            "`secret` is not supported: answers are kept in receipts, which are committed",
            where=where,
            fix="ask for the name of an environment variable that holds the secret",
        )
    question = Question(
        name=name,
        type=kind,
        default=default,
        choices=_choices(details.get("choices", ()), kind, where),
        help=details.get("help", "").strip(),
        multiselect=details.get("multiselect", False),
        validator=details.get("validator", ""),
        when=when,
    )
    if question.multiselect and not question.choices:
        raise UsageError("`multiselect` needs `choices`", where=where, fix="list them")
    return question


def _choices(given: Any, kind: str, where: str) -> tuple[Any, ...]:
    """Return the values of any of copier's notations: a list, [label, value] pairs, {label: value or {value: ...}}."""
    if isinstance(given, str):
        raise UsageError("`choices` made by an expression cannot be listed", where=where, fix="write them as a list")
    pairs = given.items() if isinstance(given, dict) else [c if isinstance(c, list) else (c, c) for c in given]
    values = []
    for pair in pairs:
        value = tuple(pair)[-1]
        value = value.get("value") if isinstance(value, dict) else value
        values.append(cast(kind, value, where))
    return tuple(values)


# ---------------------------------------------------------------------------------------------------------- answering


def parse_answer(question: Question, text: str) -> Any:
    """Return an answer as typed on a command line.

    "yes" -> True, "3" -> 3, "a,b" -> ["a", "b"] where several may be chosen.

    Raises UsageError naming the question when the text is not of its type; choices and validators are not looked at.
    """
    if not question.multiselect:
        return parsed(question.type, text, question.name)
    if text.lstrip().startswith("["):
        items = parsed("json", text, question.name)
        return [typed(question.type, item, question.name) for item in items]
    return [parsed(question.type, item.strip(), question.name) for item in text.split(",") if item.strip()]


def check_answers(
    questions: Sequence[Question], given: Mapping[str, Any], context: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return every answer: the given ones checked, the others by default, in the order of the questions.

    context: what templates know besides answers (`rendering.template_context`); needed where defaults or validators use
    it. Questions whose `when` does not hold get their default; those without one are missing. Raises UsageError naming
    the question for unknown, missing and wrong answers.
    """
    known = [question.name for question in questions]
    for name in given:
        if name not in known:
            fix = did_you_mean(name, known) or f"questions: {', '.join(known) or 'none'}"
            raise UsageError(f"there is no question {name!r}", where=name, fix=fix)
    answers: dict[str, Any] = {}
    for question in questions:
        answer = _answer(question, given, {**(context or {}), **given, **answers})
        if answer is not MISSING:
            answers[question.name] = answer
    return answers


def refuse_unasked(questions: Sequence[Question], given: Collection[str], context: Mapping[str, Any]) -> None:
    """Raise UsageError naming the first question that was answered and is not asked.

    The answer would be kept and never be used, while whoever gave it believes otherwise.
    context: every answer, and what templates know besides (`rendering.template_context`).
    """
    for question in questions:
        if question.name not in given:
            continue
        if question.computed:
            raise UsageError(
                "is worked out by the template and never asked", where=question.name, fix="leave the answer out"
            )
        if not holds(question.when, context, where=f"{question.name}: when"):
            raise UsageError(
                f"is asked only when {condition(question.when)}",
                where=question.name,
                fix="leave it out, or change the answers it depends on",
            )


def _answer(question: Question, given: Mapping[str, Any], known: dict[str, Any]) -> Any:
    where = question.name
    asked = holds(question.when, known, where=f"{where}: when")
    if where in given:
        answer = _typed_answer(question, given[where])
    elif question.default is MISSING:
        if asked:
            raise UsageError("has to be answered", where=where, fix=_expectation(question))
        return MISSING
    else:
        answer = _default(question, known)
    # Not for hidden ones: complete answers must pass again, and their defaults were not validated.
    if asked and question.validator:
        complaint = evaluate(question.validator, {**known, where: answer}, where=f"{where}: validator").strip()
        if complaint:
            raise UsageError(f"{answer!r} is refused: {complaint}", where=where, fix=question.help)
    return answer


def _typed_answer(question: Question, answer: Any) -> Any:
    if not question.multiselect:
        answer = typed(question.type, answer, question.name)
        _among_choices(question, answer)
        return answer
    if not isinstance(answer, list):
        raise UsageError(f"got {answer!r}, expected a list", where=question.name, fix=_expectation(question))
    chosen = [typed(question.type, item, question.name) for item in answer]
    for item in chosen:
        _among_choices(question, item)
    return [choice for choice in question.choices if choice in chosen]


def _default(question: Question, known: Mapping[str, Any]) -> Any:
    value = _filled(question.default, known, f"{question.name}: default")
    if question.multiselect:
        items = parsed("yaml", value, question.name) if isinstance(value, str) else value
        chosen = [cast(question.type, item, question.name) for item in items or ()]
        return [choice for choice in question.choices if choice in chosen]
    answer = cast(question.type, value, question.name)
    _among_choices(question, answer)
    return answer


def _filled(value: Any, known: Mapping[str, Any], where: str) -> Any:
    """Return a default with its expressions evaluated, inside lists too, as copier does."""
    if isinstance(value, str):
        return evaluate(value, known, where=where)
    return [_filled(item, known, where) for item in value] if isinstance(value, list) else value


def _among_choices(question: Question, answer: Any) -> None:
    if question.choices and answer not in question.choices:
        fix = did_you_mean(str(answer), map(str, question.choices))
        fix = f"{fix} {_expectation(question)}".strip()
        raise UsageError(f"{answer!r} is not a choice", where=question.name, fix=fix)


def _expectation(question: Question) -> str:
    if question.choices:
        return f"one of: {', '.join(map(str, question.choices))}"
    return f"expected {question.type}" + (f": {question.help}" if question.help else "")


# ---------------------------------------------------------------------------------------------------------- schema


def json_schema(kind: str, questions: Sequence[Question], options: Sequence[OptionEntry] = ()) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an answers file for `--answers`.

    Manifest options (as in {"from": "data.jsonl"}) are not answers; the schema lists them under "x-options".
    """
    asked = [question for question in questions if not question.computed]
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"answers of areal-new {kind}",
        "type": "object",
        "additionalProperties": False,
        "properties": {question.name: _property(question) for question in asked},
        "required": [question.name for question in asked if question.required and question.when is True],
    }
    if options:
        schema["x-options"] = {option.name: {"metavar": option.metavar, "help": option.help} for option in options}
    return schema


def _property(question: Question) -> dict[str, Any]:
    names = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "path": "string"}
    value: dict[str, Any] = {"type": names[question.type]} if question.type in names else {}
    if question.choices:
        value["enum"] = list(question.choices)
    if question.multiselect:
        value = {"type": "array", "items": value, "uniqueItems": True}
    when = condition(question.when)
    if question.help or when:
        value["description"] = f"{question.help} (asked only when {when})".strip() if when else question.help
    if question.default is not MISSING and not (isinstance(question.default, str) and "{" in question.default):
        value["default"] = question.default
    return value
