"""Describe a configuration class: fields with types, defaults and the text behind them.

Reads classes, never values.

The loader asks it for nearest keys and expected types, the reference pages and the JSON schema for everything.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import textwrap
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, Union

from areal.algorithm.blocks import BlockChoice, block_classes
from areal.api import Config

_PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "any value",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """Field of a configuration class."""

    name: str
    annotation: Any
    """Resolved type, e.g. `int | None`."""
    default: Any
    """Default value; a fresh one for fields with a factory, `dataclasses.MISSING` when the field is required."""
    doc: str
    """The string literal behind the field."""
    section: type[Config] | None
    """Configuration class of a nested section, also when it may be null."""
    entries: type[Config] | None
    """Configuration class of each entry of a mapping from names of the user's choice to sections."""

    @property
    def free_form(self) -> bool:
        """Whether the field is a mapping with keys of the user's choice."""
        return typing.get_origin(self.annotation) is dict

    @property
    def blocks(self) -> dict[str, type[Config]]:
        """Name to class of the blocks that the field may hold; empty for a field that is not a block of an objective.

        The name is "" where there is one class only.
        """
        return block_classes(self.name) if self.annotation == typing.get_args(BlockChoice)[0] else {}


def fields_of(cls: type[Config]) -> dict[str, FieldSchema]:
    """Fields of a configuration class by name, in order of definition (base class first)."""
    hints, docs = _hints_and_docs(cls)  # type: ignore[arg-type]  # classes are hashable
    found = {}
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = FieldSchema(
            name=field.name,
            annotation=hints[field.name],
            default=default,
            doc=docs.get(field.name, ""),
            section=_section(hints[field.name]),
            entries=_entries(hints[field.name]),
        )
    return found


def key_paths(cls: type[Config]) -> tuple[str, ...]:
    """Every dotted key of a configuration class, sections before their members: ("model", "model.path", ...)."""
    paths = []
    for name, schema in fields_of(cls).items():
        paths.append(name)
        if schema.section is not None:
            paths += [f"{name}.{inner}" for inner in key_paths(schema.section)]
        if schema.entries is not None:
            paths += [f"{name}.NAME.{inner}" for inner in key_paths(schema.entries)]
        inside = {field.name for block in schema.blocks.values() for field in dataclasses.fields(block)}
        paths += [f"{name}.{inner}" for inner in sorted(inside)]
    return tuple(paths)


def lookup(cls: type[Config], path: tuple[str, ...]) -> FieldSchema | None:
    """Return the field at a path of keys, None when there is none (or the path leads into a free-form mapping).

    Below a block of an objective it is that of the first block that has it.
    """
    schema: FieldSchema | None = None
    section: type[Config] | None = cls
    for key in path:
        if schema is not None and schema.entries is not None:
            # The name of an entry: any will do.
            section = schema.entries
            schema = dataclasses.replace(schema, name=key, annotation=section, section=section, entries=None)
            continue
        if section is None and schema is not None:
            section = next((block for block in schema.blocks.values() if key in fields_of(block)), None)
        schema = fields_of(section).get(key) if section is not None else None
        if schema is None:
            return None
        section = schema.section
    return schema


def describe(annotation: Any) -> str:
    """Return an annotation in words: `int | None` is "an integer or null"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if origin is Literal:
        values = [f'"{value}"' if isinstance(value, str) else str(value) for value in arguments]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if origin in (tuple, list):
        item = {int: "integers", float: "numbers", str: "texts"}.get(arguments[0], "values")
        return f"a list of {item}"
    if origin is dict or annotation is dict or _section(annotation) is not None:
        return "a section of key: value lines"
    return _PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _entries(annotation: Any) -> type[Config] | None:
    return _section(typing.get_args(annotation)[1]) if typing.get_origin(annotation) is dict else None


def _section(annotation: Any) -> type[Config] | None:
    if typing.get_origin(annotation) is dict:
        return None
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Config):
            return candidate
    return None


@functools.cache
def _hints_and_docs(cls: type[Config]) -> tuple[dict[str, Any], dict[str, str]]:
    """Types of the fields, which are texts until something evaluates them, and the string literals that follow fields.

    Over the whole inheritance chain; subclasses win.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _module_docs(base.__module__).get(base.__qualname__, {})
    return typing.get_type_hints(cls), docs


@functools.cache
def _module_docs(module_name: str) -> dict[str, dict[str, str]]:
    """Class name to field name to text.

    The source is parsed once per module: `inspect.getsource` per class is slower.
    """
    tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[statement.target.id] = " ".join(textwrap.dedent(following.value.value).split())
    return docs
