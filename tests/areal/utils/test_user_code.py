"""`blame` names the line of the user's code that an exception comes from, and the row that it was about."""

from __future__ import annotations

import importlib
import json

import datasets
import pytest

from areal.utils.user_code import blame

MODULE = """
import json
from dataclasses import dataclass
from datasets import Dataset


@dataclass
class Raw:
    rows: list
    def where(self, index):
        return f"line {index + 10}"


def answer(row):
    return row["gold"]


def over_a_list(rows):
    return [answer(row) for row in rows]


def over_an_owner(rows):
    raw = Raw(rows)
    for row in raw.rows:
        answer(row)


def mapped(rows):
    return Dataset.from_list(rows).map(lambda row: {"answer": 1 // row["n"]})


def inside_a_library(text):
    return json.loads(text)


def leaves(code):
    raise SystemExit(code)
"""
ROWS = [{"gold": 1, "n": 1}, {"gold": 2, "n": 3}, {"n": 0}]


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "their_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return importlib.reload(importlib.import_module("their_module"))


def raised(function, *arguments, **options):
    with pytest.raises((Exception, SystemExit)) as caught:
        function(*arguments)
    # As a caller in this package does: without the frame of the test.
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    return blame(caught.value, function, **options)


@pytest.mark.parametrize(
    ("name", "row", "line"),
    [
        ("over_a_list", "row 2", "return row[\"gold\"]"),
        ("over_an_owner", "line 12", "return row[\"gold\"]"),
        ("mapped", "row 2", "1 // row[\"n\"]"),
    ],
)  # fmt: skip
def test_the_row_that_code_was_at_is_found(module, name, row, line):
    datasets.disable_progress_bars()
    found = raised(getattr(module, name), ROWS)
    assert found.row == row
    assert line in found.text
    assert found.place.rpartition(":")[0] == module.__file__


def test_the_line_is_the_users_and_not_that_of_the_library_it_called(module):
    found = raised(module.inside_a_library, "{")
    assert found.text.startswith("JSONDecodeError: Expecting property name")
    assert found.text.endswith("return json.loads(text))")
    assert found.row == ""


def test_a_program_that_ends_itself_is_told_as_such(module):
    assert raised(module.leaves, 0).text.startswith("SystemExit (it ended the program): 0 (at ")


def test_a_syntax_error_and_a_missing_package_are_placed(module, tmp_path, monkeypatch):
    (tmp_path / "unfinished.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "needs_more.py").write_text("import a_package_nobody_has\n")
    found = raised(importlib.import_module, "unfinished")
    assert found.text == f"SyntaxError: invalid syntax (at {tmp_path / 'unfinished.py'}:2: def f(:)"
    found = raised(importlib.import_module, "needs_more")
    assert (found.place, found.missing) == (f"{tmp_path / 'needs_more.py'}:1", "a_package_nobody_has")
    assert found.fix_of_import == "install a_package_nobody_has, or do not import it"


def test_what_no_code_of_the_user_has_a_part_in_is_left_alone():
    from areal.api import load

    with pytest.raises(Exception, match="has no object") as caught:
        load("reward", "json:nothing", {})
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next
    assert blame(error, load) is None
    assert blame(error, json.dumps) is not None, "installed code is the user's when it was the user who named it"
    assert "registry.py" in blame(error, always=True).place


def test_a_long_message_is_cut(module):
    assert len(raised(module.leaves, "x" * 5000).text) < 600
