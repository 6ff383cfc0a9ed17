"""Questions: reading copier.yml, typed and checked answers, the JSON schema, and agreement with copier itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import copier
import jsonschema
import pytest

from tooling.cli.errors import UsageError
from tooling.kit.kind import OptionEntry
from tooling.kit.template.questions import MISSING, Question, check_answers, json_schema, load_questions, parse_answer

if TYPE_CHECKING:
    from pathlib import Path

RICH = """
_subdirectory: template
_envops: {undefined: jinja2.StrictUndefined}
style:
  type: str
  default: exact
  choices: [exact, boxed, regex]
  help: How answers are compared
pattern:
  type: str
  default: ""
  when: "{{ style == 'regex' }}"
  validator: "{% if not pattern %}a pattern is needed{% endif %}"
workers:
  type: int
  default: 4
  validator: "{% if workers < 1 %}at least one{% endif %}"
weight: {type: float, default: 1}
half: {type: float, default: "{{ workers / 8 }}"}
strict: {type: bool, default: "{{ style == 'exact' }}"}
careful: yes
label:
  type: str
  default: "{{ style }} with {{ workers }}"
label_length: {type: int, default: "{{ label | length }}", when: false}
tags:
  type: str
  multiselect: true
  choices: {Fast: fast, Small: small, Exact: {value: exact}}
  default: [small]
parts: {type: json, default: '{"gsm8k": 1.0}'}
limits: {type: yaml, default: [1, 2]}
folder: {type: path, default: "runs/{{ style }}"}
"""


def template(folder: Path, text: str) -> Path:
    (folder / "template").mkdir(exist_ok=True)
    (folder / "copier.yml").write_text(text, encoding="utf-8")
    return folder


def refused_file(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_questions(template(folder, text))
    assert "copier.yml" in caught.value.where
    assert caught.value.fix
    return caught.value


def refused(questions: list[Question], given: dict[str, Any]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check_answers(questions, given)
    return caught.value


# ---------------------------------------------------------------------------------------------------------- reading


def test_questions_are_read_in_their_order(tmp_path):
    questions = load_questions(template(tmp_path, RICH))
    assert [question.name for question in questions][:4] == ["style", "pattern", "workers", "weight"]
    assert questions[0] == Question(
        "style", "str", default="exact", choices=("exact", "boxed", "regex"), help="How answers are compared"
    )


def test_every_notation_of_choices_gives_values(tmp_path):
    text = "a: {type: int, choices: [[One, 1], [Two, 2]]}\nb: {type: str, choices: {One: 1, Two: {value: two}}}\n"
    questions = load_questions(template(tmp_path, text))
    assert [question.choices for question in questions] == [(1, 2), ("1", "two")]


def test_the_short_form_has_the_type_of_its_default(tmp_path):
    questions = load_questions(template(tmp_path, "a: text\nb: 3\nc: true\nd: [1]\ne: 1.5\n"))
    assert [question.type for question in questions] == ["str", "int", "bool", "yaml", "float"]


def test_a_question_without_default_is_required(tmp_path):
    questions = load_questions(template(tmp_path, "a: {type: str}\nb: {type: json, default: null}\n"))
    assert [question.required for question in questions] == [True, False]
    assert questions[0].default is MISSING


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "comes twice"),
        ("a: {type: str, type: int}\n", "comes twice"),
        ("a: !include other.yml\n", "not YAML that can be used"),
        ("a: !!python/object/apply:os.system [true]\n", "not YAML that can be used"),
        ("- a\n- b\n", "one table"),
        ("a: [\n", "not YAML"),
        ("Style: x\n", "not a name for a question"),
        ("snake: x\n", "every template has already"),
        ("kind: x\n", "every template has already"),
        ("now: x\n", "every template has already"),
        ("a: {type: str, defualt: x}\n", "unknown attribute 'defualt'"),
        ("a: {type: text}\n", "unknown type 'text'"),
        ("a: {type: str, choices: '{{ others }}'}\n", "cannot be listed"),
        ("a: {type: int, choices: [x]}\n", "not of type int"),
        ("a: {type: str, when: 3}\n", "`when` has to be"),
        ("a: {type: str, multiselect: true}\n", "needs `choices`"),
        ("a: {type: str, help: [x]}\n", "`help` has to be of type str"),
        ("a: {type: str, secret: true, default: x}\n", "receipts, which are committed"),
    ],
)
def test_odd_files_are_refused(tmp_path, text, message):
    assert message in str(refused_file(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_questions(tmp_path)


def test_a_misspelt_attribute_gets_the_nearest(tmp_path):
    assert "'default'" in refused_file(tmp_path, "a: {type: str, defualt: x}\n").fix


# ---------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"style": "boxed", "workers": 16},
        {"style": "regex", "pattern": "a+"},
        {"strict": True, "careful": False, "tags": ["exact", "fast"], "parts": {"x": [1, None]}, "limits": {"a": 1}},
        {"label": "äöü {{ not evaluated }}", "weight": 0.5, "folder": "x/y"},
    ],
)
def test_answers_are_those_of_copier(tmp_path, given):
    (tmp_path / "source").mkdir()
    folder = template(tmp_path / "source", RICH)
    questions = load_questions(folder)
    worker = copier.run_copy(
        str(folder), tmp_path / "out", data=given, defaults=True, quiet=True, settings=copier.Settings()
    )
    theirs = {question.name: worker.answers.combined[question.name] for question in questions}
    assert check_answers(questions, given) == theirs


def test_complete_answers_pass_again_unchanged(tmp_path):
    questions = load_questions(template(tmp_path, RICH))
    once = check_answers(questions, {})
    assert check_answers(questions, json.loads(json.dumps(once))) == once


def test_defaults_know_names_and_earlier_answers():
    questions = [Question("a", default="{{ snake }}"), Question("b", default="{{ a }}!")]
    assert check_answers(questions, {}, {"snake": "digits"}) == {"a": "digits", "b": "digits!"}


def test_a_default_that_uses_something_unknown_is_the_template_s_mistake():
    error = refused([Question("a", default="{{ nothing }}")], {})
    assert error.where == "a: default"
    assert "'nothing' is undefined" in error.message


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        (Question("a", "int"), "3", "of type str"),
        (Question("a", "int"), True, "of type bool"),
        (Question("a", "int"), 1.5, "of type float"),
        (Question("a", "float"), float("nan"), "not of type float"),
        (Question("a", "float"), False, "of type bool"),
        (Question("a", "bool"), 1, "of type int"),
        (Question("a", "str"), None, "of type NoneType"),
        (Question("a", "str"), 3, "of type int"),
        (Question("a", choices=("x", "y")), "z", "'z' is not a choice"),
        (Question("a", choices=("x", "y"), multiselect=True), "x", "expected a list"),
        (Question("a", choices=("x", "y"), multiselect=True), ["x", "z"], "'z' is not a choice"),
        (Question("a", validator="{% if a != 'x' %}only x{% endif %}"), "z", "only x"),
        (Question("a", validator="{{ a.nothing.more }}"), "z", "cannot be evaluated"),
    ],
)
def test_wrong_answers_are_refused_naming_the_question(question, answer, message):
    error = refused([question], {"a": answer})
    assert error.where.startswith("a")
    assert message in error.message


def test_a_refused_choice_gets_the_nearest_and_all():
    fix = refused([Question("style", choices=("exact", "boxed"))], {"style": "box"}).fix
    assert "'boxed'" in fix
    assert "exact, boxed" in fix


def test_unknown_and_missing_answers_are_refused():
    questions = [Question("style", default="x"), Question("needed", help="what it is")]
    assert "'style'" in refused(questions, {"styel": "x"}).fix
    error = refused(questions, {})
    assert (error.where, error.message) == ("needed", "has to be answered")
    assert "what it is" in error.fix


def test_what_is_not_asked_needs_no_answer():
    questions = [Question("style", default="x"), Question("needed", when="{{ style == 'y' }}")]
    assert check_answers(questions, {}) == {"style": "x"}
    assert refused(questions, {"style": "y"}).where == "needed"


def test_answers_are_text_and_no_templates():
    assert check_answers([Question("a")], {"a": "{{ 1 + 1 }}"}) == {"a": "{{ 1 + 1 }}"}


def test_validators_run_in_a_sandbox():
    error = refused([Question("a", validator="{{ a.__class__.__mro__ }}")], {"a": "x"})
    assert "unsafe" in error.message


# ---------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("question", "text", "answer"),
    [
        (Question("a", "str"), "yes", "yes"),
        (Question("a", "bool"), "Yes", True),
        (Question("a", "bool"), "off", False),
        (Question("a", "int"), "-3", -3),
        (Question("a", "float"), "1e-3", 0.001),
        (Question("a", "json"), '{"x": [1]}', {"x": [1]}),
        (Question("a", "yaml"), "[a, b]", ["a", "b"]),
        (Question("a", "path"), "x/y", "x/y"),
        (Question("a", choices=("x", "y"), multiselect=True), "x, y", ["x", "y"]),
        (Question("a", "int", choices=(1, 2), multiselect=True), "[1, 2]", [1, 2]),
    ],
)
def test_text_becomes_an_answer(question, text, answer):
    assert parse_answer(question, text) == answer


@pytest.mark.parametrize(
    ("kind", "text"),
    [("bool", "maybe"), ("int", "1.5"), ("int", ""), ("float", "inf"), ("json", "{"), ("json", "NaN"), ("yaml", "[")],
)
def test_text_of_another_type_is_refused(kind, text):
    with pytest.raises(UsageError, match=f"not of type {kind}") as caught:
        parse_answer(Question("a", kind), text)
    assert caught.value.where == "a"


# ---------------------------------------------------------------------------------------------------------- schema


def test_the_schema_accepts_what_is_accepted(tmp_path):
    questions = load_questions(template(tmp_path, RICH + "needed: {type: str}\n"))
    schema = json_schema("reward", questions, [OptionEntry("from", "FILE", "rows")])
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    assert check.is_valid({"needed": "x", "style": "boxed", "tags": ["fast"], "weight": 3, "parts": {"a": 1}})
    for wrong in (
        {},
        {"needed": 3},
        {"needed": "x", "style": "other"},
        {"needed": "x", "workers": "3"},
        {"needed": "x", "tags": "fast"},
        {"needed": "x", "unknown": 1},
        {"needed": "x", "label_length": 3},
    ):
        assert not check.is_valid(wrong)


def test_the_schema_shows_defaults_help_and_options(tmp_path):
    schema = json_schema("reward", load_questions(template(tmp_path, RICH)), [OptionEntry("from", "FILE", "rows")])
    assert schema["properties"]["style"] == {
        "type": "string",
        "enum": ["exact", "boxed", "regex"],
        "default": "exact",
        "description": "How answers are compared",
    }
    assert "default" not in schema["properties"]["label"]
    assert schema["x-options"] == {"from": {"metavar": "FILE", "help": "rows"}}
    json.dumps(schema)
