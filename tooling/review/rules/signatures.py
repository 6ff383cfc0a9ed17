"""Checks whether a call fits a definition; only what is certain is called a misfit."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.review.repository.module import Function

if TYPE_CHECKING:
    from tooling.review.repository.module import Module
    from tooling.review.repository.side import Side


@dataclass
class Shape:
    """What may be passed. `positional` in order; `required` by name."""

    positional: list[str] = field(default_factory=list)
    keywords: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    more_positional: bool = False
    more_keywords: bool = False


def misfit(side: Side, owner: Module, definition: Function | ast.ClassDef, call: ast.Call) -> str:
    """Say why the call cannot work; "" if it can, or if that is not certain."""
    shape = _shape_of_class(side, owner, definition) if isinstance(definition, ast.ClassDef) else _shape(definition)
    return _fits(shape, call) if shape is not None else ""


def misfit_of_method(method: Function, call: ast.Call) -> str:
    """Say the same for `self.method(...)`."""
    return _fits(_shape(method, bound=True), call) if not method.decorator_list else ""


def _fits(shape: Shape | None, call: ast.Call) -> str:
    if shape is None or any(isinstance(each, ast.Starred) for each in call.args):
        return ""
    if any(each.arg is None for each in call.keywords):
        return ""
    given = {each.arg for each in call.keywords if each.arg}
    unknown = sorted(given - shape.keywords)
    if unknown and not shape.more_keywords:
        return f"takes no `{unknown[0]}`"
    if len(call.args) > len(shape.positional) and not shape.more_positional:
        return f"takes {len(shape.positional)} positional arguments, {len(call.args)} are passed"
    missing = sorted(shape.required - given - set(shape.positional[: len(call.args)]))
    return f"needs `{missing[0]}`" if missing else ""


def _shape(function: Function, *, bound: bool = False) -> Shape | None:
    """Return the shape of a plain function; None when a decorator may change it."""
    if function.decorator_list and not bound:
        return None
    spec = function.args
    positional = [each.arg for each in (*spec.posonlyargs, *spec.args)]
    needed = positional[: len(positional) - len(spec.defaults)]
    shape = Shape(
        positional=positional[bound:],
        keywords={each.arg for each in (*spec.args, *spec.kwonlyargs)},
        required=set(needed[bound:]),
        more_positional=spec.vararg is not None,
        more_keywords=spec.kwarg is not None,
    )
    shape.required |= {
        each.arg for each, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is None
    }
    return shape


def _shape_of_class(side: Side, owner: Module, found: ast.ClassDef, depth: int = 0) -> Shape | None:
    """Of a class with its own `__init__`, or of a plain dataclass whose bases are plain dataclasses of ours."""
    if found.keywords or depth > 5:
        return None
    methods = {each.name: each for each in found.body if isinstance(each, Function)}
    if "__new__" in methods:
        return None
    if not found.decorator_list:
        own = methods.get("__init__")
        return _shape(own, bound=True) if own is not None and not own.decorator_list else None
    return _shape_of_dataclass(side, owner, found, depth) if "__init__" not in methods else None


def _shape_of_dataclass(side: Side, owner: Module, found: ast.ClassDef, depth: int) -> Shape | None:
    decorator = ast.unparse(found.decorator_list[0])
    if len(found.decorator_list) > 1 or not decorator.startswith(("dataclass", "dataclasses.dataclass")):
        return None
    shape = Shape()
    for base in found.bases:
        target = (
            side.definition(owner.imported.get(base.id, f"{owner.package}.{base.id}"))
            if isinstance(base, ast.Name)
            else None
        )
        if target is None or not isinstance(target[1], ast.ClassDef) or not target[1].decorator_list:
            return None
        inherited = _shape_of_class(side, target[0], target[1], depth + 1)
        if inherited is None:
            return None
        shape.positional += inherited.positional
        shape.keywords |= inherited.keywords
        shape.required |= inherited.required
    keyword_only = "kw_only=True" in decorator
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if "KW_ONLY" in ast.unparse(node.annotation) or "init=False" in ast.unparse(node):
                return None
            if "ClassVar" in ast.unparse(node.annotation):
                continue
            name, default = node.target.id, ast.unparse(node.value) if node.value is not None else ""
            shape.keywords.add(name)
            if not keyword_only and name not in shape.positional:
                shape.positional.append(name)
            shape.required.discard(name)
            bare = default.startswith(("field(", "dataclasses.field(")) and "default" not in default
            if not default or bare:
                shape.required.add(name)
    return shape
