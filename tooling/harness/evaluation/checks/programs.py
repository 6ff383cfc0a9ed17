"""Checks that run something in the workspace: our commands, tests, one function. All of it stands in the checker."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.harness.evaluation.workspace import Workspace

_CALLER: Final = Path(__file__).with_name("caller.py")
_MISSING: Final = object()


def command(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A command exits as expected; its output, or a value of the JSON that it prints, is as expected."""
    done = workspace.run(values["run"])
    wanted = values.get("exit", 0)
    if done.returncode not in (wanted if isinstance(wanted, list) else [wanted]):
        said = (done.stderr or done.stdout).strip()[-300:]
        return f"`{' '.join(values['run'])}` exits with {done.returncode}: {said}"
    for text in values.get("contains", []):
        if text not in done.stdout:
            return f"`{values['run'][0]}` does not print {text!r}"
    for text in values.get("lacks", []):
        if text in done.stdout:
            return f"`{values['run'][0]}` prints {text!r}"
    return _json_problem(done.stdout, values) if "json" in values else ""


def call(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A function returns, or raises, what each case says. It is called in a process of its own."""
    request = json.dumps({"target": values["target"], "cases": values["cases"]})
    done = workspace.run([sys.executable, str(_CALLER), request])
    if done.returncode != 0:
        return f"{values['target']}: {(done.stderr or done.stdout).strip()[-300:]}"
    for case, answer in zip(values["cases"], json.loads(done.stdout.splitlines()[-1]), strict=True):
        expected = {key: case[key] for key in ("returns", "raises") if key in case}
        if answer != expected:
            return f"{values['target']}({_shown(case)}): {answer}, expected {expected}"
    return ""


def tests(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """The tests pass, and there are at least so many."""
    passed, problem = _passed(workspace, values["paths"])
    least = int(values.get("least", 1))
    if problem:
        return problem
    return "" if passed >= least else f"{passed} tests pass, expected {least} or more"


def mutants(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """The tests fail for each way of breaking the code. The file is put back whatever happens."""
    path = workspace.path(values["path"])
    if path.is_symlink() or not path.resolve().is_relative_to(workspace.root.resolve()) or not path.is_file():
        return f"{values['path']} is no file of the workspace"
    original = path.read_text(encoding="utf-8")
    try:
        for mutant in values["mutants"]:
            if original.count(mutant["before"]) != 1:
                return f"{values['path']} does not hold {mutant['before']!r} any more"
            path.write_text(original.replace(mutant["before"], mutant["after"]), encoding="utf-8")
            passed, problem = _passed(workspace, values["tests"])
            if not problem:
                return f"{passed} tests pass although {mutant['before']!r} became {mutant['after']!r}"
    finally:
        path.write_text(original, encoding="utf-8")
    return ""


def _passed(workspace: Workspace, paths: Sequence[str]) -> tuple[int, str]:
    """How many tests pass, and what is wrong."""
    for path in paths:
        if not workspace.path(path).exists():
            return 0, f"{path} does not exist"
    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    done = workspace.run(["python", "-m", "pytest", *options, *paths])
    found = re.search(r"(\d+) passed", done.stdout)
    passed = int(found[1]) if found else 0
    if done.returncode == 0:
        return passed, ""
    failed = re.search(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    said = failed[0] if failed else (done.stderr or done.stdout).strip()[-300:]
    return passed, f"pytest exits with {done.returncode}: {said}"


def _json_problem(output: str, values: Mapping[str, Any]) -> str:
    try:
        document = json.loads(output)
    except ValueError:
        return "does not print JSON"
    found = _at(document, values["json"].split("."))
    if found is _MISSING:
        return f"the JSON has no {values['json']}"
    if "equals" in values and found != values["equals"]:
        return f"{values['json']} is {found!r}, expected {values['equals']!r}"
    if "count" in values and len(found) != values["count"]:
        return f"{values['json']} has {len(found)} entries, expected {values['count']}: {json.dumps(found)[:200]}"
    return ""


def _at(document: Any, names: Sequence[str]) -> Any:
    for name in names:
        if isinstance(document, list) and name.isdigit() and int(name) < len(document):
            document = document[int(name)]
        elif isinstance(document, dict) and name in document:
            document = document[name]
        else:
            return _MISSING
    return document


def _shown(case: Mapping[str, Any]) -> str:
    given = [*map(repr, case.get("args", [])), *(f"{key}={value!r}" for key, value in case.get("kwargs", {}).items())]
    return ", ".join(given)[:120]
