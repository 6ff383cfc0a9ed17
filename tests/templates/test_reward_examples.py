"""`areal-new reward --from-examples`: real completions become the table of a test that passes, or are refused."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tooling.cli.errors import ChecksFailedError, UsageError


def _helper():
    spec = importlib.util.spec_from_file_location("reward_units", Path(__file__).with_name("reward_units.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


units = _helper()
ODD = '\u2019\u202e\ud83d\ude00 \0 \x1b[31m \\ " \' """ {{ x }} {% y %} # not a comment \t end'
LABELLED = [
    {"completion": "The answer is B.", "answer": "B", "score": 1.0},
    {"completion": "The answer is C.", "answer": "B", "score": 0},
    {"completion": f"{ODD}\nThe answer is B", "answer": "B", "reward": True, "source": ODD},
    {"completions": ["B", "A or B", ""], "answer": "B", "label": [1, 0, False], "prompt": "Which?"},
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return units.copied_repository(tmp_path_factory.mktemp("examples"))


@pytest.fixture
def write(tmp_path):
    def written(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return path

    return written


def table_of(unit):
    (path,) = unit.tests
    return unit.plan.read(path).decode()


def solutions(number):
    """Real worked solutions from the packaged rows of GSM8K (MIT licence), every third with another row's answer."""
    lines = (units.ROOT / "areal/dataset/fixtures/gsm8k/train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[:number]]
    finals = [row["answer"].rpartition("#### ")[2] for row in rows]
    return [
        {"prompt": row["question"], "completion": row["answer"], "answer": finals[index - (index % 3 == 2)]}
        for index, row in enumerate(rows)
    ]


def test_given_scores_become_the_table(repository, write):
    unit = units.planned(repository, "labelled", {"style": "choice"}, from_examples=write(LABELLED))
    source = table_of(unit)
    assert source.count('labelled"') == 6 + 1  # the rows, and the comment that says what the word means
    assert 'recorded",' not in source
    assert source.isascii()
    assert "# From rows.jsonl." in source
    assert unit.receipt.answers["examples_file"] == "rows.jsonl"


def test_missing_scores_are_recorded_and_spread_over_outcomes(repository, write):
    answers = {"style": "regex", "pattern": r"#### (.+)", "comparison": "number"}
    unit = units.planned(repository, "recorded", answers, from_examples=write(solutions(60)), max_examples=12)
    source = table_of(unit)
    scores = re.findall(r"^        (\d\.\d),\n        id=\"line \d+, recorded\",$", source, flags=re.MULTILINE)
    assert sorted(scores) == ["0.0"] * 6 + ["1.0"] * 6
    assert "review it before you rely on it" in source
    again = units.planned(repository, "recorded", answers, from_examples=write(solutions(60)), max_examples=12)
    assert [change.after for change in again.plan.changes] == [change.after for change in unit.plan.changes]


def test_the_generated_tables_pass_and_find_another_reward(repository, write):
    tests = []
    for name, rows, answers in (
        ("real", solutions(64), {"style": "regex", "pattern": r"#### (.+)", "comparison": "number"}),
        ("choices", LABELLED, {"style": "choice"}),
        ("both", [{"prompt": ODD, "completion": "72", "answer": "72"}], {"style": "composite", "parts": "exact=1.0"}),
        (
            "programs",
            [
                {"completion": f"```python\ndef f():\n    return {value}\n```", "tests": ["assert f() == 3"]}
                for value in (3, 4)
            ],
            {"style": "code"},
        ),
    ):
        unit = units.written(repository, units.planned(repository, name, answers, from_examples=write(rows)))
        tests += unit.tests
    done = units.run(repository, "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert len((repository / tests[0]).read_text().splitlines()) <= 600
    module = repository / "areal/reward/real.py"
    module.write_text(module.read_text().replace("== expected", "!= expected"))
    done = units.run(repository, "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-k", "recorded", tests[0])
    assert " passed" not in done.stdout
    assert "failed" in done.stdout


def test_examples_of_an_unknown_pattern_give_its_worked_cases(repository, write):
    answers = {"style": "regex", "pattern": r"#### (.+)", "comparison": "number"}
    unit = units.planned(repository, "derived", answers, from_examples=write(solutions(5)))
    assert unit.receipt.answers["example"].startswith("#### ")
    assert "\n" not in unit.receipt.answers["example"]


def test_scores_that_the_style_does_not_give_are_refused(repository, write):
    rows = [*LABELLED, {"completion": "The answer is A.", "answer": "B", "score": 1.0}]
    path = write(rows)
    with pytest.raises(ChecksFailedError) as caught:
        units.planned(repository, "wrong", {"style": "choice"}, from_examples=path)
    assert "disagrees with 1 of 7 given scores" in caught.value.message
    assert "line 5: expected 1, got 0" in caught.value.checks[0].detail
    assert caught.value.where == "rows.jsonl:5"
    assert caught.value.exit_code == 7
    assert not (repository / "areal/reward/wrong.py").exists()


def test_rows_that_the_reward_raises_for_are_refused(repository, write):
    rows = [*LABELLED, {"completion": "B", "answer": "no letter"}]
    with pytest.raises(UsageError, match=r"rows.jsonl:5: the reward raises for 1 of 7 rows; .*expected a letter"):
        units.planned(repository, "raising", {"style": "choice"}, from_examples=write(rows))


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
def test_rows_that_are_none_are_refused_with_their_line(repository, write, rows, line, message):
    path = write(rows)
    with pytest.raises(UsageError) as caught:
        units.planned(repository, "bad", {"style": "exact"}, from_examples=path)
    assert caught.value.where == f"{path}:{line}"
    assert message in caught.value.message
    assert caught.value.fix


def test_files_and_options_that_make_no_sense_are_refused(repository, write, tmp_path):
    for answers, options, message in (
        ({}, {"from_examples": tmp_path / "missing.jsonl"}, "No such file"),
        ({}, {"from_examples": write([], "empty.jsonl")}, "there are no rows"),
        ({}, {"from_examples": write([{"completion": "x" * 5000}], "long.jsonl")}, "longer than 4000 characters"),
        ({}, {"max_examples": 3}, "only limits --from-examples"),
        ({}, {"from_examples": write(LABELLED), "max_examples": 0}, "'0' is not a number of rows"),
        ({"style": "llm_judge", "model": "m"}, {"from_examples": write(LABELLED)}, "not the same every time"),
    ):
        with pytest.raises(UsageError, match=message):
            units.planned(repository, "odd", answers, **options)


def test_long_rows_are_left_out_and_reported(repository, write):
    rows = [{"completion": "7", "answer": "7"}, {"completion": "8" * 5000, "answer": "7"}]
    unit = units.planned(repository, "long", {"style": "exact"}, from_examples=write(rows))
    assert any("1 rows with more than 4000 characters left out (lines 2)" in text for text in unit.warnings)
    assert table_of(unit).count('recorded",') == 1


def test_a_hostile_row_only_ever_is_data(repository, write, tmp_path):
    mark = tmp_path / "executed"
    attack = f'"""\nimport os; os.system("touch {mark}")\n"""; __import__("os").system("touch {mark}") # {{{{ 1 }}}}'
    rows = [{"completion": attack, "answer": attack, attack[:30]: attack, "x'y\"": [attack]}]
    unit = units.planned(repository, "hostile", {"style": "exact"}, from_examples=write(rows))
    compile(table_of(unit), "generated", "exec")
    assert not mark.exists()
