"""What is said when a process of the repository gives no answer: what it ran into, not a guess."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.new.change import Change, UnitRequest
from tooling.new.generators.child import ask


def refusal(folder: Path, source: str, *, python: str = sys.executable, module: str = "page", seconds: float = 30):
    """Return the error about a module with this source."""
    (folder / "page.py").write_text(source, encoding="utf-8")
    change = Change(root=folder, python=Path(python), request=UnitRequest(kind="model", name="x"))
    with pytest.raises(UsageError) as caught:
        ask(change, [module, "--json"], what="the analysis", where="--from", seconds=seconds)
    assert caught.value.where == "--from"
    return caught.value


def test_an_answer_is_one_object(tmp_path):
    (tmp_path / "page.py").write_text("import json, sys; print(json.dumps({'said': sys.stdin.read()}))")
    change = Change(root=tmp_path, python=Path(sys.executable), request=UnitRequest(kind="model", name="x"))
    assert ask(change, ["page"], what="it", where="NAME", seconds=30, text="hello") == {"said": "hello"}


@pytest.mark.parametrize(
    ("source", "message", "fix"),
    [
        ("import no_such.part", "has no no_such", "install areal[train]"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL", "memory left"),
        ("raise MemoryError", "ran out of memory", "less data"),
        ("print('hello')", "something else than JSON: 'hello'", "shows all of it"),
        ("print('[]')", "something else than JSON: '[]'", "shows all of it"),
        ("x = 1\nx.y", "'int' object has no attribute 'y' (", "`python -m page --json` shows all of it"),
        ("raise SystemExit(3)", "exit code 3 and no output", "shows all of it"),
    ],
)
def test_the_reason_is_the_true_one(tmp_path, source, message, fix):
    error = refusal(tmp_path, source)
    assert message in error.message
    assert fix in error.fix
    assert ("areal[train]" in error.fix) == ("no_such" in source)


def test_a_module_that_the_interpreter_does_not_find_is_named(tmp_path):
    assert "does not find nowhere.page" in refusal(tmp_path, "", module="nowhere.page").message


def test_an_error_says_where_it_arose(tmp_path):
    assert f"({tmp_path / 'page.py'}:2)" in refusal(tmp_path, "x = 1\nx.y").message


def test_a_missing_interpreter_and_a_slow_module_are_said(tmp_path):
    missing = refusal(tmp_path, "", python=str(tmp_path / "python"))
    assert "No such file" in missing.message
    assert "make setup" in missing.fix
    assert "took longer than 1 s" in refusal(tmp_path, "import time; time.sleep(60)", seconds=1).message
