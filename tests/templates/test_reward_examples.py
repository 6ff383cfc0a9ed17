"""`areal-new reward --from-examples`: real completions become the table of a test that passes, or are refused."""

from __future__ import annotations

import re

import pytest
import reward_units as units

from tooling.cli.errors import ChecksFailedError, UsageError


@pytest.fixture
def write(tmp_path):
    def written(rows, name="rows.jsonl"):
        return units.write_rows(tmp_path / name, rows)

    return written


def table_of(unit):
    (path,) = unit.tests
    return unit.plan.read(path).decode()


def test_given_scores_become_the_table(seed, write):
    unit = units.planned(seed, "labelled", {"style": "choice"}, from_examples=write(units.LABELLED))
    source = table_of(unit)
    assert source.count('labelled"') == 6 + 1  # the rows, and the comment that says what the word means
    assert 'recorded",' not in source
    assert source.isascii()
    assert "# From rows.jsonl." in source
    assert unit.receipt.answers["examples_file"] == "rows.jsonl"


@pytest.mark.exhaustive
def test_missing_scores_are_recorded_and_spread_over_outcomes(seed, write):
    answers = units.NUMBERED
    unit = units.planned(seed, "recorded", answers, from_examples=write(units.solutions(60)), max_examples=12)
    source = table_of(unit)
    scores = re.findall(r"^        (\d\.\d),\n        id=\"line \d+, recorded\",$", source, flags=re.MULTILINE)
    assert sorted(scores) == ["0.0"] * 6 + ["1.0"] * 6
    assert "review it before you rely on it" in source
    again = units.planned(seed, "recorded", answers, from_examples=write(units.solutions(60)), max_examples=12)
    assert [change.after for change in again.plan.changes] == [change.after for change in unit.plan.changes]


@pytest.mark.exhaustive
def test_examples_of_an_unknown_pattern_give_its_worked_cases(seed, write):
    answers = units.NUMBERED
    unit = units.planned(seed, "derived", answers, from_examples=write(units.solutions(5)))
    assert unit.receipt.answers["example"].startswith("#### ")
    assert "\n" not in unit.receipt.answers["example"]


def test_scores_that_the_style_does_not_give_are_refused(seed, write):
    rows = [*units.LABELLED, {"completion": "The answer is A.", "answer": "B", "score": 1.0}]
    path = write(rows)
    with pytest.raises(ChecksFailedError) as caught:
        units.planned(seed, "wrong", {"style": "choice"}, from_examples=path)
    assert "disagrees with 1 of 7 given scores" in caught.value.message
    assert "line 5: expected 1, got 0" in caught.value.checks[0].detail
    assert caught.value.where == "rows.jsonl:5"
    assert caught.value.exit_code == 7
    assert not (seed / "areal/reward/wrong.py").exists()


def test_rows_that_the_reward_raises_for_are_refused(seed, write):
    rows = [*units.LABELLED, {"completion": "B", "answer": "no letter"}]
    with pytest.raises(UsageError, match=r"rows.jsonl:5: the reward raises for 1 of 7 rows; .*expected a letter"):
        units.planned(seed, "raising", {"style": "choice"}, from_examples=write(rows))


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ([{"completion": "x", "answer": "y"}, "{broken\n"], 2, "is not JSON"),
        (["\n\n", "[1]\n"], 3, "is a list"),
        ([{"answer": "y"}], 1, "has no `completion`; its columns are answer"),
        ([{"completion": "x", "completions": "y"}], 1, "has both"),
        ([{"completion": 5, "answer": "y"}], 1, "is not text"),
        ([{"completion": "x", "answer": "y", "score": "good"}], 1, "`score` is 'good'"),
        (['{"completion": "x", "score": NaN}\n'], 1, "NaN is not a JSON value"),
        (['{"completion": "x", "score": 1e999}\n'], 1, "`score` is inf"),
        ([{"completions": ["x", "y"], "label": [1]}], 1, "has 1 scores in label"),
        ([{"completion": "x", "score": 1, "label": 1}], 1, "in score, label"),
        ([{"completion": "x", "prompt": ["p"]}], 1, "`prompt` is a list"),
        ([{"completion": "x", "prompt_ids": [1]}], 1, "a column cannot be called 'prompt_ids'"),
        ([{"completion": "x", "c" * 99: 1}], 1, "a column cannot be called"),
        (["[" * 100_000 + "\n"], 1, "is not JSON"),
    ],
)
def test_rows_that_are_none_are_refused_with_their_line(seed, write, rows, line, message):
    path = write(rows)
    with pytest.raises(UsageError) as caught:
        units.planned(seed, "bad", {"style": "exact"}, from_examples=path)
    assert caught.value.where == f"{path}:{line}"
    assert message in caught.value.message
    assert caught.value.fix


def test_files_and_options_that_make_no_sense_are_refused(seed, write, tmp_path):
    for answers, options, message in (
        ({}, {"from_examples": tmp_path / "missing.jsonl"}, "No such file"),
        ({}, {"from_examples": write([], "empty.jsonl")}, "there are no rows"),
        ({}, {"from_examples": write([{"completion": "x" * 5000}], "long.jsonl")}, "longer than 4000 characters"),
        ({}, {"max_examples": 3}, "only limits --from-examples"),
        ({}, {"from_examples": write(units.LABELLED), "max_examples": 0}, "'0' is not a number of rows"),
        ({"style": "llm_judge", "model": "m"}, {"from_examples": write(units.LABELLED)}, "not the same every time"),
    ):
        with pytest.raises(UsageError, match=message):
            units.planned(seed, "odd", answers, **options)


@pytest.mark.exhaustive
def test_long_rows_are_left_out_and_reported(seed, write):
    rows = [{"completion": "7", "answer": "7"}, {"completion": "8" * 5000, "answer": "7"}]
    unit = units.planned(seed, "long", {"style": "exact"}, from_examples=write(rows))
    assert any("1 rows with more than 4000 characters left out (lines 2)" in text for text in unit.warnings)
    assert table_of(unit).count('recorded",') == 1


def test_a_hostile_row_only_ever_is_data(seed, write, tmp_path):
    mark = tmp_path / "executed"
    attack = f'"""\nimport os; os.system("touch {mark}")\n"""; __import__("os").system("touch {mark}") # {{{{ 1 }}}}'
    rows = [{"completion": attack, "answer": attack, attack[:30]: attack, "x'y\"": [attack]}]
    unit = units.planned(seed, "hostile", {"style": "exact"}, from_examples=write(rows))
    compile(table_of(unit), "generated", "exec")
    assert not mark.exists()
