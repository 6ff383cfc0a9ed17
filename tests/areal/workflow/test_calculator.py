"""The calculator: exact on what it understands, at once done with what would grow, an error for everything else."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal.workflow.calculator import calculate
from areal.workflow.tool_calls import ToolError


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("8*9", "72"),
        ("(3 + 4.5) * 2", "15"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 10 / 3", "341.333333333"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** -3", "0.125"),
        ("+-+4", "-4"),
        ("1_000 * 3", "3000"),
        ("1e-3 * 2", "0.002"),
        ("  7  ", "7"),
        ("2 ** 256 % 10", "6"),
        ("1 ** 512", "1"),
        ("7.50 - 0.5", "7"),
    ],
)
def test_arithmetic(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("1 % 0", "division by zero"),
        ("9 ** 9 ** 9", "an exponent must be"),
        ("(9 ** 99) ** 99", "too large"),
        ("9 ** 512 ** 1", "too large"),
        ("2 ** 0.5", "an exponent must be a whole number"),
        ("9" * 190, "too large"),
        ("1e999", "too large"),
        ("1" * 201, "201 characters"),
        ("(" * 150, "not valid arithmetic"),
        ("", "not valid arithmetic"),
        ("8 *", "not valid arithmetic"),
        ("\ud800", "not valid arithmetic"),
        ("\0", "not valid arithmetic"),
        ("x + 1", "only numbers"),
        ("True + 1", "only numbers"),
        ("1j", "only numbers"),
        ("'a' * 9", "only numbers"),
        ("[1] * 9", "only numbers"),
        ("1 << 9", "only numbers"),
        ("~1", "only numbers"),
        ("__import__('os').getpid()", "only numbers"),
        ("(lambda: 1)()", "only numbers"),
        ("1 if 1 else 2", "only numbers"),
        ("-" * 199 + "1", None),
    ],
)
def test_everything_else_is_refused_at_once_with_words_for_the_model(expression, message):
    started = time.thread_time()
    if message is None:
        assert calculate(expression) == "-1"
    else:
        with pytest.raises(ToolError, match=message):
            calculate(expression)
    assert time.thread_time() - started < 2.5


@given(st.integers(-999, 999), st.sampled_from("+-*"), st.integers(-999, 999), st.integers(1, 99))
def test_results_are_those_of_exact_arithmetic(left, sign, right, divisor):
    expected = Fraction({"+": left + right, "-": left - right, "*": left * right}[sign], divisor)
    found = calculate(f"({left} {sign} {right}) / {divisor}")
    assert abs(Fraction(found) - expected) <= abs(expected) * Fraction(1, 10**11)
