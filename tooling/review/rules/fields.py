"""Fields of the classes of a module, by qualified name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.review.repository.module import Module


def field_names(module: Module | None) -> dict[str, int]:
    """ "Class.field" -> line, of every annotated class attribute."""
    return {
        f"{node.name}.{each.target.id}": each.lineno
        for node in (module.nodes(ast.ClassDef) if module is not None else ())
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
