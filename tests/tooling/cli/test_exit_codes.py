"""Exit codes: one table, one meaning each."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

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
    9: {"resolution"},
    10: {"finding", "message", "unmarkable"},
    11: {"unreachable", "remote", "upstream", "offline", "archive"},
    12: {"pull-request"},
    13: {"client"},
    75: {"busy"},
    130: {"interrupted"},
}


def errors(root: type[ToolError]) -> set[type[ToolError]]:
    return {root}.union(*(errors(each) for each in root.__subclasses__()))


def test_every_error_of_the_harness_ends_with_a_code_of_the_table():
    for found in pkgutil.walk_packages(tooling.__path__, "tooling."):
        if found.name.rpartition(".")[2] in {"errors", "check", "clients", "create", "git", "zh_mark"}:
            importlib.import_module(found.name)
    ours = [error for error in errors(ToolError) if error.__module__.startswith("tooling.")]
    assert len(ours) > 15
    for error in ours:
        assert error.code in MEANINGS[error.exit_code], f"{error.__module__}.{error.__name__}"


def test_no_code_of_the_framework_means_something_else_here():
    source = (ROOT / "areal" / "api" / "errors.py").read_text(encoding="utf-8")
    theirs = {int(number) for number in re.findall(r"exit_code(?:: int)? = (\d+)", source)}
    assert theirs & set(EXIT_CODES) <= {1, 2, 75}
