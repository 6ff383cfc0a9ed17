"""Checks that read files: text, names of Python, tables of registries. Nothing is imported or run."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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
