"""Cases of a row: what is read, what is refused, and when two outputs are the same."""

from __future__ import annotations

import json

import pytest

from areal.api import ConfigError
from areal.reward.cases import OutputComparison, read_cases


def test_cases_are_read_from_a_list_or_its_json():
    stdin = [{"input": "1 2\n", "output": "3"}]
    calls = [{"arguments": [1, "é"], "result": None}, {"arguments": [], "results": [[7], 7], "note": "either"}]
    for value in (stdin, json.dumps(stdin)):
        (case,) = read_cases(value, function="")
        assert (case.stdin, case.expected, case.calls) == (b"1 2\n", "3", False)
    first, second = read_cases(json.dumps(calls), function="f")
    assert (json.loads(first.stdin), first.results, first.calls) == ([1, "é"], (None,), True)
    assert second.results == ([7], 7)


@pytest.mark.parametrize(
    ("value", "function", "why"),
    [
        (None, "", "expected a list"),
        ([], "", "expected a list"),
        ("[", "", "not JSON"),
        ("[" * 10**5, "", "not JSON"),
        ([{"input": "1"}], "", "case 1"),
        ([{"input": 1, "output": "1"}], "", "case 1"),
        ([{"input": "", "output": ""}, {"arguments": [], "results": []}], "", "case 2"),
        ([{"arguments": {}, "result": 1}], "f", "case 1"),
        ([{"input": "1", "output": "1"}], "f", "both or neither"),
        ([{"arguments": [], "result": 1}], "", "both or neither"),
    ],
)
def test_cases_that_make_no_sense_are_the_rows_fault(value, function, why):
    with pytest.raises(ValueError, match=why):
        read_cases(value, function=function)


@pytest.mark.parametrize(
    ("kind", "tolerance", "found", "expected", "same"),
    [
        ("tokens", None, "1  2\n3\n\n", "1 2 3", True),
        ("tokens", None, "1 2 3 4", "1 2 3", False),
        ("tokens", None, "1.0", "1", False),
        ("tokens", None, "", "", True),
        ("tokens", None, "YES", "Yes", False),
        ("tokens", 1e-6, "1.0000005 x", "1 x", True),
        ("tokens", 1e-6, "1.00001", "1", False),
        ("tokens", 1e-6, "1000000.5", "1000000", True),
        ("tokens", 1e-6, "nan", "1", False),
        ("tokens", 1e-6, "nan", "nan", True),
        ("tokens", 1e-6, "inf", "1e300", False),
        ("tokens", 1e-6, "1e999", "1e999", True),
        ("tokens", 1e-6, "1e998", "1e999", False),
        ("tokens", 1e-6, "0x1", "1", False),
        ("tokens", 1e-6, "1_0", "10", False),
        ("tokens", 0.0, "1.50", "1.5", True),
        ("lines", None, "a b  \nc\n\n", "a b\nc", True),
        ("lines", None, "a  b", "a b", False),
        ("lines", None, "a\n\nb", "a\nb", False),
        ("lines", 0.1, "a 1.05\nb", "a 1\nb", True),
        ("exact", None, "a\n", "a", False),
        ("exact", None, "a", "a", True),
    ],
)
def test_outputs_are_compared_as_judges_do(kind, tolerance, found, expected, same):
    assert OutputComparison(kind=kind, tolerance=tolerance).outputs_equal(found, expected) is same


@pytest.mark.parametrize(
    ("tolerance", "found", "expected", "same"),
    [
        (None, [1, [2.0, "x"]], [1, [2, "x"]], True),
        (None, 1, True, False),
        (None, True, True, True),
        (None, "1", 1, False),
        (None, None, None, True),
        (None, {"a": [1]}, {"a": [1]}, True),
        (None, {"a": 1}, {"a": 1, "b": 2}, False),
        (None, [1], [1, 2], False),
        (None, 0.1 + 0.2, 0.3, False),
        (1e-9, [0.1 + 0.2], [0.3], True),
        (1e-9, 10**400, 0.5, False),
        (1e-9, float("nan"), 0.5, False),
    ],
)
def test_results_are_compared_as_values(tolerance, found, expected, same):
    assert OutputComparison(tolerance=tolerance).results_equal(found, expected) is same


@pytest.mark.parametrize("options", [{"kind": "fuzzy"}, {"tolerance": -1.0}, {"kind": "exact", "tolerance": 0.1}])
def test_comparisons_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError, match=r"expected|no effect"):
        OutputComparison(**options)
