"""Judges what an agent left in a workspace: one function per kind of check, and the table of kinds."""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.harness.evaluation.records import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tooling.harness.evaluation.records import Check, Evaluation
    from tooling.harness.evaluation.workspace import Workspace


_TYPES: Final = {"async function": ast.AsyncFunctionDef, "class": ast.ClassDef, "function": ast.FunctionDef}


def file(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A file is there, or is not; it holds texts, or does not. `path` may be a glob: one file has to fit."""
    paths = sorted(path for path in workspace.root.glob(values["path"]) if path.is_file() and not path.is_symlink())
    if not values.get("exists", True):
        return f"{values['path']} exists" if paths else ""
    if not paths:
        return f"{values['path']} does not exist"
    problems = [_text_problem(path.read_text(encoding="utf-8", errors="replace"), values) for path in paths]
    return "" if "" in problems else f"{paths[0].relative_to(workspace.root).as_posix()}: {problems[0]}"


def symbol(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A class or function is there, of the type that is asked for, and calls what it should or should not."""
    path = workspace.path(values["path"])
    tree, problem = _parsed(path, values["path"])
    if tree is None:
        return problem
    node = _named(tree, values["name"].split("."))
    if node is None:
        return f"{values['path']} has no {values['name']}"
    wanted = values.get("type")
    if wanted and not isinstance(node, _TYPES[wanted]):
        return f"{values['name']} is no {wanted}"
    called = {ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    for name in values.get("calls", []):
        if name not in called:
            return f"{values['name']} does not call {name}"
    for name in values.get("never_calls", []):
        if name in called:
            return f"{values['name']} calls {name}"
    return ""


def registry(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A table of strings has the entry, and its value fits."""
    tree, problem = _parsed(workspace.path(values["path"]), values["path"])
    if tree is None:
        return problem
    for statement in tree.body:
        target: ast.expr | None = statement.target if isinstance(statement, ast.AnnAssign) else None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else target
        if target is None or ast.unparse(target) != values["table"]:
            continue
        assert isinstance(statement, ast.Assign | ast.AnnAssign)
        try:
            table = ast.literal_eval(statement.value) if statement.value is not None else {}
        except ValueError:
            return f"{values['table']} is no literal table"
        found = table.get(values["key"])
        if found is None:
            return f"{values['table']} has no entry {values['key']!r}"
        pattern = values.get("value", ".*")
        return "" if re.fullmatch(pattern, str(found)) else f"{values['key']!r} leads to {found!r}"
    return f"{values['path']} has no table {values['table']}"


def _text_problem(text: str, values: Mapping[str, Any]) -> str:
    for wanted in values.get("contains", []):
        if wanted not in text:
            return f"does not hold {wanted!r}"
    for unwanted in values.get("lacks", []):
        if unwanted in text:
            return f"holds {unwanted!r}"
    for pattern in values.get("matches", []):
        if not re.search(pattern, text, re.MULTILINE):
            return f"nothing in it fits {pattern!r}"
    return ""


def _parsed(path: Any, name: str) -> tuple[ast.Module | None, str]:
    if not path.is_file() or path.is_symlink():
        return None, f"{name} does not exist"
    try:
        return ast.parse(path.read_text(encoding="utf-8")), ""
    except (SyntaxError, ValueError) as error:
        return None, f"{name} is no Python: {error}"


def _named(tree: ast.AST, names: list[str]) -> ast.AST | None:
    found: ast.AST | None = tree
    for name in names:
        inside = ast.iter_child_nodes(found) if found is not None else iter(())
        found = next((one for one in inside if getattr(one, "name", None) == name), None)
    return found


def changed(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """Only these paths differ from the start, and each of those that must."""
    paths = workspace.changed()
    only = values.get("only")
    odd = [path for path in paths if only is not None and not _fits(path, only)]
    if odd:
        return f"changed as well: {', '.join(odd[:3])}"
    lacking = [glob for glob in values.get("must", []) if not any(fnmatchcase(path, glob) for path in paths)]
    return f"unchanged: {', '.join(lacking)}" if lacking else ""


def clean(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """Nothing is left uncommitted."""
    del values
    left = [line[3:] for line in workspace.git("status", "--porcelain").splitlines()]
    return f"not committed: {', '.join(left[:3])}" if left else ""


def commits(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """So many commits since the start, whose messages conform; `parts`: globs of paths, one commit for each list."""
    reach = str(values.get("range", "")) or f"{workspace.start}..HEAD"
    hashes = workspace.git("rev-list", "--reverse", reach, "--").split()
    count = values.get("count")
    if count is not None and len(hashes) != count:
        return f"{len(hashes)} commits, expected {count}"
    if not hashes:
        return "there is no commit"
    left = [list(part) for part in values.get("parts", [])]
    for commit in hashes if left else []:
        paths = workspace.git("show", "--format=", "--name-only", "--no-renames", commit).split("\n")
        part = next((one for one in left if all(_fits(path, one) for path in paths if path)), None)
        if part is None:
            return f"{commit[:10]} mixes what belongs apart, or repeats it: {', '.join(filter(None, paths))}"
        left.remove(part)
    if left:
        return f"no commit for {left[0]}"
    done = workspace.run(["areal-commit", "check", "--json", "--all", reach])
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return f"areal-commit: {done.stderr.strip()[-200:]}"
    wrong = [f"{one['header']!r}: {one['problems'][0]['message']}" for one in document["messages"] if _failed(one)]
    return wrong[0] if wrong else ""


def remote(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A branch that fits is on the remote, so many commits ahead of main."""
    lines = workspace.git("ls-remote", "--heads", values["name"]).splitlines()
    heads = {line.split("\t")[1].removeprefix("refs/heads/"): line.split("\t")[0] for line in lines}
    found = next((name for name in sorted(heads) if re.fullmatch(values["branch"], name)), None)
    if found is None:
        return f"{values['name']} has no branch {values['branch']}; it has {', '.join(sorted(heads)) or 'none'}"
    ahead = values.get("ahead")
    if ahead is None:
        return ""
    workspace.git("fetch", "-q", values["name"])
    number = workspace.git("rev-list", "--count", f"{values['name']}/main..{heads[found]}").strip()
    return "" if number == str(ahead) else f"{found} is {number or '?'} commits ahead of main, expected {ahead}"


def _failed(message: Mapping[str, Any]) -> bool:
    return any(problem["severity"] == "error" for problem in message["problems"])


def _fits(path: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


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


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of check."""

    problem: Callable[[Workspace, Mapping[str, Any]], str]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


KINDS: Final[dict[str, Kind]] = {
    "call": Kind(call, ("target", "cases")),
    "changed": Kind(changed, (), ("must", "only")),
    "clean": Kind(clean),
    "command": Kind(command, ("run",), ("contains", "count", "equals", "exit", "json", "lacks")),
    "commits": Kind(commits, (), ("count", "parts", "range")),
    "file": Kind(file, ("path",), ("contains", "exists", "lacks", "matches")),
    "mutants": Kind(mutants, ("path", "tests", "mutants")),
    "registry": Kind(registry, ("path", "table", "key"), ("value",)),
    "remote": Kind(remote, ("name", "branch"), ("ahead",)),
    "symbol": Kind(symbol, ("path", "name"), ("calls", "never_calls", "type")),
    "tests": Kind(tests, ("paths",), ("least",)),
}


def judge(evaluation: Evaluation, workspace: Workspace, *, quick: bool = False) -> list[Result]:
    """Every check; `quick` leaves out the slow ones."""
    return [_result(check, workspace) for check in evaluation.checks if not (quick and check.slow)]


def _result(check: Check, workspace: Workspace) -> Result:
    started = time.monotonic()
    problem = KINDS[check.kind].problem(workspace, check.values)
    return Result(check, problem, time.monotonic() - started)
