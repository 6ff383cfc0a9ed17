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

    from tooling.harness.evaluation.records import SkillEvaluation
    from tooling.harness.evaluation.workspace import TaskWorkspace


_TYPES: Final = {"async function": ast.AsyncFunctionDef, "class": ast.ClassDef, "function": ast.FunctionDef}


def file(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that a file exists or not, and holds texts or not. `path` may be a glob: one file has to fit."""
    paths = sorted(path for path in workspace.root.glob(values["path"]) if path.is_file() and not path.is_symlink())
    if not values.get("exists", True):
        return f"{values['path']} exists" if paths else ""
    if not paths:
        return f"{values['path']} does not exist"
    problems = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        lacking = [f"does not hold {wanted!r}" for wanted in values.get("contains", []) if wanted not in text]
        lacking += [f"holds {unwanted!r}" for unwanted in values.get("lacks", []) if unwanted in text]
        patterns = values.get("matches", [])
        lacking += [f"nothing in it fits {one!r}" for one in patterns if not re.search(one, text, re.MULTILINE)]
        problems.append(lacking[0] if lacking else "")
    return "" if "" in problems else f"{paths[0].relative_to(workspace.root).as_posix()}: {problems[0]}"


def symbol(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that a class or function exists, has the type asked for, and calls what it should and nothing else."""
    path = workspace.path(values["path"])
    tree, problem = _parsed(path, values["path"])
    if tree is None:
        return problem
    node: ast.AST = tree
    for name in values["name"].split("."):
        found = next((one for one in ast.iter_child_nodes(node) if getattr(one, "name", None) == name), None)
        if found is None:
            return f"{values['path']} has no {values['name']}"
        node = found
    wanted = values.get("type")
    if wanted and not isinstance(node, _TYPES[wanted]):
        return f"{values['name']} is not of type {wanted}"
    called = {ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    for name in values.get("calls", []):
        if name not in called:
            return f"{values['name']} does not call {name}"
    for name in values.get("never_calls", []):
        if name in called:
            return f"{values['name']} calls {name}"
    return ""


def registry(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that a table of strings has the entry, and that its value fits."""
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
            return f"{values['table']} is not a literal table"
        found = table.get(values["key"])
        if found is None:
            return f"{values['table']} has no entry {values['key']!r}"
        pattern = values.get("value", ".*")
        return "" if re.fullmatch(pattern, str(found)) else f"{values['key']!r} leads to {found!r}"
    return f"{values['path']} has no table {values['table']}"


def _parsed(path: Any, name: str) -> tuple[ast.Module | None, str]:
    if not path.is_file() or path.is_symlink():
        return None, f"{name} does not exist"
    try:
        return ast.parse(path.read_text(encoding="utf-8")), ""
    except (SyntaxError, ValueError) as error:
        return None, f"{name} is not valid Python: {error}"


def changed(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that only these paths differ from the start, and each of those that must."""
    paths = workspace.changed()
    only = values.get("only")
    odd = [path for path in paths if only is not None and not _fits(path, only)]
    if odd:
        return f"changed as well: {', '.join(odd[:3])}"
    lacking = [glob for glob in values.get("must", []) if not any(fnmatchcase(path, glob) for path in paths)]
    return f"unchanged: {', '.join(lacking)}" if lacking else ""


def clean(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that nothing is left uncommitted."""
    del values
    left = [line[3:] for line in workspace.git("status", "--porcelain").splitlines()]
    return f"not committed: {', '.join(left[:3])}" if left else ""


def commits(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check number and messages of the commits since the start. `parts`: globs of paths, one commit for each list."""
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
    for one in document["messages"]:
        if any(problem["severity"] == "error" for problem in one["problems"]):
            return f"{one['header']!r}: {one['problems'][0]['message']}"
    return ""


def remote(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that a branch is on the remote, so many commits ahead of the remote's main and none behind it."""
    lines = workspace.git("ls-remote", "--heads", values["name"]).splitlines()
    heads = {line.split("\t")[1].removeprefix("refs/heads/"): line.split("\t")[0] for line in lines}
    found = next((name for name in sorted(heads) if re.fullmatch(values["branch"], name)), None)
    if found is None:
        return f"{values['name']} has no branch {values['branch']}; it has {', '.join(sorted(heads)) or 'none'}"
    ahead = values.get("ahead")
    if ahead is None:
        return ""
    workspace.git("fetch", "-q", values["name"])
    counts = workspace.git("rev-list", "--count", "--left-right", f"{values['name']}/main...{heads[found]}").split()
    if counts == ["0", str(ahead)]:
        return ""
    behind, number = counts or ("?", "?")
    return f"{found} is {number} commits ahead of main and {behind} behind, expected {ahead} and 0"


def _fits(path: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


_CALLER: Final = Path(__file__).with_name("caller.py")


def command(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check the exit code of a command, and its output or a value of the JSON that it prints."""
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


def _json_problem(output: str, values: Mapping[str, Any]) -> str:
    """Say what is wrong with the value of a JSON document that `json` names."""
    try:
        found = json.loads(output)
        for name in values["json"].split("."):
            found = found[int(name) if isinstance(found, list) else name]
    except json.JSONDecodeError:
        return "does not print JSON"
    except (IndexError, KeyError, TypeError, ValueError):
        return f"the JSON has no {values['json']}"
    if "equals" in values and found != values["equals"]:
        return f"{values['json']} is {found!r}, expected {values['equals']!r}"
    if "count" in values and len(found) != values["count"]:
        return f"{values['json']} has {len(found)} entries, expected {values['count']}: {json.dumps(found)[:200]}"
    return ""


def call(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check what a function returns or raises in each case. It is called in a process of its own."""
    request = json.dumps({"target": values["target"], "cases": values["cases"]})
    done = workspace.run([sys.executable, str(_CALLER), request])
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        return f"{values['target']}: {lines[-1][-300:]}"
    for case, answer in zip(values["cases"], json.loads(done.stdout.splitlines()[-1]), strict=True):
        expected = {key: case[key] for key in ("returns", "raises") if key in case}
        if answer != expected:
            given = [
                *map(repr, case.get("args", [])),
                *(f"{key}={one!r}" for key, one in case.get("kwargs", {}).items()),
            ]
            return f"{values['target']}({', '.join(given)[:120]}): {answer}, expected {expected}"
    return ""


def tests(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that the tests pass, and that there are at least so many."""
    passed, problem = _passed(workspace, values["paths"])
    least = int(values.get("least", 1))
    if problem:
        return problem
    return "" if passed >= least else f"{passed} tests pass, expected {least} or more"


def mutants(workspace: TaskWorkspace, values: Mapping[str, Any]) -> str:
    """Check that the tests fail for each way of breaking the code. The file is put back whatever happens."""
    path = workspace.path(values["path"])
    if path.is_symlink() or not path.resolve().is_relative_to(workspace.root.resolve()) or not path.is_file():
        return f"{values['path']} is not a file of the workspace"
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


def _passed(workspace: TaskWorkspace, paths: Sequence[str]) -> tuple[int, str]:
    """Return how many tests pass, and what is wrong."""
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


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of check."""

    problem: Callable[[TaskWorkspace, Mapping[str, Any]], str]
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


def judge(evaluation: SkillEvaluation, workspace: TaskWorkspace, *, quick: bool = False) -> list[Result]:
    """Run every check; `quick` leaves out the slow ones."""
    results = []
    for check in evaluation.checks:
        if not (quick and check.slow):
            started = time.monotonic()
            problem = KINDS[check.kind].problem(workspace, check.values)
            results.append(Result(check, problem, time.monotonic() - started))
    return results
