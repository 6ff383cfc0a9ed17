"""What has to be inferred: a floor under the share that is found, and nothing breaking that is not there."""

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
PAIRS = corpus.read_pairs(corpus.HARD)


def test_names_of_cases_are_unique() -> None:
    names = [pair.name for pair in (*PAIRS, *corpus.read_pairs())]
    assert len(names) == len(set(names))


def test_most_of_what_must_be_inferred_is_found(tmp_path) -> None:
    marked, found, wrong = 0, 0, []
    for number, pair in enumerate(PAIRS):
        folder = tmp_path / str(number)
        folder.mkdir()
        findings = {each for each in audited(pair, folder) if each[3] != "info"}
        places = {(mark.file, mark.line) for mark in pair.marks if mark.severity in ("breaking", "warning")}
        marked += len(places)
        found += len(places & {each[:2] for each in findings})
        if not pair.held_out:
            wrong += [(pair.name, *each) for each in findings if each[:2] not in places]
    assert wrong == []
    assert found >= 0.88 * marked


@pytest.mark.parametrize(
    "name",
    [
        "a keyword that only one method of that name takes",
        "a docstring in the style of Google names the type",
        "a default changed for a value nobody typed",
    ],
)
def test_what_was_guessed_is_never_breaking(name, tmp_path) -> None:
    (pair,) = [each for each in PAIRS if each.name == name]
    assert {each[3] for each in audited(pair, tmp_path)} == {"warning"}
