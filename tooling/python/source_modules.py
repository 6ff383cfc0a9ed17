"""Follow names through the modules of a release or a repository, as far as functions, classes and constants go.

Smaller than `symbols` on purpose: where code is followed statement by statement, imports inside functions count, and
what is wanted is the node that a name leads to, not what a client may do with it.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from tooling.python.source import DefinitionNode, FunctionNode, defined_names, dotted_name

if TYPE_CHECKING:
    from tooling.python.module import Module

_DEPTH = 8
"""Re-exports that are followed for one name."""
_Node_co = TypeVar("_Node_co", bound=ast.AST, covariant=True)


class NodeInModule(NamedTuple, Generic[_Node_co]):
    """What a name means, and the module that it is written in."""

    module: Module
    node: _Node_co


MeantNode = NodeInModule[DefinitionNode | ast.expr]
"""A function, a class, or the value of a variable."""


def as_class(found: NodeInModule[ast.AST] | None) -> NodeInModule[ast.ClassDef] | None:
    """Return what was found, if it is a class."""
    return NodeInModule(found.module, found.node) if found and isinstance(found.node, ast.ClassDef) else None


class SourceModules(ABC):
    """Modules that import each other."""

    @abstractmethod
    def module(self, dotted: str, importer: str = "") -> Module | None:
        """Return what `import dotted` reads in the file `importer`; None if it is not there, or not Python."""

    def meaning(self, module: Module, name: str) -> tuple[DefinitionNode | None, ast.expr | None, str | None]:
        """Return what a name is in a module, of each kind: a definition, a value, an imported path. What a function
        imports for itself is not what the module's own variable of that name is."""
        value, imported = module.values.get(name), module.imported_on_top.get(name)
        if imported is None and value is None:
            imported = module.imported.get(name)
        return module.definitions.get(name), value, imported

    def find(self, dotted: str, importer: str = "") -> MeantNode | None:
        """Return what a dotted path leads to, through re-exports."""
        return self._find(dotted, importer, 0, set())

    def _find(self, dotted: str, importer: str, depth: int, seen: set[tuple[str, str]]) -> MeantNode | None:
        """seen: (file, name) that were looked at: star imports that cross have more ways through them than modules."""
        parent, _, name = dotted.rpartition(".")
        module = self.module(parent, importer) if parent and depth <= _DEPTH else None
        if module is None or (module.path, name) in seen:
            return None
        seen.add((module.path, name))
        definition, value, imported = self.meaning(module, name)
        if definition is not None:
            return NodeInModule(module, definition)
        # In `try: from fast import f` with `except ImportError: f = None` the import says more.
        found = self._find(imported, module.path, depth + 1, seen) if imported not in (None, dotted) else None
        if found is None and value is not None:
            return NodeInModule(module, value)
        if found is not None:
            return found
        starred = (self._find(f"{star}.{name}", module.path, depth + 1, seen) for star in module.stars)
        return next((each for each in starred if each is not None), None)

    def named(self, node: ast.expr, module: Module) -> MeantNode | None:
        """Return what a name or dotted expression means at the top level of a module."""
        head, _, rest = dotted_name(node).partition(".")
        if not head:
            return None
        definition, value, imported = self.meaning(module, head)
        if not rest and definition is not None:
            return NodeInModule(module, definition)
        if imported is not None:
            found = self.find(".".join([imported, *([rest] if rest else [])]), module.path)
            return found if found is not None or rest or value is None else NodeInModule(module, value)
        if isinstance(definition, ast.ClassDef) and "." not in rest:
            return self.attribute(NodeInModule(module, definition), rest)
        return NodeInModule(module, value) if value is not None and not rest else None

    def class_named(self, node: ast.expr, module: Module) -> NodeInModule[ast.ClassDef] | None:
        """Return the class that an expression means at the top level of a module."""
        return as_class(self.named(node, module))

    def bases(self, owner: NodeInModule[ast.AST]) -> list[NodeInModule[ast.ClassDef]]:
        """List a class and its bases, each once, depth first, but behind all that derive from it: of `C(A, B)` with
        `A(Base)` and `B(Base)` C, A, B, Base. [] for anything but a class."""
        found: list[NodeInModule[ast.ClassDef]] = []  # from the back: the last base and its bases come first
        seen: set[ast.AST] = set()
        waiting: list[tuple[NodeInModule[ast.ClassDef] | None, bool]] = [(as_class(owner), False)]
        while waiting:
            current, done = waiting.pop()
            if current is not None and done:
                found.append(current)
            elif current is not None and current.node not in seen:
                seen.add(current.node)
                plain = [base.value if isinstance(base, ast.Subscript) else base for base in current.node.bases]
                waiting += [(current, True), *((self.class_named(base, current.module), False) for base in plain)]
        return found[::-1]

    def attribute(self, owner: NodeInModule[ast.AST], name: str) -> MeantNode | None:
        """Return a method, or the value of an attribute, that a class or one of its bases has."""
        for module, each in self.bases(owner):
            for found, node in defined_names(each.body):
                if found == name and isinstance(node, FunctionNode):
                    return NodeInModule(module, node)
                value = getattr(node, "value", None)
                if found == name and isinstance(value, ast.expr):
                    return NodeInModule(module, value)
        return None

    def method(self, owner: NodeInModule[ast.AST], name: str) -> NodeInModule[FunctionNode] | None:
        """Return the method of a class or of its bases."""
        found = self.attribute(owner, name)
        return NodeInModule(found.module, found.node) if found and isinstance(found.node, FunctionNode) else None
