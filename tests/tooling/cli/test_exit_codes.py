"""Exit codes: one table, one meaning each."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import tooling
from tooling.cli.errors import EXIT_CODES, ToolError

ROOT = Path(__file__).resolve().parents[3]
MEANINGS = {
    1: {"internal", "write"},
    2: {"usage", "name", "consent"},
    3: {"conflict"},
    4: {"edited"},
    5: {"merge-conflict"},
    6: {"registry-shape"},
    7: {"checks-failed"},
    8: {"unsupported"},
    9: {"resolution", "resolver"},
    10: {"finding", "checks", "message", "unmarkable"},
    11: {"unreachable", "remote", "upstream", "offline", "archive"},
    12: {"pull-request"},
    13: {"client"},
    14: {"bug"},
    75: {"busy"},
    130: {"interrupted"},
}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Load the modules that define errors."""
    for found in pkgutil.walk_packages(tooling.__path__, "tooling."):
        if found.name.rpartition(".")[2] in {"errors", "check", "clients", "create", "git", "zh_mark"}:
            importlib.import_module(found.name)


def errors(root: type[ToolError]) -> set[type[ToolError]]:
    return {root}.union(*(errors(each) for each in root.__subclasses__()))


def test_every_error_of_the_harness_ends_with_a_code_of_the_table():
    ours = [error for error in errors(ToolError) if error.__module__.startswith("tooling.")]
    assert len(ours) > 15
    for error in ours:
        assert error.code in MEANINGS[error.exit_code], f"{error.__module__}.{error.__name__}"


def test_no_code_of_the_framework_means_something_else_here():
    source = (ROOT / "areal" / "api" / "errors.py").read_text(encoding="utf-8")
    theirs = {int(number) for number in re.findall(r"exit_code(?:: int)? = (\d+)", source)}
    assert theirs & set(EXIT_CODES) <= {1, 2, 75}


def without_a_fix(source: str) -> list[str]:
    """Calls of our errors whose `fix` is missing or empty."""
    names = {error.__name__ for error in errors(ToolError)}
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    ours = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]
    fixes = {
        ast.unparse(call): next((each.value for each in call.keywords if each.arg == "fix"), None) for call in ours
    }
    return [text for text, fix in fixes.items() if fix is None or (isinstance(fix, ast.Constant) and not fix.value)]


@pytest.mark.parametrize("package", ["mcp", "pull_request"])
def test_every_error_says_what_to_do(package):
    files = sorted((ROOT / "tooling" / package).rglob("*.py"))
    found = {path.name: without_a_fix(path.read_text(encoding="utf-8")) for path in files}
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_an_error_without_a_fix_is_seen():
    source = 'raise UsageError("x", where="y")\nraise ConflictError("x", fix="")\nraise UsageError("x", fix="do y")\n'
    assert len(without_a_fix(source)) == 2
