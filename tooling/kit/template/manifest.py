"""Reads the manifest of a kind of unit (template.toml), checks it, and evaluates it for one unit.

    manifest = load_manifest(folder)
    resolved = resolve(manifest, context, rendered_paths)     # context: `rendering.template_context`

Every string of a manifest is a Jinja template over names and answers. The records are in `tooling.kit.kind`; questions
are in copier.yml and read by `tooling.kit.template.questions`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, get_args

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.kit.change.plan import safe_path
from tooling.kit.kind import (
    DocumentEntry,
    KindManifest,
    OptionEntry,
    RegistryEntry,
    RegistryShape,
    ResolvedManifest,
    TemplateFile,
)
from tooling.kit.template.expressions import evaluate, holds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

FILE = "template.toml"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_KEYS: dict[str, type] = {
    "name": str,
    "summary": str,
    "symbols": list,
    "generator": str,
    "commit": str,
    "next": list,
    "reserved": list,
    "options": list,
    "files": list,
    "registry": list,
    "unproven": list,
    "documents": list,
    "renames": dict,
    "example": dict,
}
_OPTION_KEYS: dict[str, type] = {"name": str, "metavar": str, "help": str, "reports": bool}
_FILE_KEYS: dict[str, type] = {"path": str, "purpose": str, "contract": str, "todo": list, "test": bool}
_REGISTRY_KEYS: dict[str, type] = {"file": str, "shape": str, "table": str, "key": str, "value": str}
_DOCUMENT_KEYS: dict[str, type] = {"file": str, "section": str, "key": str, "line": str}
_OPTIONAL = frozenset({"contract", "reports", "test", "todo", "value", "when"})


# ---------------------------------------------------------------------------------------------------------- reading


def load_manifest(folder: Path) -> KindManifest:
    """Return the manifest of a template folder, expressions not evaluated.

    Raises UsageError naming the file and the key for a missing or broken file, unknown keys, wrong types and missing
    keys.
    """
    path = folder / FILE
    where = os.fspath(path)
    try:
        table = parse_toml(path.read_bytes())
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise UsageError(message, where=where, fix="a kind needs copier.yml and template.toml") from error
    except TOMLError as error:
        raise UsageError(f"is not TOML: {error}", where=where, fix="correct the file") from error
    _check_table(table, _KEYS, where, required=("name", "summary"))
    for key in ("symbols", "next", "reserved"):
        _check_texts(table.get(key, []), f"{where}: {key}")
    renames = table.get("renames", {})
    _check_texts(renames.values(), f"{where}: renames")
    if not _NAME.fullmatch(table["name"]):
        raise UsageError(f"{table['name']!r} is not a name for a kind", where=where, fix="use small letters and '-'")
    if table.get("generator") and not _MODULE.fullmatch(table["generator"]):
        raise UsageError(
            f"{table['generator']!r} is not a module", where=f"{where}: generator", fix="name it as in `import`"
        )
    return KindManifest(
        name=table["name"],
        summary=table["summary"],
        symbols=tuple(table.get("symbols", ())),
        generator=table.get("generator", ""),
        commit=table.get("commit", ""),
        next=tuple(table.get("next", ())),
        reserved=tuple(table.get("reserved", ())),
        options=tuple(OptionEntry(**entry) for entry in _tables(table, "options", _OPTION_KEYS, where, when=False)),
        files=_tables(table, "files", _FILE_KEYS, where),
        registry=_tables(table, "registry", _REGISTRY_KEYS, where),
        unproven=_tables(table, "unproven", _REGISTRY_KEYS, where),
        documents=_tables(table, "documents", _DOCUMENT_KEYS, where),
        renames={_place(old, f"{where}: renames"): _place(new, f"{where}: renames") for old, new in renames.items()},
        example=table.get("example", {}),
    )


def _tables(
    table: Mapping[str, Any], key: str, keys: dict[str, type], where: str, *, when: bool = True
) -> tuple[dict[str, Any], ...]:
    """Return the entries of an array of tables, each checked."""
    for number, entry in enumerate(table.get(key, []), start=1):
        place = f"{where}: {key}[{number}]"
        if not isinstance(entry, dict):
            raise UsageError("expected a table", where=place, fix=f"write it as [[{key}]]")
        required = [name for name in keys if name not in _OPTIONAL]
        _check_table(
            {name: entry[name] for name in entry if name != "when" or not when}, keys, place, required=required
        )
        if not isinstance(entry.get("when", True), (bool, str)):
            raise UsageError("`when` has to be a bool or a Jinja expression", where=place, fix="correct it")
        _check_texts(entry.get("todo", []), f"{place}.todo")
    return tuple(table.get(key, ()))


def _check_table(table: Mapping[str, Any], keys: dict[str, type], where: str, *, required: Collection[str]) -> None:
    for key, value in table.items():
        if key not in keys:
            fix = did_you_mean(key, keys) or f"known keys: {', '.join(keys)}"
            raise UsageError(f"unknown key {key!r}", where=where, fix=fix)
        if not isinstance(value, keys[key]):
            found = type(value).__name__
            raise UsageError(
                f"`{key}` is of type {found}, expected {keys[key].__name__}", where=where, fix="correct it"
            )
    missing = [key for key in required if key not in table]
    if missing:
        raise UsageError(f"lacks `{missing[0]}`", where=where, fix=f"add {missing[0]} = ...")


def _check_texts(values: Any, where: str) -> None:
    if not all(isinstance(value, str) for value in values):
        raise UsageError("holds something that is not text", where=where, fix="write strings")


# ---------------------------------------------------------------------------------------------------------- evaluating


def resolve(
    manifest: KindManifest, context: Mapping[str, Any], rendered_paths: Collection[str] | None = None
) -> ResolvedManifest:
    """Return the manifest for one unit, without entries whose `when` does not hold.

    rendered_paths: what the template rendered; each needs exactly one entry in `files`, and the other way round. None
    leaves that out. Raises UsageError naming the entry for expressions that fail and paths that leave the repository.
    """
    where = f"{manifest.name}/{FILE}"
    files = tuple(
        TemplateFile(
            path=_place(evaluate(entry["path"], context, where=place), place),
            purpose=evaluate(entry["purpose"], context, where=place),
            contract=evaluate(entry.get("contract", ""), context, where=place),
            todo=_texts(entry.get("todo", ()), context, place),
            test=entry.get("test", False),
        )
        for entry, place in _kept(manifest.files, "files", context, where)
    )
    if rendered_paths is not None:
        _match(files, rendered_paths, where)
    return ResolvedManifest(
        symbols=_texts(manifest.symbols, context, f"{where}: symbols"),
        commit=evaluate(manifest.commit, context, where=f"{where}: commit"),
        next=_texts(manifest.next, context, f"{where}: next"),
        files=files,
        registry=tuple(
            _registry(entry, context, place) for entry, place in _kept(manifest.registry, "registry", context, where)
        ),
        unproven=tuple(
            _registry(entry, context, place) for entry, place in _kept(manifest.unproven, "unproven", context, where)
        ),
        documents=tuple(
            _document(entry, context, place) for entry, place in _kept(manifest.documents, "documents", context, where)
        ),
    )


def _kept(
    entries: tuple[Mapping[str, Any], ...], key: str, context: Mapping[str, Any], where: str
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the entries whose condition holds, each with its place for messages."""
    places = [(entry, f"{where}: {key}[{number}]") for number, entry in enumerate(entries, start=1)]
    return [(entry, place) for entry, place in places if holds(entry.get("when", True), context, where=f"{place}.when")]


def _texts(values: Collection[str], context: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return evaluated texts without empty ones, so that an expression can drop its line."""
    evaluated = (evaluate(value, context, where=where) for value in values)
    return tuple(value for value in evaluated if value.strip())


def _registry(entry: Mapping[str, Any], context: Mapping[str, Any], where: str) -> RegistryEntry:
    values = {key: evaluate(entry.get(key, ""), context, where=f"{where}.{key}") for key in _REGISTRY_KEYS}
    shapes: tuple[RegistryShape, ...] = get_args(RegistryShape)
    shape = next((known for known in shapes if known == values["shape"]), None)
    if shape is None:
        fix = did_you_mean(values["shape"], shapes) or f"use one of: {', '.join(shapes)}"
        raise UsageError(f"unknown shape {values['shape']!r}", where=where, fix=fix)
    if not values["key"]:
        raise UsageError("`key` is empty", where=where, fix="name what is registered")
    return RegistryEntry(_place(values["file"], where), shape, values["table"], values["key"], values["value"])


def _document(entry: Mapping[str, Any], context: Mapping[str, Any], where: str) -> DocumentEntry:
    values = {key: evaluate(entry[key], context, where=f"{where}.{key}") for key in _DOCUMENT_KEYS}
    if any(letter in values["line"] for letter in "\r\n"):
        raise UsageError("`line` is more than one line", where=where, fix="make it one line")
    return DocumentEntry(_place(values["file"], where), values["section"], values["key"], values["line"])


def _place(path: str, where: str) -> str:
    try:
        return safe_path(path)
    except UsageError as error:
        raise UsageError(error.message, where=where, fix=error.fix) from error


def _match(files: tuple[TemplateFile, ...], rendered_paths: Collection[str], where: str) -> None:
    described = [entry.path for entry in files]
    for path in sorted(set(described)):
        if described.count(path) > 1:
            raise UsageError(f"two entries are about {path!r}", where=where, fix="keep one of them")
        if path not in rendered_paths:
            message = f"an entry is about {path!r}, which the template does not render"
            near = did_you_mean(path, sorted(set(rendered_paths) - set(described)))
            raise UsageError(message, where=where, fix=near or "correct its path or give it a `when`")
    for path in sorted(set(rendered_paths) - set(described)):
        fix = f"add a [[files]] entry with its path and purpose, for {path}"
        raise UsageError(f"nothing says what {path!r} is for", where=where, fix=fix)
