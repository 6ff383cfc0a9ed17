"""Options that users write: choices that nobody checks, fields that break every configuration there is."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.module import Function, keyword, last_name, nodes_in
from tooling.review.records import Place, Rule, Severity, is_test

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

_CONFIG = re.compile(r"(Config|Args|Arguments|Options|Params)$")


def unchecked_choice(module: Module, side: Side) -> Iterator[Hit]:
    """Find a field with a list of choices that the class's own validation leaves out."""
    for owner in module.nodes(ast.ClassDef):
        limited = {name: node for node in owner.body if (name := _limited(node))}
        checks = [each for each in owner.body if isinstance(each, Function) and each.name == "__post_init__"]
        said = {part.attr for part in nodes_in(checks, ast.Attribute)}
        said |= {str(part.value) for part in nodes_in(checks, ast.Constant)}
        calls = nodes_in(checks, ast.Call)
        generic = any(last_name(part.func) == "fields" for part in calls)
        for name, node in limited.items() if set(limited) & said and not generic else ():
            if name not in said and not _checked_elsewhere(side, module, name):
                yield node, f"`{owner.name}.{name}` lists its choices, and `__post_init__` does not check them"


def _checked_elsewhere(side: Side, module: Module, name: str) -> bool:
    """Whether another file says what the field must be."""
    spelt = re.compile(rf"{re.escape(name)}\b.*(\bnot in\b|must be|invalid|unknown|unsupported)", re.IGNORECASE)
    others = (path for path in side.grep([name], "*.py") if path != module.path)
    return any(spelt.search(line) for path in others for line in (side.text(path) or "").splitlines())


def _limited(node: ast.stmt) -> str:
    """Return the name of a field with `metadata={"choices": [...]}`."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Call):
        return ""
    metadata = keyword(node.value, "metadata")
    listed = metadata.keys if isinstance(metadata, ast.Dict) else []
    keys = [each.value for each in listed if isinstance(each, ast.Constant)]
    return last_name(node.target) if "choices" in keys else ""


def required_field(comparison: Comparison) -> Iterator[Place]:
    """Find a field without a default in a config class that people configure already."""
    for file, before, after in comparison.modified():
        if is_test(file.path):
            continue
        old = {node.name: _fields(node) for node in before.nodes(ast.ClassDef) if _CONFIG.search(node.name)}
        for node in after.nodes(ast.ClassDef):
            known = old.get(node.name)
            renamed = set(known or ()) - set(_fields(node))
            for name, each in _fields(node).items() if known and not renamed else ():
                new = each.value is None and name not in (known or ())
                if new and not _all_callers_follow(comparison, node.name, name):
                    yield Place(file.path, each.lineno, f"`{node.name}.{name}` is new, and has no default")


def _all_callers_follow(comparison: Comparison, owner: str, field: str) -> bool:
    """Whether the class is made by calls here, and each of them names the new field."""
    calls = [
        call
        for path in comparison.head.grep([owner], "*.py")
        if (module := comparison.head.module(path)) is not None
        for call in module.nodes(ast.Call)
        if last_name(call.func) == owner
    ]
    return bool(calls) and all(keyword(call, field) is not None for call in calls)


def _fields(owner: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    if not any("dataclass" in ast.unparse(each) or "define" in ast.unparse(each) for each in owner.decorator_list):
        return {}
    found = (each for each in owner.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
    return {last_name(each.target): each for each in found if "ClassVar" not in ast.unparse(each.annotation)}


RULES = (
    Rule("unchecked-choice", Severity.MEDIUM, in_file=unchecked_choice),
    Rule("required-field-added", Severity.MEDIUM, in_change=required_field),
)
