"""Mocks and monkey patches of tests.

    mock.patch.object(Engine, "load", fake)        Engine.load is assigned
    mock.patch("up.load", create=True)             up.load need not be there
    monkeypatch.setattr(up, "load", fake)          up.load is assigned

What they assign lasts for a while, and counts as an assignment all the same.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.source import dotted_name
from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan.arguments import constant_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.upgrade.usage.scan.handed import Calling


OF_MOCK = "a mock has what it has"
"""Why something is taken for an object of a package that takes any arguments."""


def _patch_object(calls: Calling, node: ast.Call, target: int) -> int | None:
    value = calls.named_attribute(node)
    if value is None or _creates(node):
        return None
    replacement = calls.expressions.expression(node.args[2]) if len(node.args) > 2 else UNKNOWN
    for keyword in node.keywords:
        calls.expressions.expression(keyword.value)
    calls.walk.emit("assign", node, value, value=replacement)
    return UNKNOWN


def _creates(node: ast.Call) -> bool:
    """Whether a patch makes what is not there: `create=True`, `raising=False`."""
    return any(
        isinstance(each.value, ast.Constant) and each.value.value is (each.arg == "create")
        for each in node.keywords
        if each.arg in ("create", "raising")
    )


def created(node: ast.expr) -> list[str]:
    """The names, as code spells them, that `patch("a.b", create=True)` makes while it lasts: "a.b", and "*.b" on what
    is or may be an instance."""
    if not isinstance(node, ast.Call) or not node.args or not _creates(node):
        return []
    name = constant_name(node.args[1]) if len(node.args) > 1 else ""
    made = f"{dotted_name(node.args[0])}.{name}" if name else constant_name(node.args[0])
    return [made, f"*.{made.rpartition('.')[2]}"]


def _patch(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`mock.patch("a.b", create=True)` names nothing that has to be there."""
    return UNKNOWN if _creates(node) else None


def _autospec(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`create_autospec(f)` is called like `f`; of a class it is one, or an instance. A mock has more beside."""
    if len(node.args) != 1:
        return None
    value = calls.expressions.expression(node.args[0])
    of_instance = any(one.arg == "instance" and getattr(one.value, "value", False) for one in node.keywords)
    made = calls.walk.step("instance", value) if of_instance else value
    return calls.walk.node("documented", made, "a mock is specified by it") if made > NONE else UNKNOWN


def _mock(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`Mock(spec=Engine)` has what an Engine has, and gives mocks."""
    given = [one.value for one in node.keywords if one.arg in ("spec", "spec_set")] or node.args[:1]
    value = calls.annotations.chain(given[0]) if given else UNKNOWN
    if value <= NONE or not calls.walk.hot[value]:
        return None
    calls.plain_call(node, target, None)
    return calls.walk.node("documented", calls.walk.step("instance", value), OF_MOCK)


def _monkeypatch(calls: Calling, node: ast.Call, target: int) -> int | None:
    """pytest's `monkeypatch.setattr(x, "name", value)`; its form with a dotted string is a string like others."""
    if not calls.walk.is_of_stranger(target) or (len(node.args) < 3 and not _creates(node)):
        return None
    calls.walk.frame.values.update(dict.fromkeys(created(node), UNKNOWN))
    return _patch(calls, node, target) if _creates(node) else _patch_object(calls, node, target)


def _patch_dict(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`mock.patch.dict(sys.modules, {"a.b": fake})`: names that are made up, not looked up."""
    if not calls.walk.dotted(target).endswith("patch.dict") or not node.args:
        return None
    first = node.args[0]
    return (
        UNKNOWN
        if constant_name(first) == "sys.modules" or calls.walk.dotted(calls.annotations.chain(first)) == "sys.modules"
        else None
    )


WRAPPERS: dict[str, Callable[[Calling, ast.Call, int], int | None]] = {
    **{f"unittest.mock.{kind}": _mock for kind in ("AsyncMock", "MagicMock", "Mock", "NonCallableMock")},
    "unittest.mock.patch": _patch,
    "mock.patch": _patch,
    "unittest.mock.create_autospec": _autospec,
    "unittest.mock.patch.object": _patch_object,
    "mock.patch.object": _patch_object,
}
METHODS: dict[str, Callable[[Calling, ast.Call, int], int | None]] = {
    "setattr": _monkeypatch,
    "dict": _patch_dict,
}
