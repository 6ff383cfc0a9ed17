"""Messages and files: placeholders that stay as they are, print beside a logger, files that nobody closes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, own_nodes, parameters
from tooling.review.records import Rule, Severity, is_test
from tooling.review.rules.readings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_PLACEHOLDER: Final = re.compile(
    r"(?<!\{)\{(?:len\()?([A-Za-z_]\w*)(?:[.\[)][^{}]*)?(?:![rsa])?(?::(?! ?[a-z]{2})[^{}]*)?\}(?!\})"
)
_SPEAKS_OF_BRACES: Final = re.compile(r"template|placeholder|pattern|\.format\b|literal|contain|syntax", re.IGNORECASE)
_NAMED: Final = r"getLogger\(f?[\"']"
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_PROGRAM: Final = re.compile(
    r"(^|/)(scripts?|examples?|benchmarks?|cli|commands|demo|bin|recipes?)/|^tools?/|(^|/)(cli|__main__|setup)\.py$"
)


def literal_placeholders(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `"step {step}"` in a message where `step` is a name of the function: an `f` was forgotten."""
    for node in module.nodes(ast.Constant):
        if not isinstance(node.value, str) or "{" not in node.value:
            continue
        names = set(_PLACEHOLDER.findall(node.value))
        function = module.function_of(node)
        if not names or not isinstance(function, Function):
            continue
        if not _is_message(module, node) and not _is_given(module, node):
            continue
        own = {each.id for each in own_nodes(function, ast.Name) if isinstance(each.ctx, ast.Store)}
        own |= {each.name for each in own_nodes(function, ast.ExceptHandler) if each.name}
        own |= set(module.values) if isinstance(module.parents[node], ast.AugAssign) else set()
        # "the text must contain {prompt}" speaks of the braces themselves.
        spoken_of = _SPEAKS_OF_BRACES.search(node.value)
        if names <= own | set(parameters(function)) and not spoken_of:
            yield node, f"`{{{min(names)}}}` is shown as it stands: the string has no `f`"


def _is_message(module: Module, node: ast.Constant) -> bool:
    """Whether a string, or the concatenation that it is part of, is raised, logged or printed."""
    child: ast.AST = node
    parent = module.parents.get(node)
    while isinstance(parent, ast.BinOp | ast.JoinedStr | ast.IfExp):
        child, parent = parent, module.parents.get(parent)
    if isinstance(parent, ast.Assert):
        return not isinstance(child, ast.JoinedStr)
    if isinstance(child, ast.JoinedStr) or not isinstance(parent, ast.Call) or child not in parent.args:
        return False
    if isinstance(module.parents.get(parent), ast.Raise) or last_name(parent.func) == "print":
        return len(parent.args) == 1
    # `logger.info("{a}", a)`: a logger of another kind formats it.
    owner = parent.func.value if isinstance(parent.func, ast.Attribute) else parent.func
    name = last_name(owner.func).removeprefix("get_") if isinstance(owner, ast.Call) else last_name(owner)
    logs = last_name(parent.func) in _LEVELS and bool(LOGGER.match(name))
    return logs and len(parent.args) == 1 and not parent.keywords


_OF_OTHERS: Final = re.compile(r"\\|[$@^]\{")
"""Braces of TeX, shells and git."""


def _is_given(module: Module, node: ast.Constant) -> bool:
    """Whether a string goes somewhere as it stands, in a file that fills in no template; a route is one."""
    parent = module.parents.get(node)
    parent = module.parents.get(parent) if isinstance(parent, ast.IfExp) else parent
    fills = any(word in module.text for word in (".format", "replace(", "Template"))
    if isinstance(parent, ast.keyword) and parent.arg in {"context", "desc", "message", "msg", "reason"}:
        return not fills
    if any(isinstance(each, ast.Call) and each.keywords for each in module.around(node)):
        return False
    route = isinstance(module.parents[parent], Function) if isinstance(parent, ast.Call) else False
    handed = isinstance(parent, ast.Call) and node in parent.args and not route
    stored = isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Subscript)
    part = isinstance(parent, ast.Tuple) and isinstance(module.parents[parent], ast.Call)
    kept = handed or stored or part or isinstance(parent, ast.BoolOp | ast.BinOp | ast.Subscript)
    # `tag = "{version}"`, and no name that says that something is filled in
    named = last_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    named = last_name(parent.target) if isinstance(parent, ast.AugAssign) else named
    kept |= bool(named) and not _FILLED.search(named)
    return kept and not fills and not _OF_OTHERS.search(str(node.value))


_FILLED: Final = re.compile(r"template|prompt|pattern|format|fmt|placeholder|regex|key|query|instruction|[A-Z]$")


def print_in_library(module: Module, side: Side) -> Iterator[Hit]:
    """Find the first `print` in a module that logs as much besides, or of a package whose modules log, and that has
    nothing of a program."""
    calls = list(module.nodes(ast.Call))
    printed = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id == "print"]
    printed = [each for each in printed if not any(given.arg == "file" for given in each.keywords)]
    few = 0 < len(printed) < _FEW and not _PROGRAM.search(module.path)
    logs = [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr in _LEVELS]
    logs = [each for each in logs if LOGGER.match(last_name(getattr(each.func, "value", None)))]
    where = [module.function_of(each) for each in logs] if few else []
    beside = [each for each in printed if each.args and where.count(module.function_of(each)) >= len(printed)]
    beside = [each for each in beside if isinstance(each.args[0], ast.Constant | ast.JoinedStr)]
    yield from ((each, "`print` in a function that logs") for each in beside)
    if beside or not printed or "__main__" in module.text or _PROGRAM.search(module.path):
        return
    around = {each: getattr(module.function_of(each), "name", "") for each in printed}
    printed = [each for each in printed if not _SHOWS.search(around[each])]
    if not printed:
        return
    loggers = [name for name in module.bindings if LOGGER.match(name)]
    logged = len(logs)
    first = min(printed, key=lambda each: each.lineno)
    made = [last_name(each.targets[0]) for each in module.nodes(ast.Assign) if module.function_of(each) is None]
    read = {each.id for each in module.nodes(ast.Name) if isinstance(each.ctx, ast.Load)}
    idle = next((name for name in made if LOGGER.match(name) and name not in read), "")
    if idle:
        yield first, f"`print` beside `{idle}`, which nothing uses"
    elif loggers and logged >= len(printed):
        yield first, f"`print` in a module that logs through `{min(loggers)}`"
    elif own := _own_logging(module, side):
        yield first, f"`print` in a package that logs through `{own}`"
    elif not logged and _logs(module, side):
        yield first, "`print` in a package whose modules log"


_FEW: Final = 3
"""From that many on, a file prints on purpose."""


_SHOWS: Final = re.compile(r"(^|_)(print|show|display|dump|help|main|log|report|summary|debug)(_|$)|^pprint|^__\w+main")
"""Names of functions whose work is to print."""
_PRINTS: Final = re.compile(r"^\s*print\(", re.MULTILINE)
_LOGS: Final = re.compile(rf"\b_?log(?:ger|ging)?\.(?:{'|'.join(sorted(_LEVELS))})\(", re.IGNORECASE)


def _logs(module: Module, side: Side) -> bool:
    """Whether most modules of a package that say something log it, and few print."""
    root = f"{module.path.removesuffix(side.below_source(module.path))}{module.package.partition('.')[0]}/"
    if ("logs", root) not in side.known:
        paths = [each for each in side.packages.values() if each.startswith(root)] if module.package else []
        texts = [side.text(each) or "" for each in paths if not _PROGRAM.search(each) and not is_test(each)]
        prints = sum(bool(_PRINTS.search(each)) for each in texts if "__main__" not in each)
        side.known["logs", root] = sum(bool(_LOGS.search(each)) for each in texts) >= LOGS_PER_PRINT * max(1, prints)
    return bool(side.known["logs", root])


def _own_logging(module: Module, side: Side) -> str:
    """Return the dotted name of the module that gives the loggers of a package: "areal.utils.logging"."""
    root = module.package.partition(".")[0]
    found = [name for name in side.packages if name.endswith(".logging") and name.partition(".")[0] == root]
    text = side.text(side.packages[found[0]]) if len(found) == 1 and found[0] != module.package else ""
    return found[0] if "def getLogger(" in (text or "") else ""


def logger_of_another_kind(module: Module, side: Side) -> Iterator[Hit]:
    """Find a logger that is not made, or not named, as those of the package are."""
    own = _own_logging(module, side) if "getLogger(" in module.text and not _PROGRAM.search(module.path) else ""
    # `logging.getLogger("urllib3").setLevel(...)` is about the logger of somebody else.
    made = [each.value for each in module.nodes(ast.Assign) if LOGGER.match(last_name(each.targets[0]))] if own else []
    calls = [each for each in made if isinstance(each, ast.Call) and last_name(each.func) == "getLogger"]
    for call in calls:
        name = module.dotted(call.func)
        if name == "logging.getLogger" and len(call.args) == 1:
            yield call, f"`{own}` gives the loggers of this package"
        elif name == f"{own}.getLogger" and call.args and ast.unparse(call.args[0]) in {"__name__", "__file__"}:
            if ("loggers", "") not in side.known:
                texts = [side.text(path) or "" for path in side.grep(["getLogger"], "*.py")]
                counts = [sum(len(re.findall(form, text)) for text in texts) for form in (_NAMED, r"getLogger\(__")]
                side.known["loggers", ""] = counts
            named, others = side.known["loggers", ""]
            if named > NAMED_PER_OTHER * others:
                yield call, f"{named} loggers of this package have a name of their own"


NAMED_PER_OTHER: Final = 3
"""Loggers with a literal name for each one without, from which names are the habit."""
LOGS_PER_PRINT: Final = 4
"""Modules that log for each one that prints, the new one included, from which logging is the habit of a package."""


def file_left_open(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a file that a function opens under a name, and neither closes nor hands on."""
    for function in module.functions():
        for node in own_nodes(function) if "open" not in module.bindings else ():
            target, made = made_name(node)
            opened = made is not None and isinstance(made.func, ast.Name) and made.func.id == "open"
            if made is not None and opened and not is_kept(module, function, target):
                yield made, f"nothing closes `{target}`"


def made_name(node: ast.AST) -> tuple[str, ast.Call | None]:
    """Return "x" and the call of `x = f()`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return "", None
    target = node.targets[0]
    return (target.id, node.value) if isinstance(target, ast.Name) else ("", None)


_READERS: Final = frozenset(
    {"load", "dump", "read", "reader", "writer", "print", "list", "enumerate", "safe_load", "safe_dump"}
)


def is_kept(module: Module, function: Function, name: str) -> bool:
    """Whether a name is closed, returned, stored, captured or handed to somebody who may close it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return True
        if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        parent = module.parents.get(node)
        if isinstance(parent, ast.Attribute) and parent.attr in {"close", "__exit__", "detach"}:
            return True
        if module.function_of(node) is not function:
            return True
        if isinstance(parent, ast.Call) and node in parent.args and last_name(parent.func) in _READERS:
            continue
        if not isinstance(parent, ast.Attribute | ast.For | ast.comprehension | ast.If | ast.FormattedValue):
            return True
    return False


RULES: Final = (
    Rule("literal-placeholders", Severity.MEDIUM, in_file=literal_placeholders),
    Rule("print-in-library", Severity.LOW, in_tests=False, in_file=print_in_library),
    Rule("logger-of-another-kind", Severity.LOW, in_tests=False, in_file=logger_of_another_kind),
    Rule("file-left-open", Severity.LOW, in_tests=False, in_file=file_left_open),
)
