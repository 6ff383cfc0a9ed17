"""The auditor on the pairs: every marked line found, with its kind and severity, and nothing else said."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


def _load(name: str):
    spec = importlib.util.spec_from_file_location(f"pairs_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


corpus = _load("corpus")
audited = _load("auditing").audited
PAIRS = corpus.read_pairs()


KNOWN: dict[str, str] = {}
"""Pairs that the audit does not judge as marked, each with the reason."""


def _case(pair):
    marks = [pytest.mark.xfail(reason=KNOWN[pair.name], strict=True)] if pair.name in KNOWN else []
    return pytest.param(pair, marks=marks, id=f"{pair.category}: {pair.name}")


@pytest.mark.sample(200)
@pytest.mark.parametrize("pair", [_case(pair) for pair in PAIRS])
def test_the_audit_says_exactly_what_is_marked(pair, tmp_path) -> None:
    assert audited(pair, tmp_path) == pair.expected()


@pytest.mark.exhaustive
def test_the_bar_is_cleared(tmp_path) -> None:
    """95 % of the marked lines found, 95 % of the breaking findings right, 90 % of the found ones of the right kind."""
    expected, found = set(), set()
    for number, pair in enumerate(PAIRS):
        folder = tmp_path / str(number)
        folder.mkdir()
        expected |= {(number, *each) for each in pair.expected()}
        found |= {(number, *each) for each in audited(pair, folder)}
    places = {each[:3] for each in expected}
    hits = [each for each in expected if each[:3] in {other[:3] for other in found}]
    breaking = [each for each in found if each[4] == "breaking"]
    right = [each for each in breaking if each[:3] in places]
    kinds = [each for each in hits if each[:4] in {other[:4] for other in found}]
    assert len(hits) >= 0.95 * len(expected)
    assert len(right) >= 0.95 * len(breaking)
    assert len(kinds) >= 0.90 * len(hits)
