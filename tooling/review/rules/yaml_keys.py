"""Keys of YAML files that no field of the configuration class has which the other keys name.

Which class reads a mapping is not written in the file. Here it is the one that has most of its keys as fields; a key is
reported only if all classes that fit equally well agree that it is unknown, and either the class had the field before
the change, or an unused field of almost the same name is there.
"""

from __future__ import annotations

import ast
import difflib
from typing import TYPE_CHECKING

from tooling.python.module import last_name
from tooling.review.records import Place, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

MIN_KNOWN = 3
"""Keys that have to be fields before a mapping is taken for a class."""
LIKENESS = 0.8
"""Of two names, as difflib counts: `n_sample` and `n_samples` 0.94, `min_steps` and `max_steps` 0.78."""
_SUFFIXES = (".yaml", ".yml")
_MAKERS = ("dataclass", "define", "frozen")


def unknown_key(comparison: Comparison) -> Iterator[Place]:
    """Find new keys that are misspelt, and keys anywhere whose field the change removed or renamed."""
    gone = _removed_fields(comparison)
    changed = {each.path: each.added for each in comparison.files if each.path.endswith(_SUFFIXES) and each.added}
    users = comparison.head.grep(gone, "*.yaml", "*.yml") if gone else []
    comparison.head.load([*changed, *users])
    mappings = [
        (path, keys)
        for path in sorted({*changed, *users})
        for keys in comparison.head.mappings(path)
        if any(line in changed.get(path, ()) or key in gone for key, line in keys.items())
    ]
    classes = _classes(comparison.head) if mappings else {}
    for path, keys in mappings:
        key, owner, instead = _misfit(keys, classes, gone)
        if key and (keys[key] in changed.get(path, ()) or owner in gone.get(key, ())):
            hint = f"; `{instead}` is one" if instead else ""
            yield Place(path, keys[key], f"`{key}` is not a field of `{owner}`, which has the other keys{hint}")


def _misfit(
    keys: dict[str, int], classes: dict[str, frozenset[str]], gone: dict[str, set[str]]
) -> tuple[str, str, str]:
    """Return the key that does not fit, its class, and the field that may be meant; empty when all fit, or nothing is
    sure."""
    known = {name: fields.intersection(keys) for name, fields in classes.items()}
    most = max(map(len, known.values()), default=0)
    if most < MIN_KNOWN or most != len(keys) - 1:
        return "", "", ""
    best = sorted(name for name, fields in known.items() if len(fields) == most)
    left = {frozenset(keys.keys() - known[name]) for name in best}
    if len(left) != 1:
        return "", "", ""
    (key,) = next(iter(left))
    for name in best:
        near = difflib.get_close_matches(key, sorted(classes[name] - keys.keys()), 1, LIKENESS)
        if near or name in gone.get(key, ()):
            return key, name, near[0] if near else ""
    return "", "", ""


def _classes(side: Side) -> dict[str, frozenset[str]]:
    """Return the fields of configuration classes by name, inherited ones included. Left out: classes with a base that
    is not read here, or that take any key, and names that stand for several classes."""
    paths = side.grep(["BaseModel", *_MAKERS], "*.py")
    side.load(paths)
    found: dict[str, ast.ClassDef | None] = {}
    for module in filter(None, map(side.module, paths)):
        for node in module.nodes(ast.ClassDef):
            if _is_configuration(node):
                found[node.name] = None if node.name in found else node
    resolved = {name: _fields(name, found, set()) for name in found}
    return {name: fields for name, fields in resolved.items() if fields}


def _is_configuration(node: ast.ClassDef) -> bool:
    decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(last_name(each) in _MAKERS for each in decorators) or any(
        last_name(base) == "BaseModel" or last_name(base).endswith(("Config", "Args", "Arguments"))
        for base in node.bases
    )


def _fields(name: str, found: dict[str, ast.ClassDef | None], inside: set[str]) -> frozenset[str] | None:
    node = found.get(name)
    if node is None or name in inside or "extra" in ast.dump(node):
        return None
    fields = frozenset(
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    )
    for base in node.bases:
        if last_name(base) in {"BaseModel", "Generic", "Protocol", "ABC"}:
            continue
        inherited = _fields(last_name(base), found, inside | {name})
        if inherited is None:
            return None
        fields |= inherited
    return fields


def _removed_fields(comparison: Comparison) -> dict[str, set[str]]:
    """Map each field that a class no longer has to the names of such classes."""
    gone: dict[str, set[str]] = {}
    for _, before, after in comparison.modified():
        now = _own_fields(after)
        for name, fields in _own_fields(before).items():
            for each in fields - now.get(name, fields):
                gone.setdefault(each, set()).add(name)
    return gone


def _own_fields(module: Module) -> dict[str, set[str]]:
    return {
        node.name: {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
        for node in module.nodes(ast.ClassDef)
        if _is_configuration(node)
    }


RULES = (Rule("unknown-yaml-key", Severity.HIGH, in_change=unknown_key),)
