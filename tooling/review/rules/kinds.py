"""Values of another kind than their use wants: numbers taken for tensors, versions for texts, zero for nothing, a rank
for a device, a name that is None for good, seeds that another process would not give again."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_OF_TENSORS: Final = words("""
    abs backward clamp clone cpu cuda detach exp float item log long max mean min numpy reshape sqrt squeeze sum to
    tolist unsqueeze view
""")
"""Methods of tensors that no Python number has."""
_LOADED_LATER: Final = words("""
    concurrent.futures http.client http.server importlib.metadata importlib.resources importlib.util logging.config
    logging.handlers unittest.mock urllib.error urllib.parse urllib.request xml.dom xml.etree
""")
"""Modules that importing their package does not load."""
_LOADED_BY: Final = {
    "http.cookiejar": ("http.client", "urllib.error", "urllib.parse", "urllib.request"),
    "http.server": ("http.client", "urllib.parse"),
    "logging.config": ("logging.handlers",),
    "urllib.request": ("http.client", "urllib.error", "urllib.parse"),
    "urllib.robotparser": ("http.client", "urllib.error", "urllib.parse", "urllib.request"),
}
"""Modules that load others of the table above."""


def number_as_tensor(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `loss.item().detach()`: a number has no such method."""
    for call in module.nodes(ast.Call):
        func = call.func
        of = func.value if isinstance(func, ast.Attribute) and func.attr in _OF_TENSORS else None
        if not isinstance(of, ast.Call) or last_name(of.func) != "item" or of.args or of.keywords:
            continue
        made = of.func.value if isinstance(of.func, ast.Attribute) else None
        # The one item of an array of objects may be anything: `np.load(path, allow_pickle=True).item()`.
        if not isinstance(made, ast.Call) or last_name(made.func) != "load":
            yield call, f"`.item()` is a number, which has no `{last_name(func)}`"


def submodule_not_imported(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `importlib.util.find_spec` in a file that imports `importlib` alone."""
    loaded = {each.name for node in module.nodes(ast.Import) for each in node.names}
    loaded |= {module.absolute(each) for each in module.nodes(ast.ImportFrom)}
    loaded |= {f"{module.absolute(node)}.{each.name}" for node in module.nodes(ast.ImportFrom) for each in node.names}
    loaded.update(*(_LOADED_BY.get(each, ()) for each in loaded))
    seen = set[str]()
    for node in module.nodes(ast.Attribute):
        root = node.value.id if isinstance(node.value, ast.Name) else ""
        name = f"{root}.{node.attr}"
        if name not in _LOADED_LATER or name in seen or module.imported.get(root) != root or root not in loaded:
            continue
        if not any(f"{each}.".startswith(f"{name}.") for each in loaded):
            seen.add(name)
            yield node, f"`import {root}` alone does not load `{name}`"


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
        plain = [
            each.args[0] if isinstance(each, ast.Call) and ast.unparse(each.func) == "str" and each.args else each
            for each in sides
        ]
        made = [each for each in sides if each not in plain]
        named = [module.dotted(each) for each in plain if last_name(each) == "__version__"]
        if ordered and texts and named and (made or "torch.__version__" not in named):
            yield node, f"`{ast.unparse(node)}` compares letters, not versions"


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


def always_none(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `x = None` in a function that sets it nowhere else, and asks for it or uses it."""
    for function in module.functions():
        if "None" not in module.text or "locals()" in module.text:
            return
        inside = own_nodes(function)
        assigned = (each for each in inside if isinstance(each, ast.Assign | ast.AnnAssign))
        none = [each for each in assigned if isinstance(each.value, ast.Constant) and each.value.value is None]
        if not none:
            continue
        names = nodes_in(function, ast.Name)
        bound = _otherwise_bound(function)
        for node in none:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not isinstance(target, ast.Name) or target.id in bound or len(getattr(node, "targets", [0])) > 1:
                continue
            uses = [each for each in names if each.id == target.id and each is not target]
            if any(not isinstance(each.ctx, ast.Load) for each in uses):
                continue
            used = [each for each in uses if _is_needed(module, each)]
            if used:
                line = module.lines[used[0].lineno - 1].strip()[:60]
                yield node, f"nothing sets `{target.id}` again: it is None at `{line}`"


def _otherwise_bound(function: Function) -> set[str]:
    """Return what a function binds by other means than a name that is stored, or shares with others."""
    found = set(parameters(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found.update(node.names)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, Function | ast.ClassDef) and node is not function:
            found.add(node.name)
            found.update(parameters(node) if isinstance(node, Function) else ())
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        elif isinstance(node, ast.Lambda):
            found.update(parameters(node))
    return found


def _is_needed(module: Module, node: ast.Name) -> bool:
    """Whether a name is asked for, called, or opened: what is handed on may be None on purpose."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Compare):
        return isinstance(parent.ops[0], ast.Is | ast.IsNot) and parent.left is node
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return parent.value is node
    if isinstance(parent, ast.If | ast.IfExp | ast.While):
        return parent.test is node
    return isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)


_SEEDING = frozenset({"seed", "manual_seed", "manual_seed_all", "set_seed", "seed_everything", "default_rng", "Random"})
_SEED = re.compile(r"(^|_)seed$")
_SALTED = frozenset({"hash", "id"})


def unstable_seed(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a seed from `hash(...)`, whose value is another one in each process, or from `id(...)`."""
    for value in _seeds(module):
        for node in nodes_in(value, ast.Call):
            if not isinstance(node.func, ast.Name):
                continue
            # Hashes of numbers, and of tuples of numbers, are the same everywhere.
            parts = [part for each in node.args for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
            if parts and all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in parts):
                continue
            if node.func.id in _SALTED - module.bindings.keys():
                yield node, f"`{ast.unparse(node)}` is another number in every process"


def _seeds(module: Module) -> Iterator[ast.expr]:
    for call in module.nodes(ast.Call):
        if last_name(call.func) in _SEEDING:
            yield from call.args
        yield from (each.value for each in call.keywords if each.arg and _SEED.search(each.arg))
    for node in module.nodes(ast.Assign):
        if any(_SEED.search(last_name(target)) for target in node.targets):
            yield node.value


RULES: Final = (
    Rule("number-as-tensor", Severity.HIGH, in_file=number_as_tensor),
    Rule("submodule-not-imported", Severity.LOW, in_tests=False, in_file=submodule_not_imported),
    Rule("lazy-at-end", Severity.MEDIUM, in_file=lazy_at_end),
    Rule("version-as-text", Severity.HIGH, in_file=version_as_text),
    Rule("zero-as-missing", Severity.MEDIUM, in_tests=False, in_file=zero_as_missing),
    Rule("global-rank-as-device", Severity.HIGH, in_file=global_rank_as_device),
    Rule("strings-run-together", Severity.LOW, in_tests=False, in_file=strings_run_together),
    Rule("always-none", Severity.MEDIUM, in_tests=False, in_file=always_none),
    Rule("unstable-seed", Severity.HIGH, in_tests=False, in_file=unstable_seed),
)
