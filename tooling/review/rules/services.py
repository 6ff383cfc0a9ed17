"""Servers, clients and their siblings: sessions made anew, errors under two keys, collectives that a controller runs,
backends and subclasses that leave out what all others have."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, nodes_in, own_nodes
from tooling.review.records import Rule, Severity
from tooling.review.rules.distributed import collective
from tooling.review.rules.members import subclasses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_SESSIONS: Final = frozenset({"aiohttp.ClientSession", "httpx.AsyncClient", "httpx.Client", "requests.Session"})
_ERROR_KEYS: Final = frozenset({"detail", "err", "error", "error_message", "error_msg", "errors", "message", "msg"})
_RESPONSES: Final = frozenset({"JSONResponse", "json_response", "jsonify"})
_CONTROLLER: Final = re.compile(r"\bis_(single_)?controller(_mode)?\b")
_BUILDS: Final = re.compile(r"build|make|payload|param|request|sampl")
_CLOSED_BASES: Final = re.compile(r"Protocol|TypedDict|NamedTuple|BaseModel|Struct|Enum")


_ROUNDS: Final = (ast.AsyncFor, ast.DictComp, ast.For, ast.GeneratorExp, ast.ListComp, ast.SetComp)
"""Loops over many requests; `while` goes on with one."""


def session_per_call(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a session that a loop or a coroutine of an object makes anew each time."""
    for call in module.nodes(ast.Call):
        function = module.function_of(call)
        if module.dotted(call.func) not in _SESSIONS or not isinstance(function, Function):
            continue
        around = list(module.around(call))
        within = around[: around.index(function)]
        looped = any(isinstance(each, ast.For | ast.While | ast.AsyncFor) for each in within)
        entered = next((each for each in within if isinstance(each, ast.withitem)), None)
        name = ast.unparse(entered.optional_vars) if entered is not None and entered.optional_vars is not None else ""
        # Whoever is handed the session makes many requests with it, and so does a loop inside.
        given = (each for other in own_nodes(function) if isinstance(other, ast.Call) for each in other.args)
        block = module.parents[entered] if entered is not None else call
        rounds = (each for each in ast.walk(block) if isinstance(each, _ROUNDS))
        used = nodes_in(rounds, ast.Name)
        if name and (name in map(ast.unparse, given) or any(each.id == name for each in used)):
            continue
        served = isinstance(function, ast.AsyncFunctionDef) and module.class_of(function) is not None and name
        if looped or served:
            yield call, f"`{function.name}` opens `{ast.unparse(call.func)}` anew for each request"


def error_key_odd(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an error response under another key than those of the same server."""
    said = [(node, key) for node in module.nodes(ast.Dict) if (key := _error_key(module, node))]
    counts = Counter(key for _, key in said)
    usual, most = counts.most_common(1)[0] if counts else ("", 0)
    for node, key in said:
        if key != usual and counts[key] * 2 < most:
            yield node, f'this error is under "{key}"; {most} others here are under "{usual}"'


def _error_key(module: Module, node: ast.Dict) -> str:
    """Return the key of `jsonify({"error": text}), 400` and `JSONResponse({"error": text}, status_code=400)`."""
    keys = [each.value for each in node.keys if isinstance(each, ast.Constant)]
    named = [each for each in keys if each in _ERROR_KEYS]
    call = module.parents.get(node)
    if len(named) != 1 or not isinstance(call, ast.Call) or last_name(call.func) not in _RESPONSES:
        return ""
    pair = module.parents.get(call)
    status = keyword(call, "status_code", "status")
    if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
        status = pair.elts[1]
    code = status.value if isinstance(status, ast.Constant) else 0
    return str(named[0]) if isinstance(code, int) and code >= FIRST_ERROR else ""


FIRST_ERROR: Final = 400
"""Status codes of HTTP from which a response is an error."""


def controller_unguarded(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a collective that a controller without ranks would run too, where others ask first."""
    if not _CONTROLLER.search(module.text):
        return
    calls = [
        (node, function)
        for node in module.nodes(ast.Call)
        if isinstance(function := module.function_of(node), Function)
        and (collective(module, node) or ast.unparse(node.func) == "current_platform.synchronize")
    ]
    guarded = []
    for node, function in calls:
        tests = [each.test for each in module.around(node) if isinstance(each, ast.If | ast.IfExp)]
        left = [each for each in function.body if isinstance(each, ast.If) and each.lineno < node.lineno]
        tests += [each.test for each in left if isinstance(each.body[-1], ast.Return | ast.Raise)]
        if any(_CONTROLLER.search(ast.unparse(each)) for each in tests):
            guarded.append(node)
    for node, function in calls if guarded else ():
        if node not in guarded:
            said = (
                f"`{ast.unparse(node.func)}` of `{function.name}` runs in a controller too; {len(guarded)} others ask"
            )
            yield node, said, guarded[0]


def payload_parity(module: Module, side: Side) -> Iterator[Hit]:
    """Find a backend whose payload leaves out an option of the caller that the payloads of its siblings have."""
    for method in module.functions():
        owner = module.class_of(method) if _BUILDS.search(method.name) else None
        for name, own in _options_sent(method).items() if owner is not None else ():
            others = [
                sent[name]
                for path in side.grep([method.name], "*.py")
                if (other := side.module(path)) is not None
                for function in other.functions()
                if function.name == method.name and (path, function.lineno) != (module.path, method.lineno)
                if name in (sent := _options_sent(function))
                # `Plot.build` and `Trainer.build` share a name alone.
                if len(own & sent[name]) * 2 > len(own | sent[name])
            ]
            missing = set.intersection(*others) - own if others else set()
            missing -= {each.attr for each in nodes_in(owner or method, ast.Attribute)}
            if missing and owner is not None:
                said = f"`{name}.{min(missing)}` is sent by the other backends, and not by `{owner.name}`"
                yield min(each.lineno for each in own_nodes(method, ast.Dict)), said


def _options_sent(method: Function) -> dict[str, set[str]]:
    """Map "gconfig" to the attributes that a method reads of it and puts under keys: `{"top_k": gconfig.top_k}`."""
    found: dict[str, set[str]] = {}
    for node in own_nodes(method):
        for value in node.values if isinstance(node, ast.Dict) else ():
            for part in nodes_in(value, ast.Attribute):
                if isinstance(part.value, ast.Name) and part.value.id != "self":
                    found.setdefault(part.value.id, set()).add(part.attr)
    return {name: attributes for name, attributes in found.items() if len(attributes) >= MOST_SENT}


MOST_SENT: Final = 4
"""Options of one object in a payload from which a method is taken to translate it."""


def sibling_without(module: Module, side: Side) -> Iterator[Hit]:
    """Find a subclass that does not set what its base only declares, and all its siblings set."""
    for owner in module.nodes(ast.ClassDef):
        for base in owner.bases:
            name = ast.unparse(base)
            target = side.named(module, name)
            declared = _declared(target[1]) if target is not None and isinstance(target[1], ast.ClassDef) else set()
            own = _given(side, module, owner) if declared else None
            missing = declared - own if own is not None else set()
            if not missing or target is None or target[1] is owner:
                continue
            siblings = 0
            for other, sibling in subclasses(side, target[1].name):
                if sibling.name != owner.name:
                    siblings += 1
                    missing &= _given(side, other, sibling) or set()
                if not missing:
                    break
            # A class that others build on may leave it to them.
            final = bool(missing) and siblings >= LEAST_SIBLINGS and not any(True for _ in subclasses(side, owner.name))
            for attribute in sorted(missing) if final else ():
                yield owner, f"`{owner.name}` does not set `{attribute}`, which `{name}` declares and all others set"


LEAST_SIBLINGS: Final = 2
"""Other subclasses that agree, before one is odd."""


def _declared(owner: ast.ClassDef) -> set[str]:
    """Return the names that a plain class annotates without a value, and sets nowhere."""
    decorated = owner.decorator_list or _CLOSED_BASES.search(" ".join(map(ast.unparse, owner.bases)))
    fields = [each for each in owner.body if isinstance(each, ast.AnnAssign) and each.value is None]
    return {last_name(each.target) for each in fields} - _bound(owner) if not decorated else set()


def _given(side: Side, module: Module, owner: ast.ClassDef) -> set[str] | None:
    """Return the names that a class and its bases give values; None where that is not certain."""
    classes, foreign = side.lineage(module, owner)
    calls = (node for _, each in classes for node in nodes_in(each, ast.Call))
    open_ended = {name.rpartition(".")[2] for name in foreign} - {"ABC", "Generic", "object"}
    if (
        open_ended
        or any(each.decorator_list for _, each in classes)
        or any(last_name(c.func) == "setattr" for c in calls)
    ):
        return None
    return set[str]().union(*(_bound(each) for _, each in classes))


def _bound(owner: ast.ClassDef) -> set[str]:
    """Return the names that a class gives values: in its body, as methods, or on self."""
    nodes = list(ast.walk(owner))
    declared = {each.target for each in nodes if isinstance(each, ast.AnnAssign) and each.value is None}
    stored = [each for each in nodes if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store)]
    methods = {each.name for each in nodes if isinstance(each, Function)}
    return methods | {last_name(each) for each in stored if each not in declared}


RULES: Final = (
    Rule("session-per-call", Severity.LOW, in_tests=False, in_file=session_per_call),
    Rule("error-key-odd", Severity.MEDIUM, in_tests=False, in_file=error_key_odd),
    Rule("controller-unguarded", Severity.MEDIUM, in_tests=False, in_file=controller_unguarded),
    Rule("payload-parity", Severity.LOW, in_tests=False, in_file=payload_parity),
    Rule("sibling-without", Severity.MEDIUM, in_tests=False, in_file=sibling_without),
)
