"""Configuration classes: defaults, choices that nobody checks, fields that break every configuration there is."""

from __future__ import annotations

import ast
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, field_names, keyword, last_name, nodes_in, own_nodes
from tooling.review.records import Place, Rule, Severity, is_test
from tooling.review.rules.readings import defaults_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Set

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

_FIELDS = frozenset({"dataclasses.field"})
_MUTATORS = frozenset(["append", "extend", "insert", "update", "setdefault", "add", "pop", "clear", "remove"])


def _dataclass_decorator(node: ast.ClassDef) -> str:
    names = (ast.unparse(each) for each in node.decorator_list)
    return next((name for name in names if name.startswith(("dataclass", "dataclasses.dataclass"))), "")


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    fields = (each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
    return [each for each in fields if "ClassVar" not in ast.unparse(each.annotation)]


def field_order(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a field without a default behind one that has a default."""
    for node in module.nodes(ast.ClassDef):
        decorator = _dataclass_decorator(node)
        if not decorator or "kw_only=True" in decorator or "KW_ONLY" in ast.unparse(node):
            continue
        seen = ""
        for each in _fields(node):
            value = ast.unparse(each.value) if each.value is not None else ""
            bare = value.startswith(("field(", "dataclasses.field(")) and "default" not in value
            if value and not bare and "kw_only=True" not in value:
                seen = seen or ast.unparse(each.target)
            elif seen and each.value is None:
                name = ast.unparse(each.target)
                yield each, f"`{node.name}.{name}` has no default, `{seen}` before it has one"


class _Done(StrEnum):
    """What a function does with a parameter, as a message says it."""

    NOTHING = ""
    KEPT = "keeps it"
    CHANGED = "changes it"
    TAKEN_FOR_NONE = "takes it for None"
    REPLACED = "replaces it"


def mutable_default(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a list or dict as default that the function changes, or that is changed where it is kept."""
    yield from _mutable_defaults(module, {_Done.CHANGED})
    for node in module.nodes(ast.Call):
        value = keyword(node, "default") if module.dotted(node.func) in _FIELDS else None
        if isinstance(value, _MUTABLE):
            yield value, "dataclasses refuse a mutable default: the class cannot be made"


def default_kept(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a list or dict as default that an object keeps, or that the function replaces where it is None."""
    yield from _mutable_defaults(module, {_Done.KEPT, _Done.TAKEN_FOR_NONE})


_MUTABLE: Final = (ast.List, ast.Dict, ast.Set)


def _mutable_defaults(module: Module, wanted: Set[_Done]) -> Iterator[Hit]:
    """Find lists and dicts that are defaults, with which a function does one of these."""
    given = [
        (function, name, default)
        for function in module.functions()
        for name, default in defaults_of(function.args)
        if isinstance(default, _MUTABLE)
    ]
    nodes = list(module.nodes(ast.Subscript, ast.Attribute)) if given else []
    changed = [each.value for each in nodes if isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load)]
    changed += [each.value for each in nodes if isinstance(each, ast.Attribute) and each.attr in _MUTATORS]
    changed_later = {each.attr for each in changed if isinstance(each, ast.Attribute)}
    for function, name, default in given:
        done = _what_is_done(module, function, name, changed_later)
        if done in wanted:
            yield default, f"the default of `{name}` is shared by all calls of `{function.name}`, which {done}"


def _what_is_done(module: Module, function: Function, name: str, changed_later: Collection[str]) -> _Done:
    """Return what becomes of a parameter, up to where it is replaced. changed_later: attributes that the file
    changes."""
    found = _Done.NOTHING
    for node in own_nodes(function, ast.Name):
        if node.id != name:
            continue
        parent = module.parents[node]
        around = module.parents.get(parent)
        if isinstance(parent, ast.Compare) and isinstance(parent.ops[0], ast.Is) and isinstance(around, ast.If):
            sets = any(isinstance(each, ast.Assign) and last_name(each.targets[0]) == name for each in around.body)
            none = isinstance(parent.comparators[0], ast.Constant) and parent.comparators[0].value is None
            if sets and none:
                return _Done.TAKEN_FOR_NONE
        called = isinstance(parent, ast.Attribute) and parent.attr in _MUTATORS and isinstance(around, ast.Call)
        item = isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store | ast.Del)
        if isinstance(node.ctx, ast.Store):
            # `if isinstance(x, str): x = [x]` leaves the default; `x = x or []` and `if not x: x = []` do not.
            left = rf"(?<!not )\b{name}\b(?! is not None)"
            asked = isinstance(around, ast.If) and re.search(left, ast.unparse(around.test))
            found = found if asked else _Done.REPLACED
        elif found is _Done.REPLACED:
            continue
        elif called or (item and getattr(parent, "value", None) is node):
            found = _Done.CHANGED
        elif isinstance(parent, ast.Assign) and last_name(getattr(parent.targets[0], "value", node)) == "self":
            found = _Done.CHANGED if last_name(parent.targets[0]) in changed_later else found or _Done.KEPT
    return found


def assert_in_post_init(module: Module, _side: Side) -> Iterator[Hit]:
    """Find validation of user input that `python -O` removes."""
    for function in module.functions():
        owner = module.class_of(function)
        if function.name != "__post_init__" or owner is None or not owner.name.endswith(("Config", "Args", "Options")):
            continue
        for node in own_nodes(function, ast.Assert):
            yield node, f"`{owner.name}` checks what users wrote with `assert`"


def literal_field(module: Module, _side: Side) -> Iterator[Hit]:
    """`Literal` in a dataclass of a module whose configs go through OmegaConf."""
    uses = {each.attr for each in module.nodes(ast.Attribute) if module.dotted(each.value) == "omegaconf.OmegaConf"}
    # What only reads a file gives no class to OmegaConf.
    reads = bool(uses) and uses <= {"load", "to_container", "to_yaml"}
    if reads or not any(name.startswith(("omegaconf", "hydra")) for name in module.imported.values()):
        return
    for node in module.nodes(ast.ClassDef):
        given = re.search(rf"[(=]{node.name}\b(?!\()", module.text) or _OF_SETTINGS.search(node.name)
        for each in _fields(node) if given and _dataclass_decorator(node) else ():
            if "Literal[" in ast.unparse(each.annotation):
                yield each, f"`{node.name}.{ast.unparse(each.target)}` is a Literal"


_OF_SETTINGS: Final = re.compile(r"Arg|Cfg|Config|Option|Param|Setting|Spec")
"""Names of classes that hold settings; another one is given to OmegaConf as a whole."""


def field_moved(comparison: Comparison) -> Iterator[Place]:
    """Find a field put in front of others of a dataclass that somebody builds by position."""
    for file, before, after in comparison.modified():
        old = {node.name: [ast.unparse(each.target) for each in _fields(node)] for node in before.nodes(ast.ClassDef)}
        for node in after.nodes(ast.ClassDef):
            decorator = _dataclass_decorator(node)
            known = old.get(node.name)
            if not decorator or "kw_only=True" in decorator or not known:
                continue
            now = [ast.unparse(each.target) for each in _fields(node)]
            if now[: len(known)] != known and set(known) <= set(now):
                same = [one == other for one, other in zip(known, now, strict=False)].index(False)
                caller = _by_position(comparison, after, node.name, same)
                if caller:
                    yield Place(
                        file.path, node.lineno, f"fields of `{node.name}` moved, and it is built by position", caller
                    )


def _by_position(comparison: Comparison, module: Module, name: str, same: int) -> str:
    """Return a call that passes more by position than the first `same` fields, which stayed."""
    for path in comparison.head.grep([name], "*.py"):
        user = comparison.head.module(path)
        for node in user.nodes(ast.Call) if user is not None else ():
            named = user is not None and user.dotted(node.func) in {f"{module.package}.{name}", name}
            # Who wrote a call in this change knew the new order.
            new = path in comparison.by_path and node.lineno in comparison.by_path[path].added
            if named and not new and len(node.args) > same:
                return f"{path}:{node.lineno}"
    return ""


def undocumented_field(comparison: Comparison) -> Iterator[Place]:
    """Find a new config field without a docstring in a class where the others have one."""
    for file in comparison.files:
        module = comparison.head.module(file.path)
        known = field_names(comparison.base.module(file.old_path) if file.status != "A" else None)
        for node in module.nodes(ast.ClassDef) if module is not None else ():
            fields = _fields(node) if node.name.endswith("Config") else []
            bare = [each for each in fields if not _documented(node, each)]
            for each in bare if len(fields) >= 3 and len(bare) * 2 < len(fields) else ():
                name = f"{node.name}.{ast.unparse(each.target)}"
                # A config of its own has a class that says what it is for.
                if name not in known and "Config" not in re.findall(r"[A-Z][a-z]+\b", ast.unparse(each.annotation)):
                    yield Place(file.path, each.lineno, f"`{name}` says nothing of itself")


def _documented(node: ast.ClassDef, each: ast.AnnAssign) -> bool:
    if each.value is not None and ("help" in ast.unparse(each.value) or "description=" in ast.unparse(each.value)):
        return True
    after = node.body[node.body.index(each) + 1 :][:1]
    return bool(after) and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant)


_CONFIG = re.compile(r"(Config|Args|Arguments|Options|Params)$")


def unchecked_choice(module: Module, side: Side) -> Iterator[Hit]:
    """Find a field with a list of choices that the class's own validation leaves out."""
    for owner in module.nodes(ast.ClassDef):
        limited = {name: node for node in owner.body if (name := _limited(node))}
        checks = [each for each in owner.body if isinstance(each, Function) and each.name == "__post_init__"]
        said = {part.attr for part in nodes_in(checks, ast.Attribute)}
        said |= {str(part.value) for part in nodes_in(checks, ast.Constant)}
        calls = nodes_in(checks, ast.Call)
        generic = any(last_name(part.func) == "fields" for part in calls)
        for name, node in limited.items() if set(limited) & said and not generic else ():
            if name not in said and not _checked_elsewhere(side, module, name):
                yield node, f"`{owner.name}.{name}` lists its choices, and `__post_init__` does not check them"


def _checked_elsewhere(side: Side, module: Module, name: str) -> bool:
    """Whether another file says what the field must be."""
    spelt = re.compile(rf"{re.escape(name)}\b.*(\bnot in\b|must be|invalid|unknown|unsupported)", re.IGNORECASE)
    others = (path for path in side.grep([name], "*.py") if path != module.path)
    return any(spelt.search(line) for path in others for line in (side.text(path) or "").splitlines())


def _limited(node: ast.stmt) -> str:
    """Return the name of a field with `metadata={"choices": [...]}`."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Call):
        return ""
    metadata = keyword(node.value, "metadata")
    listed = metadata.keys if isinstance(metadata, ast.Dict) else []
    keys = [each.value for each in listed if isinstance(each, ast.Constant)]
    return last_name(node.target) if "choices" in keys else ""


def required_field(comparison: Comparison) -> Iterator[Place]:
    """Find a field without a default in a config class that people configure already."""
    for file, before, after in comparison.modified():
        if is_test(file.path):
            continue
        old = {node.name: _fields_x(node) for node in before.nodes(ast.ClassDef) if _CONFIG.search(node.name)}
        for node in after.nodes(ast.ClassDef):
            known = old.get(node.name)
            renamed = set(known or ()) - set(_fields_x(node))
            for name, each in _fields_x(node).items() if known and not renamed else ():
                new = each.value is None and name not in (known or ())
                if new and not _all_callers_follow(comparison, node.name, name):
                    yield Place(file.path, each.lineno, f"`{node.name}.{name}` is new, and has no default")


def _all_callers_follow(comparison: Comparison, owner: str, field: str) -> bool:
    """Whether the class is made by calls here, and each of them names the new field."""
    calls = [
        call
        for path in comparison.head.grep([owner], "*.py")
        if (module := comparison.head.module(path)) is not None
        for call in module.nodes(ast.Call)
        if last_name(call.func) == owner
    ]
    return bool(calls) and all(keyword(call, field) is not None for call in calls)


def _fields_x(owner: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    if not any("dataclass" in ast.unparse(each) or "define" in ast.unparse(each) for each in owner.decorator_list):
        return {}
    found = (each for each in owner.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
    return {last_name(each.target): each for each in found if "ClassVar" not in ast.unparse(each.annotation)}


RULES: Final = (
    Rule("field-order", Severity.CRITICAL, in_file=field_order),
    Rule("field-moved", Severity.HIGH, in_change=field_moved),
    Rule("mutable-default", Severity.HIGH, in_file=mutable_default),
    Rule("default-kept", Severity.MEDIUM, in_tests=False, in_file=default_kept),
    Rule("assert-in-config", Severity.LOW, in_file=assert_in_post_init),
    Rule("literal-in-config", Severity.HIGH, in_file=literal_field),
    Rule("undocumented-field", Severity.LOW, in_change=undocumented_field),
    Rule("unchecked-choice", Severity.MEDIUM, in_file=unchecked_choice),
    Rule("required-field-added", Severity.MEDIUM, in_change=required_field),
)
