"""griffe's breakages of a package, joined to what a repository uses of it: `griffe check` with a usage side.

    .venv-audit/bin/python benchmarks/upgrade_griffe.py PACKAGE OLD NEW CHECKOUT FILE ...

OLD and NEW hold the package's sources of two versions, each FILE is a client's, relative to CHECKOUT. Prints a JSON
list of {path, line, kind, symbol}. griffe itself knows no clients, so the join is ours and generous: a removed name is
reported where it, or anything below it, is imported or used; a changed parameter at calls that pass it; a method by its
name alone, in files that import its class or an object below the same module.
"""

from __future__ import annotations

import ast
import gc
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import griffe  # type: ignore[import-not-found]  # in .venv-audit only

WHOLE = {"OBJECT_REMOVED", "OBJECT_CHANGED_KIND", "CLASS_REMOVED_BASE"}
"""Breakages of a name; the others are of one parameter."""


@dataclass
class Client:
    """What one file does with the package, by name."""

    names: dict[str, str] = field(default_factory=dict)
    """Local name -> dotted path."""
    used: list[tuple[str, int]] = field(default_factory=list)
    """Dotted path, line."""
    calls: list[tuple[str, str, ast.Call]] = field(default_factory=list)
    """Dotted path if known, last name, the call."""


def read_client(source: bytes, package: str) -> Client:
    """Return imports, attribute chains and calls of a file."""
    client = Client()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == package.split(".", maxsplit=1)[0]:
                    client.names[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else package
                    client.used.append((alias.name, node.lineno))
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith(package):
            for alias in node.names:
                client.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                client.used.append((f"{node.module}.{alias.name}", alias.lineno))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _dotted(node, client.names)):
            client.used.append((path, node.lineno))
        elif isinstance(node, ast.Call):
            last = getattr(node.func, "attr", getattr(node.func, "id", ""))
            client.calls.append((_dotted(node.func, client.names), last, node))
    return client


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def join(client: Client, path: str, breakages: dict[str, list[dict[str, Any]]], aliases: dict[str, str]) -> list[Any]:
    """Return the findings of one file."""
    found = []
    canonical = {dotted: aliases.get(dotted, dotted) for dotted, _line in client.used}
    for dotted, line in client.used:
        parts = (dotted, canonical[dotted])
        for each in {id(b): b for whole in parts for prefix in _prefixes(whole) for b in breakages[prefix]}.values():
            if each["kind"] in WHOLE:
                found.append({"path": path, "line": line, **each})
    owners = {name for dotted in canonical.values() for name in _prefixes(dotted)}
    by_last: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in (each for several in breakages.values() for each in several):
        by_last[each["symbol"].rpartition(".")[2]].append(each)
        if each["symbol"].endswith(".__init__"):
            by_last[each["symbol"].split(".")[-2]].append(each)
    for dotted, last, call in client.calls:
        for each in by_last.get(last, ()):
            owner = each["symbol"].removesuffix(".__init__").rpartition(".")[0]
            mine = aliases.get(dotted, dotted)
            known = mine == each["symbol"].removesuffix(".__init__") if mine else owner in owners
            if known and (each["kind"] in WHOLE or _passes(call, each)):
                found.append({"path": path, "line": call.lineno, **each})
    return found


def _prefixes(dotted: str) -> list[str]:
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _passes(call: ast.Call, breakage: dict[str, Any]) -> bool:
    if breakage["kind"] == "PARAMETER_ADDED_REQUIRED":
        return breakage["parameter"] not in {keyword.arg for keyword in call.keywords}
    if any(keyword.arg == breakage["parameter"] for keyword in call.keywords):
        return True
    return breakage["position"] is not None and len(call.args) > breakage["position"]


def breakages_of(package: str, old: Path, new: Path) -> tuple[dict[str, list[dict[str, Any]]], Any]:
    """griffe's breakages by dotted path, and its model of the old version."""
    before, after = (
        griffe.load(package, search_paths=[str(folder)], allow_inspection=False, resolve_aliases=False)
        for folder in (old, new)
    )
    table: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for breakage in griffe.find_breaking_changes(before, after):
        record = {"kind": breakage.kind.name, "symbol": breakage.obj.path, "parameter": "", "position": None}
        if breakage.kind.name not in WHOLE:
            value = breakage.old_value if isinstance(breakage.old_value, griffe.Parameter) else breakage.new_value
            record["parameter"] = getattr(value, "name", str(value))
            names = [each.name for each in getattr(breakage.obj, "parameters", ())]
            if record["parameter"] in names:
                record["position"] = names.index(record["parameter"]) - ("self" in names[:1] or "cls" in names[:1])
        table[breakage.obj.path].append(record)
    return table, before


def canonical_paths(clients: list[Client], model: Any) -> dict[str, str]:
    """Return what re-exported names stand for, as far as griffe can tell."""
    aliases = {}
    for client in clients:
        for dotted in {path for path, _line in client.used} | {path for path, _last, _call in client.calls if path}:
            try:
                member = model[dotted.split(".", 1)[1]] if "." in dotted else model
                aliases[dotted] = member.final_target.path if member.is_alias else member.path
            except (KeyError, griffe.GriffeError):
                continue
    return aliases


def main() -> None:
    """Print the findings of all files."""
    package, old, new, checkout, *files = sys.argv[1:]
    gc.disable()
    table, model = breakages_of(package, Path(old), Path(new))
    clients = {}
    for file in files:
        try:
            clients[file] = read_client((Path(checkout) / file).read_bytes(), package)
        except (SyntaxError, ValueError):
            continue
    aliases = canonical_paths(list(clients.values()), model)
    found = [finding for path, client in clients.items() for finding in join(client, path, table, aliases)]
    json.dump(list({(f["path"], f["line"], f["kind"], f["symbol"]): f for f in found}.values()), sys.stdout)


if __name__ == "__main__":
    main()
