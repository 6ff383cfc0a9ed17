"""Where the modeling source reads a field, and whether it does so only to draw the weights of a new model."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from areal.porting.probe.subject import Subject

INITIALISERS: Final = frozenset({"_init_weights", "reset_parameters"})
"""What transformers and torch call the functions that give a new model its weights."""


def mentions(subject: Subject) -> dict[str, str]:
    """Return the names that the modeling source reads as attributes or by getattr, with the first place:
    "file:line"."""
    found: dict[str, str] = {}
    for path, tree in _trees(subject):
        for name, node in _named(tree):
            found.setdefault(name, f"{path.name}:{node.lineno}")
    return found


def only_initialising(subject: Subject) -> dict[str, str]:
    """Return those that are read nowhere but where a new model gets its weights, with the first place there.

    `self.name = config.name` reads nothing: what reads the attribute later is a mention of its own.
    """
    found: dict[str, str] = {}
    elsewhere: set[str] = set()
    for path, tree in _trees(subject):
        initialising = {id(node) for function in _initialisers(tree) for node in ast.walk(function)}
        copied = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_copy(node)}
        for name, node in _named(tree):
            if id(node) in initialising:
                found.setdefault(name, f"{path.name}:{node.lineno}")
            elif id(node) not in copied:
                elsewhere.add(name)
    return {name: place for name, place in found.items() if name not in elsewhere}


def _trees(subject: Subject) -> Iterator[tuple[Path, ast.Module]]:
    config_file = subject.config_class.__module__.rpartition(".")[2]
    files = [path for path in subject.source_files if path.stem != config_file] or list(subject.source_files)
    for path in files:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr, node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value, node


def _initialisers(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions that give weights, and those that they call for what these do, not for what they return."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = [function for function in functions if function.name in INITIALISERS]
    for function in found:
        calls = (node.value for node in ast.walk(function) if isinstance(node, ast.Expr))
        called = {_last_name(call.func) for call in calls if isinstance(call, ast.Call)}
        found += [each for each in functions if each.name in called and each not in found and not _gives_value(each)]
    return found


def _gives_value(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))


def _is_copy(node: ast.Assign) -> bool:
    """Return whether it gives an attribute to an object under the name that it has in another one."""
    target, value = node.targets[0], node.value
    both = len(node.targets) == 1 and isinstance(target, ast.Attribute) and isinstance(value, ast.Attribute)
    return both and _last_name(target) == _last_name(value)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
