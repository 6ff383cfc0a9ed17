"""A release's modules as trees, parsed when asked for, and the fields of its classes."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.python.module import Module
from tooling.python.once import once
from tooling.python.source import defined_names, dotted_name, module_name, parsed, string_of
from tooling.python.source_modules import NodeInModule, SourceModules

if TYPE_CHECKING:
    from tooling.python.symbols.tree import SymbolTree
    from tooling.upgrade.releases import Release

ReleaseClass = NodeInModule[ast.ClassDef]


class ReleaseModules(SourceModules):
    """All modules of a release."""

    def __init__(self, release: Release) -> None:
        self.release = release

    @cached_property
    def paths(self) -> dict[str, str]:
        """Dotted name to file."""
        found = {}
        for path in self.release.files():
            if path.endswith(".py"):
                found[module_name(path)[0]] = path
        return found

    @cached_property
    def symbols(self) -> SymbolTree[Release]:
        """The release as symbols, for what its classes take."""
        from tooling.python.symbols.tree import SymbolTree

        return SymbolTree(self.release)

    @once()
    def content(self, path: str) -> bytes:
        """A file's bytes, read once."""
        return self.release.read(path)

    def holding(self, *words: bytes) -> list[str]:
        """Paths of the .py files in whose text one of the words stands."""
        return [path for path, content in self._contents if any(word in content for word in words)]

    @cached_property
    def _contents(self) -> list[tuple[str, bytes]]:
        return [(path, self.content(path)) for path in self.paths.values()]

    def module(self, dotted: str, importer: str = "") -> Module | None:
        """See `SourceModules`: a release's imports are absolute."""
        return self._parsed(dotted)

    @once()
    def _parsed(self, dotted: str) -> Module | None:
        path = self.paths.get(dotted)
        tree = parsed(self.content(path)) if path is not None else None
        return Module(path, tree, dotted) if path is not None and tree is not None else None

    def at(self, path: str) -> Module | None:
        """The module in a file."""
        return self.module(module_name(path)[0])

    def annotations(self, owner: ReleaseClass) -> dict[str, tuple[Module, ast.AnnAssign]]:
        """Annotated attributes of a class, its bases, and the classes it is put together from. ClassVars are none."""
        found: dict[str, tuple[Module, ast.AnnAssign]] = {}
        for module, each in [base for part in (owner, *self.parts(owner)) for base in self.bases(part)]:
            for name, node in defined_names(each.body):
                told = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else "ClassVar"
                if isinstance(node, ast.AnnAssign) and not told.startswith(("ClassVar", "typing.ClassVar")):
                    found.setdefault(name, (module, node))
        return found

    def fields(self, owner: ReleaseClass) -> dict[str, tuple[str, int, str]]:
        """Annotated attributes as name to (file, line, annotation)."""
        return {
            name: (module.path, node.lineno, ast.unparse(node.annotation))
            for name, (module, node) in self.annotations(owner).items()
        }

    def parts(self, owner: ReleaseClass) -> list[ReleaseClass]:
        """Classes whose annotations a module's top level gives to one of its classes.

        `C.__annotations__ = {**collected, ...}`: all classes that the value leads to, through variables of the module.
        """
        module, name = owner.module, f"{owner.node.name}.__annotations__"
        assigned = [node for node in module.tree.body if isinstance(node, ast.Assign)]
        waiting = [node.value for node in assigned if name in map(dotted_name, node.targets)]
        found: list[ReleaseClass] = []
        seen: set[str] = set()
        while waiting:
            for each in ast.walk(waiting.pop()):
                if not isinstance(each, ast.Name) or each.id in seen:
                    continue
                seen.add(each.id)
                if each.id in module.values:
                    waiting.append(module.values[each.id])
                part = self.class_named(each, module)
                if part is not None and part.node is not owner.node:
                    found.append(part)
        return found


def class_constant(modules: ReleaseModules, owner: ReleaseClass, name: str) -> str | None:
    """A class attribute that is a string."""
    for _, each in modules.bases(owner):
        values = [getattr(node, "value", None) for found, node in defined_names(each.body) if found == name]
        made = [node for node in each.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        for text in (*map(string_of, values), *(_initial(node, name) for node in made)):
            if text is not None:
                return text
    return None


def _initial(node: ast.FunctionDef, name: str) -> str | None:
    """`self.name = "x"`, or `super().__init__(name="x")`."""
    for each in ast.walk(node):
        named = isinstance(each, ast.keyword) and each.arg == name
        if isinstance(each, ast.Assign):
            named = f"self.{name}" in map(dotted_name, each.targets)
        text = string_of(getattr(each, "value", None)) if named else None
        if text:
            return text
    return None
