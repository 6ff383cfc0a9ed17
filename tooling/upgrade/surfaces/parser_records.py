"""Parsers and flags as values, and what one `add_argument` call says about its flag."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.upgrade.surfaces.modules import Definition, FunctionNode, Modules


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a parser."""

    name: str
    """ "--swap-space"."""
    file: str
    line: int
    source: str
    """The call, shortened."""
    dest: str = ""
    negatable: bool | None = None
    """Whether `--no-x` exists too; None if the action is not known."""
    deprecated: str = ""


@dataclass(slots=True, eq=False)
class ParserNode:
    """A parser: what it takes, and its sub-commands."""

    flags: dict[str, Flag] = field(default_factory=dict)
    children: dict[str, ParserNode] = field(default_factory=dict)
    parents: list[ParserNode] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Where flags are made that cannot be read off: "file:line"."""
    lenient: bool = False
    """Unknown flags are ignored (`parse_known_args`)."""
    dashes: bool = False
    """The parser's class writes "_" as "-"."""
    handled: frozenset[str] = frozenset()
    """Flags that the parser's class looks for itself before parsing ("-O" in "-O3")."""

    def merged(self) -> dict[str, Flag]:
        """Its flags and those of parents."""
        found = dict(self.flags)
        for parent in self.parents:
            if parent is not self:
                found = {**parent.merged(), **found}
        return found


@dataclass(frozen=True, slots=True)
class Subparsers:
    """What `add_subparsers()` gives."""

    of: ParserNode


Parsers = ParserNode | Subparsers


def made_flag(name: str, node: ast.Call, file: str) -> Flag:
    """The flag `name` of an `add_argument` call."""
    keywords = {each.arg: each.value for each in node.keywords}
    action = keywords.get("action")
    negatable: bool | None = False
    if action is not None and "BooleanOptionalAction" in ast.unparse(action):
        negatable = True
    elif None in keywords and action is None:
        negatable = None
    dest = keywords.get("dest")
    text = dest.value if isinstance(dest, ast.Constant) and isinstance(dest.value, str) else ""
    source = " ".join(ast.unparse(node).split())
    shown = source if len(source) < 160 else f"{source[:157]}..."
    return Flag(name, file, node.lineno, shown, text, negatable, _deprecation(keywords))


def _deprecation(keywords: dict[str | None, ast.expr]) -> str:
    help_text = keywords.get("help")
    text = _text(help_text) if help_text is not None else ""
    deprecated = keywords.get("deprecated")
    if isinstance(deprecated, ast.Constant) and deprecated.value is True:
        return text or "deprecated"
    if "deprecated" in text.lower()[:40] or "Deprecated" in ast.unparse(keywords.get("action", ast.Constant(0))):
        return text or "deprecated"
    return ""


def _text(node: ast.expr) -> str:
    parts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return " ".join(" ".join(parts).split())


def class_constant(modules: Modules, owner: Definition, name: str) -> str | None:
    """A class attribute that is a string."""
    for each in modules.bases(owner):
        for node in each.node.body:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                value = getattr(node, "value", None)
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    return value.value
        for node in each.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__" and (text := _initial(node, name)):
                return text
    return None


def _initial(node: ast.FunctionDef, name: str) -> str | None:
    """`self.name = "x"`, or `super().__init__(name="x")`."""
    for each in ast.walk(node):
        named = isinstance(each, ast.keyword) and each.arg == name
        if isinstance(each, ast.Assign):
            named = f"self.{name}" in [ast.unparse(target) for target in each.targets]
        value = getattr(each, "value", None) if named else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def bound_parsers(
    node: FunctionNode | ast.ClassDef, given: dict[str | int, Parsers], *, skip: bool
) -> dict[str, Parsers]:
    """Parsers by the names of the parameters they land on."""
    if isinstance(node, ast.ClassDef):
        return {}
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    if (skip or names[:1] in (["self"], ["cls"])) and names[:1] in (["self"], ["cls"]):
        names = names[1:]
    found: dict[str, Parsers] = {}
    for key, value in given.items():
        if isinstance(key, str):
            found[key] = value
        elif key < len(names):
            found[names[key]] = value
    return found
