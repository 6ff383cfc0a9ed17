"""Values that are read as something else: versions as texts, None as a text, zero as absent, ranks as devices; strings
that run together."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in, own_nodes
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_MAY_BE_ZERO: Final = re.compile(r"^(temperature|reward|score|seed|rank|local_rank|rewards?_score)$")
_GLOBAL_RANK: Final = re.compile(r"^(global_rank|process_index|get_rank|get_global_rank)$")
_TESTS: Final = (ast.If, ast.IfExp, ast.While, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Assert, ast.Match)


def version_as_text(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `vllm.__version__ >= "0.10"`, which compares letters: "0.9" is greater. torch's is an object that compares
    as a version."""
    for node in module.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        ordered = any(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in node.ops)
        texts = [each.value for each in sides if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        # `str(torch.__version__)` is a text whatever it was.
        plain = [each.args[0] if isinstance(each, ast.Call) and _is_str(each) else each for each in sides]
        made = [each for each in sides if each not in plain]
        named = [module.dotted(each) for each in plain if last_name(each) == "__version__"]
        if ordered and texts and named and (made or "torch.__version__" not in named):
            yield node, f"`{ast.unparse(node)}` compares letters, not versions"


def defaults_of(spec: ast.arguments) -> list[tuple[str, ast.expr | None]]:
    """Return the parameters that may have a default, with it."""
    positional = list(zip([*spec.posonlyargs, *spec.args][::-1], spec.defaults[::-1], strict=False))
    named = list(zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
    return [(each.arg, default) for each, default in (*positional, *named)]


def class_of_value(module: Module, call: ast.Call, owner: ast.expr) -> str:
    """Return the class of `self.lock`, which the class sets to `asyncio.Lock()` alone, of a name that is set once, and
    of an annotated parameter; "" where it is not known."""
    function = module.function_of(call)
    if isinstance(owner, ast.Name) and isinstance(function, Function):
        given = _annotated(module, function, owner.id)
        scope = function if owner.id in module.shadowing[function] else module.tree
        stores = [each for each in own_nodes(scope, ast.Name) if each.id == owner.id]
        made = {_class_made(module, each) for each in stores if isinstance(each.ctx, ast.Store)}
        return given if given or len(made) != 1 else made.pop()
    around = module.class_of(function) if function is not None else None
    if around is None or not isinstance(owner, ast.Attribute) or ast.unparse(owner.value) != "self":
        return ""
    stored = [each for each in nodes_in(around, ast.Attribute) if each.attr == owner.attr]
    made = {_class_made(module, each) for each in stored if isinstance(each.ctx, ast.Store)}
    return made.pop() if len(made) == 1 else ""


def _annotated(module: Module, function: Function, name: str) -> str:
    given = [*function.args.args, *function.args.kwonlyargs]
    annotation = next((each.annotation for each in given if each.arg == name), None)
    return module.dotted(annotation) if annotation is not None else ""


def _class_made(module: Module, stored: ast.expr) -> str:
    """Return the class of what is stored: `x: Lock = ...`, `x = Lock()`, `with Session() as x`, and `x = lock` of a
    parameter `lock: Lock`."""
    statement, function = module.parents[stored], module.function_of(stored)
    value = statement.context_expr if isinstance(statement, ast.withitem) else getattr(statement, "value", None)
    if isinstance(statement, ast.AnnAssign):
        return module.dotted(statement.annotation)
    if isinstance(value, ast.Name) and isinstance(function, Function):
        return _annotated(module, function, value.id)
    plain = isinstance(value, ast.Call) and isinstance(statement, ast.Assign | ast.withitem)
    return module.dotted(value.func) if isinstance(value, ast.Call) and plain else ""


def _is_str(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "str" and len(call.args) == 1


def zero_as_missing(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `temperature or 1.0` and `row.get("score") or ...`, which replace a zero that was given."""
    for node in module.nodes(ast.BoolOp):
        if not isinstance(node.op, ast.Or) or isinstance(module.parents.get(node), (*_TESTS, ast.comprehension)):
            continue
        first, last = node.values[0], node.values[-1]
        name = last_name(first)
        if isinstance(first, ast.Call) and last_name(first.func) == "get" and len(first.args) == 1:
            name = str(first.args[0].value) if isinstance(first.args[0], ast.Constant) else ""
        empty = isinstance(last, ast.Constant) and (not last.value or isinstance(last.value, str))
        empty |= isinstance(last, ast.List | ast.Dict | ast.Tuple)
        if _MAY_BE_ZERO.match(name) and not empty:
            yield node, f"`{ast.unparse(node)}` replaces a `{name}` of 0"


def global_rank_as_device(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the number of a process among all used as that of a device on its node."""
    if "local" not in module.text:
        return
    for call in module.nodes(ast.Call):
        given = [each.value for each in call.keywords if each.arg == "device_ids"]
        if last_name(call.func) == "set_device":
            given += call.args[:1]
        for value in given:
            each = value.elts[0] if isinstance(value, ast.List) and value.elts else value
            name = last_name(each.func if isinstance(each, ast.Call) else each)
            if _GLOBAL_RANK.match(name) and "%" not in ast.unparse(value):
                yield call, f"`{ast.unparse(each)}` counts all processes; devices are counted on each node"


def strings_run_together(module: Module, _side: Side) -> Iterator[Hit]:
    """Find two strings on two lines, joined without the space between their words."""
    texts: list[ast.expr] = [*module.nodes(ast.JoinedStr)]
    texts += [each for each in module.nodes(ast.Constant) if isinstance(each.value, str)]
    # Lines inside strings that are written in several parts
    spans = {line for each in texts for line in range(each.lineno, each.end_lineno or each.lineno)}
    for number, (line, after) in enumerate(itertools.pairwise(module.lines), 1):
        first, second = line.strip(), after.strip()
        if not first.endswith(('"', "'")) or number not in spans:
            continue
        left = re.fullmatch(
            r"(?:[\w.]+\s*=\s*|[\w.]+\()?(?P<kind>[rfRF]{0,2})(?P<mark>['\"])(?P<text>.+)(?P=mark)", first
        )
        right = re.match(r"[fF]?(?P<mark>['\"])(?P<text>[A-Za-z`\[].*)", second)
        if left is None or right is None or "r" in left["kind"].lower() or left["mark"] in left["text"]:
            continue
        words = len(left["text"].split()) >= _WORDS and len(right["text"].split()) >= _WORDS
        joined = re.search(r"(?:[a-z]{2}|[.,:;!?)`}])$", left["text"]) and "\\n" not in left["text"][-2:]
        if words and joined and "http" not in left["text"].split()[-1]:
            yield number, f"{left['text'].split()[-1]!r} and {right['text'].split()[0]!r} become one word"


_WORDS: Final = 3
"""Words on both sides from which a string is taken for a sentence."""


def lazy_at_end(module: Module, side: Side) -> Iterator[Hit]:
    """Find a pattern that ends in a group `(.+?)` or `(.*?)`: it takes one character, or none, whatever follows."""
    for call in module.nodes(ast.Call):
        name = module.dotted(call.func)
        pattern = call.args[0] if call.args and name in _TAKING else None
        text = pattern.value if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str) else ""
        found = _LAZY.search(text)
        parent = module.parents[call]
        if not found or isinstance(parent, _TESTS):  # whether it is there, whatever the group takes
            continue
        if name == "re.compile":  # a compiled one may be asked for a full match
            held = last_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
            public = held[:1] not in {"", "_"} and module.function_of(call) is None
            users = [side.text(path) or "" for path in side.grep([held], "*.py")] if public else []
            if not held or any("fullmatch" in each for each in (module.text, *users)):
                continue
        yield call, f"`{found[0]}` at the end takes as little as it can"


_TAKING: Final = frozenset({"re.compile", "re.findall", "re.finditer", "re.match", "re.search"})
_LAZY: Final = re.compile(r"(?<!\\)\((?:\?P<\w+>|(?!\?))(?:[^()\\]|\\.)*?\.[+*]\?\)$")

RULES: Final = (
    Rule("lazy-at-end", Severity.MEDIUM, in_file=lazy_at_end),
    Rule("version-as-text", Severity.HIGH, in_file=version_as_text),
    Rule("zero-as-missing", Severity.MEDIUM, in_tests=False, in_file=zero_as_missing),
    Rule("global-rank-as-device", Severity.HIGH, in_file=global_rank_as_device),
    Rule("strings-run-together", Severity.LOW, in_tests=False, in_file=strings_run_together),
)
