"""A release's modules as trees, parsed when asked for; names followed through imports as far as definitions go.

Smaller than `upstream` on purpose: what flags and routes need is which function or class a name is, nothing about
types. A file that cannot be parsed is as good as absent.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, absolute, dotted_name, each_statement, module_name, package_of, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.upgrade.releases import Release

_DEPTH = 8
"""Re-exports that are followed for one name."""


@dataclass(frozen=True, slots=True)
class ModuleDefinition:
    """A function or class with the module around it."""

    module: ReleaseModule
    node: FunctionNode | ast.ClassDef


class ReleaseModule:
    """One parsed file."""

    def __init__(self, dotted: str, path: str, tree: ast.Module) -> None:
        self.dotted = dotted
        self.path = path
        self.tree = tree

    @cached_property
    def definitions(self) -> dict[str, FunctionNode | ast.ClassDef]:
        """Top-level functions and classes, those under `if` and `try` too."""
        found: dict[str, FunctionNode | ast.ClassDef] = {}
        for node in _top(self.tree.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(node.name, node)
        return found

    @cached_property
    def _package(self) -> str:
        return package_of(self.path)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that an import names, relative ones resolved."""
        return absolute(self._package, node.level, node.module or "")

    @cached_property
    def imports(self) -> dict[str, str]:
        """Names bound by imports anywhere in the file, to dotted paths: lazy imports inside functions count."""
        found: dict[str, str] = {}
        for node in each_statement(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    found[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom):
                base = self.absolute(node)
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{base}.{alias.name}" if base else alias.name
        return found

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Names that are assigned at the top level, to their last value; those of `a, b = f()` to all of it."""
        found: dict[str, ast.expr] = {}
        for node in _top(self.tree.body):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    listed = target.elts if isinstance(target, ast.Tuple) else [target]
                    found.update({each.id: node.value for each in listed if isinstance(each, ast.Name)})
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                found[node.target.id] = node.value
        return found


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _top(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _top(handler.body)


class ReleaseModules:
    """All modules of a release."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._parsed: dict[str, ReleaseModule | None] = {}
        self._bytes: dict[str, bytes] = {}

    @cached_property
    def paths(self) -> dict[str, str]:
        """Dotted name to file."""
        found = {}
        for path in self.release.files():
            if path.endswith(".py"):
                found[module_name(path)[0]] = path
        return found

    def content(self, path: str) -> bytes:
        """A file's bytes, read once."""
        if path not in self._bytes:
            self._bytes[path] = self.release.read(path)
        return self._bytes[path]

    def holding(self, *words: bytes) -> list[str]:
        """Paths of the .py files in whose text one of the words stands."""
        if len(words) == 1:
            word = words[0]
            return [path for path, content in self._contents if word in content]
        return [path for path, content in self._contents if any(word in content for word in words)]

    @cached_property
    def _contents(self) -> list[tuple[str, bytes]]:
        return [(path, self.content(path)) for path in self.paths.values()]

    def module(self, dotted: str) -> ReleaseModule | None:
        """The module of that name; None if there is none, or it cannot be parsed."""
        path = self.paths.get(dotted)
        if path is None:
            return None
        if dotted not in self._parsed:
            tree = parsed(self.content(path))
            self._parsed[dotted] = None if tree is None else ReleaseModule(dotted, path, tree)
        return self._parsed[dotted]

    def at(self, path: str) -> ReleaseModule | None:
        """The module in a file."""
        return self.module(module_name(path)[0])

    def find(self, dotted: str, depth: int = 0) -> ModuleDefinition | None:
        """The function or class that a dotted path leads to."""
        parent, _, name = dotted.rpartition(".")
        module = self.module(parent) if parent else None
        if module is None or depth > _DEPTH:
            return None
        if name in module.definitions:
            return ModuleDefinition(module, module.definitions[name])
        if name in module.imports and module.imports[name] != dotted:
            return self.find(module.imports[name], depth + 1)
        nodes = [node for node in module.tree.body if isinstance(node, ast.ImportFrom)]
        for star in [module.absolute(node) for node in nodes if node.names[0].name == "*"]:
            if (found := self.find(f"{star}.{name}", depth + 1)) is not None:
                return found
        return None

    def named(self, expression: ast.expr, module: ReleaseModule) -> ModuleDefinition | None:
        """The definition that a name or dotted expression in a module means."""
        dotted = dotted_name(expression)
        if not dotted:
            return None
        head, _, rest = dotted.partition(".")
        if not rest and head in module.definitions:
            return ModuleDefinition(module, module.definitions[head])
        if head in module.imports:
            return self.find(".".join([module.imports[head], *([rest] if rest else [])]))
        return None

    def bases(self, definition: ModuleDefinition) -> list[ModuleDefinition]:
        """A class and its bases in this release, depth first, each once."""
        found: list[ModuleDefinition] = []
        waiting = [definition]
        while waiting:
            current = waiting.pop(0)
            if not isinstance(current.node, ast.ClassDef) or any(current.node is each.node for each in found):
                continue
            found.append(current)
            bases = [
                self.named(base.value if isinstance(base, ast.Subscript) else base, current.module)
                for base in current.node.bases
            ]
            waiting = [*(base for base in bases if base is not None), *waiting]
        return found

    def method(self, definition: ModuleDefinition, name: str) -> ModuleDefinition | None:
        """The method of a class or of its bases."""
        for each in self.bases(definition):
            for node in each.node.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                    return ModuleDefinition(each.module, node)
        return None

    def annotations(self, definition: ModuleDefinition) -> dict[str, tuple[ReleaseModule, ast.AnnAssign]]:
        """Annotated attributes of a class, its bases, and the classes it is put together from. ClassVars are none."""
        found: dict[str, tuple[ReleaseModule, ast.AnnAssign]] = {}
        classes = [each for part in (definition, *self.parts(definition)) for each in self.bases(part)]
        for each in classes:
            for node in each.node.body:
                if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                    continue
                if not ast.unparse(node.annotation).startswith(("ClassVar", "typing.ClassVar")):
                    found.setdefault(node.target.id, (each.module, node))
        return found

    def fields(self, definition: ModuleDefinition) -> dict[str, tuple[str, int, str]]:
        """Annotated attributes as name to (file, line, annotation)."""
        return {
            name: (module.path, node.lineno, ast.unparse(node.annotation))
            for name, (module, node) in self.annotations(definition).items()
        }

    def parts(self, definition: ModuleDefinition) -> list[ModuleDefinition]:
        """Classes whose annotations a module's top level gives to one of its classes.

        `C.__annotations__ = {**collected, ...}`: all classes that the value leads to, through variables of the module.
        """
        name = f"{definition.node.name}.__annotations__"
        waiting = [
            node.value
            for node in definition.module.tree.body
            if isinstance(node, ast.Assign) and name in [dotted_name(target) for target in node.targets]
        ]
        found: list[ModuleDefinition] = []
        seen: set[str] = set()
        while waiting:
            for each in ast.walk(waiting.pop()):
                if not isinstance(each, ast.Name) or each.id in seen:
                    continue
                seen.add(each.id)
                if each.id in definition.module.values:
                    waiting.append(definition.module.values[each.id])
                part = self.named(each, definition.module)
                if part is not None and isinstance(part.node, ast.ClassDef) and part.node is not definition.node:
                    found.append(part)
        return found


def class_constant(modules: ReleaseModules, owner: ModuleDefinition, name: str) -> str | None:
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
