"""What the reward generator refuses before anything is rendered: patterns, columns."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.cli.errors import UsageError
from tooling.kit.names import parse_name
from tooling.new.change import Change, UnitRequest
from tooling.new.generators.examples import WIDTH, from_source, source_lines, text_pieces
from tooling.new.generators.patterns import checked_pattern, last_found, matches, worked_cases
from tooling.new.generators.reward import prepare

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.executable)


def cpu_seconds():
    """Of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def prepared(answers, **options):
    request = UnitRequest(kind="reward", name="digits", answers=answers, options=options)
    change = Change(root=ROOT, python=PYTHON, request=request, names=parse_name("digits"))
    return SimpleNamespace(answers=prepare(change), warnings=change.warnings)


# --------------------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "group"),
    [
        (r"[Aa]nswer:[ \t]*(.+)", "1"),
        (r"(?:The|the) (answer|result) is", "1"),
        (r"(?P<answer>\d+)", '"answer"'),
        (r"(a)(b)(?P<answer>c)", '"answer"'),
        (r"#### (-?\d{1,3}(?:,\d{3})*)", "1"),
        (r"((?:\w{1,20} ){1,5})end", "1"),
        (r"x((?:a+)++)y", "1"),
        (r"(?>a+)+(b)", "1"),
        ("\u7b54\u6848[:\uff1a](.+)", "1"),
        (r"(?s)<answer>(.*?)</answer>", "1"),
    ],
)
def test_a_pattern_with_one_answer_is_accepted(pattern, group):
    assert checked_pattern(pattern, PYTHON) == group


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "does not compile"),
        ("(?P<answer>a", "does not compile"),
        ("([[a])", "does not compile: Possible nested set"),
        ("(a){99999999999999999999}", "does not compile"),
        ("answer", "has 0 groups"),
        ("(a)(b)", "has 2 groups"),
        ("(a?)", "empty completion"),
        (r"(\s*)", "empty completion"),
        (r"( )", "empty completion"),
        (r"(a+)+$", "repeated without bound"),
        (r"x(?:(?:a|b)*c?)*(y)", "repeated without bound"),
        (r"(?=(?:a+)+b)(c)", "repeated without bound"),
        pytest.param(r"(?:a|a)*(b)", "takes more than", marks=pytest.mark.exhaustive),
        pytest.param(r"(?:a|ab|b)*(c)", "takes more than", marks=pytest.mark.exhaustive),
        (r"(.*a.*a.*a.*b)", "takes more than"),
        ("(" + "a" * 400 + ")", "has 402 characters"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_quickly(pattern, message):
    started = cpu_seconds()
    with pytest.raises(UsageError, match="--pattern") as caught:
        checked_pattern(pattern, PYTHON)
    assert message in caught.value.message
    assert caught.value.fix
    assert cpu_seconds() - started < 15


def test_the_last_match_in_the_window_is_what_counts():
    import re

    compiled = re.compile(r"is (\w)")
    assert last_found(compiled, "it is a or is b") == "b"
    assert last_found(compiled, "it is a" + "-" * 5000) is None
    assert matches(r"is (\w)", "it is a or is b") == ["is a", "is b"]


def test_worked_cases_are_those_that_hold_for_the_pattern():
    cases = [tuple(map(from_lines, case)) for case in worked_cases(r"= (\d+)", "x = 5", "number")]
    assert cases[0] == ("x = 5", "5", 1.0)
    assert ("x = 6\nx = 5", "5", 1.0) in cases
    assert ("x = 5", "6", 0.0) in cases
    assert len(cases) >= 8
    # This pattern takes a bare number, so "a bare answer scores nothing" is not a case of it.
    loose = [tuple(map(from_lines, case)) for case in worked_cases(r"(\d+)", "5", "number")]
    assert ("5", "5", 0.0) not in loose


def from_lines(source):
    return eval(source, {"__builtins__": {}})  # sources made here, of literals and "x" * n


@pytest.mark.parametrize(
    ("answers", "where", "message"),
    [
        ({"pattern": r"= (\w+)"}, "--example", "a pattern needs a completion"),
        ({"pattern": r"= (\w+)", "example": "nothing"}, "--example", "does not find an answer"),
        ({"pattern": r"= (\w+)", "example": "= red", "comparison": "number"}, "--example", "does not find a number"),
        ({"pattern": r"= (\w+)", "example": "= " + "r" * 400}, "--example", "has 402 characters"),
        ({"answer_column": "class"}, "answer_column", "keyword of Python"),
    ],
)
def test_an_example_has_to_fit_its_pattern(answers, where, message):
    with pytest.raises(UsageError, match=message) as caught:
        prepared({"style": "regex", **answers})
    assert caught.value.where == where


@pytest.mark.parametrize(
    "pattern", ['"(a)"', "'(a)'", "(a)\n", "\\\\(a)", "(a)\\\\", "\u00e4(b)", "(" + "ab" * 99 + ")"]
)
def test_any_pattern_becomes_a_literal_of_itself(pattern):
    import re

    found = re.search(pattern, text := pattern.replace("(", "").replace(")", "").replace("\\\\", "\\"))
    assert found
    literal = prepared({"style": "regex", "pattern": pattern, "example": text}).answers["pattern_literal"]
    assert from_source(["(", literal, ")"]) == pattern


# --------------------------------------------------------------------------------------------------------- literals

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
@settings(max_examples=30)
def test_source_gives_the_value_back(value):
    lines = source_lines(value)
    assert from_source(lines) == value
    assert all(line.isascii() and "\n" not in line for line in lines)


@given(st.text(max_size=2000))
@settings(max_examples=30)
def test_pieces_join_to_the_text_and_fit(text):
    pieces = text_pieces(text)
    assert from_source(["(", *pieces, ")"]) == text
    assert max(map(len, pieces)) <= WIDTH + 10


def test_lone_surrogates_and_long_words_survive():
    text = "\ud800" + "x" * 1000 + "'\"\\\u202e\0"
    assert from_source(source_lines(text)) == text
