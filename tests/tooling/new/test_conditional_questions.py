"""Questions that are asked only under a condition, as the command line shows and checks them."""

from __future__ import annotations

import io
import json

import pytest

from tooling.kit.receipts import read_receipt
from tooling.kit.template.questions import load_questions
from tooling.new.command_line import main
from tooling.new.commands.generate import ask_missing

QUESTIONS = "templates/rule/copier.yml"
RECEIPT = ".areal/receipts/rule/x.json"
CONDITIONAL = """
digits:
  type: int
  default: "{{ 2 if percent > 5 else 3 }}"
  when: "{{ style == 'rounded' }}"
  help: Digits that are kept

currency:
  type: str
  when: "{{ style == 'rounded' }}"
  help: Whose digits they are

literal:
  type: str
  when: false
  default: "{{ style }}!"
"""


@pytest.fixture
def asking(world):
    world.write(QUESTIONS, world.read(QUESTIONS) + CONDITIONAL)
    world.commit()
    return world


def call(capsys, world, *words):
    """Exit code and the JSON object."""
    code = main([*map(str, words), "--json", "--no-test", "--repo", str(world.root)])
    return code, json.loads(capsys.readouterr().out)


def test_an_option_that_is_not_asked_for_is_refused(capsys, asking):
    code, found = call(capsys, asking, "rule", "x", "--digits", "3")
    assert (code, found["code"], found["where"]) == (2, "usage", "--digits")
    assert found["error"] == "is asked only when style == 'rounded'"
    assert found["fix"]
    assert asking.status() == ""


@pytest.mark.parametrize("answers", [{"digits": 3}, {"style": "plain", "currency": "EUR"}, {"literal": "x"}])
def test_so_is_an_answer_in_a_file_and_one_that_is_worked_out(capsys, asking, tmp_path, answers):
    file = tmp_path / "answers.json"
    file.write_text(json.dumps(answers))
    code, found = call(capsys, asking, "rule", "x", "--answers", file)
    assert code == 2
    assert found["where"].removeprefix("--") == list(answers)[-1]


def test_a_missing_answer_is_named_by_its_option(capsys, asking):
    code, found = call(capsys, asking, "rule", "x", "--style", "rounded")
    assert (code, found["where"], found["error"]) == (2, "--currency", "has to be answered")


@pytest.mark.exhaustive
def test_an_update_refuses_new_answers_that_are_not_asked_for_and_keeps_old_ones(capsys, asking):
    assert call(capsys, asking, "rule", "x", "--style", "rounded", "--currency", "EUR", "--digits", "4")[0] == 0
    assert call(capsys, asking, "update", "rule", "x", "--style", "plain")[0] == 0
    assert read_receipt(asking.root, "rule", "x").answers["digits"] == 4
    code, found = call(capsys, asking, "update", "rule", "x", "--digits", "5")
    assert (code, found["where"]) == (2, "--digits")
    code, found = call(capsys, asking, "update", "rule", "x", "--digits", "4")
    assert (code, found["where"]) == (2, "--digits"), "the answer it has already, but not one that is asked for"
    assert call(capsys, asking, "update", "rule", "x", "--style", "rounded")[0] == 0
    code, found = call(capsys, asking, "update", "rule", "x", "--digits", "5")
    assert (code, read_receipt(asking.root, "rule", "x").answers["digits"]) == (0, 5)


def test_a_unit_with_hidden_answers_is_generated_again_updated_and_renamed(capsys, asking):
    assert call(capsys, asking, "rule", "x")[0] == 0
    assert call(capsys, asking, "rule", "x")[1]["plan"] == []
    asking.edit(asking.module_template, "percent off.", "percent away.")
    assert call(capsys, asking, "update", "rule", "x")[0] == 0
    assert call(capsys, asking, "rename", "rule", "x", "y")[0] == 0


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        ({"style": "rounded"}, {"style": "rounded", "currency": "EUR"}),
        ({}, {}),
        ({"style": "plain"}, {"style": "plain"}),
    ],
)
def test_a_person_is_asked_what_the_other_answers_make_necessary(asking, monkeypatch, given, answers):
    monkeypatch.setattr("sys.stdin", io.StringIO("EUR\n"))
    assert ask_missing(load_questions(asking.root / "templates/rule"), given) == answers


def test_explain_takes_answers_only_for_what_is_not_generated(capsys, asking):
    world = asking
    options = ["--repo", str(world.root), "--json"]
    assert main(["explain", "rule", "x", "--style", "rounded", "--currency", "EUR", *options]) == 0
    assert json.loads(capsys.readouterr().out)["explanation"]["answers"]["currency"] == "EUR"
    call(capsys, world, "rule", "x")
    assert main(["explain", "rule", "x", "--style", "rounded", "--currency", "EUR", *options]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["where"] == RECEIPT
    assert "update" in found["fix"]


def test_help_says_when_a_question_is_asked_and_shows_no_expressions(capsys, asking, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["rule", "--help", "--repo", str(asking.root)]) == 0
    page = capsys.readouterr().out
    assert "[style rounded] Digits that are kept (default: depends on other answers)" in page
    assert "[style rounded] Whose digits they are (required for style rounded)" in page
    assert "{{" not in page
