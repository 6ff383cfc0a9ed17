"""Descriptions of the configuration made from its classes: a Markdown reference and a JSON schema. Torch-free."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from areal.trainer.configuration.schema import FieldSchema, describe, fields_of
from areal.trainer.configuration.source import KINDS, validator_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from areal.api import Config

_LIMITS = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}
"""Sign of a limit (`areal.algorithm.blocks.number`) to its keyword in a JSON schema."""


def markdown() -> str:
    """Every key of all kinds of run with type, default and meaning, as one page."""
    lines = [
        "# Configuration",
        "",
        "A run is described by a YAML file; `key=value` arguments of `areal train` change single values. The key",
        f"`kind` selects the trainer: {', '.join(f'`{kind}`' for kind in KINDS)}; the default is `rl`.",
        "Unknown keys are errors.",
        "`areal train CONFIG.yaml --dry-run` prints every value together with where it came from.",
        "",
        "Scalars follow YAML 1.2: `1e-4` is a number, `no` and `on` are text. A count of *prompts* is a count of",
        "groups of `rollout.group_size` samples.",
    ]
    common = set.intersection(*(set(fields_of(cls)) for cls in KINDS.values())) - {"kind"}
    base = next(iter(KINDS.values()))
    lines += [
        "",
        "## Every run",
        "",
        *_table({name: fields_of(base)[name] for name in fields_of(base) if name in common}),
    ]
    sections: dict[type[Config], list[str]] = {}
    for kind, cls in KINDS.items():
        own = {name: schema for name, schema in fields_of(cls).items() if name not in common}
        lines += ["", f"## kind: {kind}", "", *_table(own)]
        for name, section in _named_sections(cls, ""):
            if name not in sections.setdefault(section, []):
                sections[section].append(name)
    for section, names in sections.items():
        heading = ", ".join(f"`{name}`" for name in names)
        lines += ["", f"## {heading}", "", f"{_summary(section)} (`{section.__module__}.{section.__name__}`)", ""]
        lines += _table(fields_of(section))
        for name, field in fields_of(section).items():
            if field.blocks:
                lines += ["", f"### `{names[0]}.{name}`", ""]
                lines += _blocks(field.blocks)
    return "\n".join(lines) + "\n"


def json_schema(kind: str) -> dict[str, Any]:
    """JSON schema of one kind of run, with the text of every field as its description."""
    schema: dict[str, Any] = validator_of(kind).json_schema()
    definitions = schema.get("$defs", {})
    _add_descriptions(schema, KINDS[kind])
    for name, section in _sections(KINDS[kind]):
        if name in definitions:
            _add_descriptions(definitions[name], section)
            for key, field in fields_of(section).items():
                if field.blocks:
                    definitions[name]["properties"][key] |= {"anyOf": _block_schemas(field.blocks)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _add_descriptions(schema: dict[str, Any], cls: type[Config]) -> None:
    """Add to each property the text and the range of its field."""
    docs = fields_of(cls)
    for field in dataclasses.fields(cls):
        if field.name in schema.get("properties", {}):
            limits = {_LIMITS[sign]: bound for sign, bound in field.metadata.get("limits", {}).items()}
            schema["properties"][field.name] |= {"description": docs[field.name].doc, **limits}


def _block_schemas(blocks: dict[str, type[Config]]) -> list[dict[str, Any]]:
    """JSON schemas of what a block may be: null, a name or path, or a section of one of the classes."""
    from pydantic import TypeAdapter

    if "" in blocks:
        return [{"type": "null"}, _block_schema(TypeAdapter(blocks[""]).json_schema(), blocks[""])]
    path = {"type": "string", "pattern": r"^[\w.]+[.:]\w+$", "description": "path to a class of yours"}
    schemas: list[dict[str, Any]] = [{"type": "null"}, {"enum": list(blocks)}, path]
    for name, cls in blocks.items():
        schema = _block_schema(TypeAdapter(cls).json_schema(), cls)
        schemas.append(schema | {"properties": {"name": {"const": name}, **schema["properties"]}})
    own = {"type": "object", "properties": {"name": path}, "required": ["name"]}
    return [*schemas, own]


def _block_schema(schema: dict[str, Any], cls: type[Config]) -> dict[str, Any]:
    schema.setdefault("properties", {})
    _add_descriptions(schema, cls)
    return schema | {"description": _summary(cls)}


def _blocks(blocks: dict[str, type[Config]]) -> Iterator[str]:
    """Lines about each block: what it does, its formula and source, its fields."""
    for name, cls in blocks.items():
        # Every block of an objective has both; `Config`, which they share with all sections, does not.
        formula, source = (str(getattr(cls, key)) for key in ("formula", "source"))
        path = f"`{cls.__module__}.{cls.__name__}`"
        title = f"**{name}** ({path})" if name else path
        yield f"{title}: {_summary(cls)} `{formula}`. {source}".rstrip(". ") + "."
        yield ""
        if fields_of(cls):
            yield from _table(fields_of(cls))
            yield ""


def _summary(cls: type[Config]) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _named_sections(cls: type[Config], prefix: str) -> Iterator[tuple[str, type[Config]]]:
    """Every section below `cls` with its dotted key, a section before those inside it."""
    for name, field in fields_of(cls).items():
        if field.section is not None:
            yield f"{prefix}{name}", field.section
            yield from _named_sections(field.section, f"{prefix}{name}.")
        if field.entries is not None:
            yield f"{prefix}{name}.NAME", field.entries
            yield from _named_sections(field.entries, f"{prefix}{name}.NAME.")


def _sections(cls: type[Config]) -> Iterator[tuple[str, type[Config]]]:
    for field in fields_of(cls).values():
        for inner in (field.section, field.entries):
            if inner is not None:
                yield inner.__name__, inner
                yield from _sections(inner)


def _table(fields: dict[str, FieldSchema]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in fields.items():
        expected = "mapping" if field.free_form else describe(field.annotation)
        if field.entries is not None:
            expected = "sections by name"
        if field.section is not None:
            expected = "section" if field.default is not None else "section or null"
        yield f"| `{name}` | {_cell(expected)} | {_default(field)} | {_cell(field.doc)} |"


def _default(field: FieldSchema) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return "see below"
    return f"`{_cell(json.dumps(list(value) if isinstance(value, tuple) else value))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
