"""Calls that make others call something: `partial`, threads, ray, mocks, imports by name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan.arguments import CallArguments
from tooling.upgrade.usage.scan.builtin_calls import BUILTIN_CALLS
from tooling.upgrade.usage.scan.calls import Calls, constant_name
from tooling.upgrade.usage.scan.core import span_of

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGERS = frozenset({"getLogger", "get_logger", "init_logger", "getChild", "get_child"})
_MAPPINGS = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict"})


def _partial(walk: Calls, node: ast.Call, target: int) -> int | None:
    if not node.args or isinstance(node.args[0], ast.Starred):
        return None
    return walk.step("partial", walk.bound_call(node, node.args[0], node.args[1:], node.keywords))


def _to_thread(walk: Calls, node: ast.Call, target: int) -> int | None:
    if not node.args or isinstance(node.args[0], ast.Starred):
        return None
    return walk.step("remote", walk.bound_call(node, node.args[0], node.args[1:], node.keywords))


def _thread(walk: Calls, node: ast.Call, target: int) -> int | None:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    function, positional, named = given.pop("target", None), given.pop("args", None), given.pop("kwargs", None)
    if function is None:
        return None
    args = list(positional.elts) if isinstance(positional, ast.Tuple | ast.List) else []
    if positional is not None and not args and not isinstance(positional, ast.Tuple | ast.List):
        args = [ast.Starred(positional)]
    keywords = [] if named is None else [ast.keyword(None, named)]
    for rest in given.values():
        walk.expression(rest)
    walk.bound_call(node, function, args, keywords)
    return UNKNOWN


def _import_module(walk: Calls, node: ast.Call, target: int) -> int | None:
    name = constant_name(node.args[0]) if node.args else ""
    if not name or name.startswith("."):
        return None
    walk.emit("string", node.args[0], walk.node("import", name))
    return walk.node("import", name)


def _find_spec(walk: Calls, node: ast.Call, target: int) -> int | None:
    """Asking for a module can fail only for its parent packages: no use of its own."""
    return UNKNOWN if node.args and constant_name(node.args[0]) else None


def _cast(walk: Calls, node: ast.Call, target: int) -> int | None:
    if len(node.args) != 2:
        return None
    walk.expression(node.args[1])
    return walk.annotation(node.args[0])


def _same(walk: Calls, node: ast.Call, target: int) -> int | None:
    return walk.expression(node.args[0]) if len(node.args) == 1 and not node.keywords else None


def _ray_get(walk: Calls, node: ast.Call, target: int) -> int | None:
    if not node.args:
        return None
    value = walk.expression(node.args[0])
    row = walk.facts.nodes[value]
    return walk.step("call", row[1]) if row[0] == "remote" else UNKNOWN


def _patch_object(walk: Calls, node: ast.Call, target: int) -> int | None:
    name = constant_name(node.args[1]) if len(node.args) > 1 else ""
    if not name.isidentifier():
        return None
    value = walk.attribute(walk.base(node.args[0]), name)
    replacement = walk.expression(node.args[2]) if len(node.args) > 2 else UNKNOWN
    for keyword in node.keywords:
        walk.expression(keyword.value)
    walk.emit("assign", node, value, value=replacement, raises=True)
    return UNKNOWN


def _monkeypatch(walk: Calls, node: ast.Call, target: int) -> int | None:
    """pytest's `monkeypatch.setattr(x, "name", value)`; its form with a dotted string is a string like others."""
    return _patch_object(walk, node, target) if target == UNKNOWN and len(node.args) >= 3 else None


def _patch_dict(walk: Calls, node: ast.Call, target: int) -> int | None:
    """`mock.patch.dict(sys.modules, {"a.b": fake})`: names that are made up, not looked up."""
    if not walk.dotted(target).endswith("patch.dict") or not node.args:
        return None
    first = node.args[0]
    return UNKNOWN if constant_name(first) == "sys.modules" or walk.dotted(walk.chain(first)) == "sys.modules" else None


def _remote(walk: Calls, node: ast.Call, target: int) -> int | None:
    """`x.remote(...)`: x called, by somebody else."""
    assert isinstance(node.func, ast.Attribute)
    base = walk.facts.nodes[target]
    if base[0] not in ("attr", "import"):
        return None
    inner = walk.quiet_value(node.func.value)
    walk.emit_call(node, inner, walk.arguments(node.args, node.keywords))
    return walk.step("remote", inner)


def _options(walk: Calls, node: ast.Call, target: int) -> int | None:
    """`Actor.options(...)` is the actor; only ray's `options` is followed by `.remote`."""
    assert isinstance(node.func, ast.Attribute)
    inner = walk.facts.nodes[walk.quiet_value(node.func.value)]
    if inner[0] not in ("own", "global", "remote") or "ray" not in walk.module.bound:
        return None
    walk.arguments(node.args, node.keywords)
    return walk.quiet_value(node.func.value)


def _submit(walk: Calls, node: ast.Call, target: int) -> int | None:
    if target != UNKNOWN or not node.args or isinstance(node.args[0], ast.Starred):
        return None
    walk.bound_call(node, node.args[0], node.args[1:], node.keywords)
    return UNKNOWN


def _in_executor(walk: Calls, node: ast.Call, target: int) -> int | None:
    if target != UNKNOWN or len(node.args) < 2 or isinstance(node.args[1], ast.Starred):
        return None
    inner = walk.bound_call(node, node.args[1], node.args[2:], [])
    return walk.step("remote", inner)


def _view(walk: Calls, node: ast.Call, target: int) -> int | None:
    """`.values()`, `.items()`, `.get()` of dicts whose content is known by display or annotation."""
    assert isinstance(node.func, ast.Attribute)
    base = walk.facts.nodes[walk.quiet_value(node.func.value)]
    held = UNKNOWN
    if base[0] == "dict":
        held = int(base[1])
    elif base[0] == "instance":
        kind = walk.facts.nodes[base[1]]
        if kind[0] == "param" and len(kind[2]) == 2 and kind[1] in _MAPPINGS:
            held = walk.step("instance", kind[2][1])
    if held <= NONE:
        return None
    for argument in node.args:
        walk.expression(argument)
    if node.func.attr in ("get", "pop", "setdefault"):
        return held
    return walk.step("list", held if node.func.attr == "values" else walk.node("tuple", (UNKNOWN, held)))


def _logger(walk: Calls, node: ast.Call, target: int) -> int | None:
    """A logger's name is no dotted path."""
    if len(node.args) != 1 or not constant_name(node.args[0]):
        return None
    found = CallArguments()
    found.given.append((span_of(node.args[0]), None, 0, walk.text(node.args[0]), UNKNOWN, False))
    walk.emit_call(node, target, found)
    return walk.step("call", target)


def _import_or_skip(walk: Calls, node: ast.Call, target: int) -> int | None:
    """`pytest.importorskip("a", minversion="1.2")`: what follows runs only if that import works."""
    module = constant_name(node.args[0]) if node.args else ""
    if not module:
        return None
    value = walk.node("import", module)
    walk.facts.attempts.append((walk.tries, "body", ("ImportError",), -1, False))
    walk.tries += 1
    attempts, switches = walk.attempts, walk.switches
    walk.attempts, walk.switches = (*attempts, len(walk.facts.attempts) - 1), (*switches, "pytest.skip")
    walk.emit("import", node.args[0], value)
    walk.attempts, walk.switches = attempts, switches
    wanted = [keyword.value for keyword in node.keywords if keyword.arg == "minversion"] or node.args[1:2]
    for version in wanted:
        if constant_name(version):
            test = walk.test_text(f"__version__({module!r}) >= {constant_name(version)!r}", node)
            walk.conditions = (*walk.conditions, test + 1)
    return value


_WRAPPERS: dict[str, Callable[[Calls, ast.Call, int], int | None]] = {
    "functools.partial": _partial,
    "functools.partialmethod": _partial,
    "asyncio.to_thread": _to_thread,
    "threading.Thread": _thread,
    "multiprocessing.Process": _thread,
    "importlib.import_module": _import_module,
    "importlib.util.find_spec": _find_spec,
    "typing.cast": _cast,
    "typing_extensions.cast": _cast,
    "copy.copy": _same,
    "copy.deepcopy": _same,
    "pytest.importorskip": _import_or_skip,
    "ray.get": _ray_get,
    "ray.remote": _same,
    "unittest.mock.patch.object": _patch_object,
    "mock.patch.object": _patch_object,
}
_METHODS: dict[str, Callable[[Calls, ast.Call, int], int | None]] = {
    "remote": _remote,
    "options": _options,
    "submit": _submit,
    "run_in_executor": _in_executor,
    "values": _view,
    "items": _view,
    "get": _view,
    "setattr": _monkeypatch,
    "dict": _patch_dict,
    **dict.fromkeys(_LOGGERS, _logger),
}


class SpecialCalls(Calls):
    """Calls, with all that is known of special ones."""

    builtin_calls = BUILTIN_CALLS
    wrapping_calls = _WRAPPERS
    method_calls = _METHODS
