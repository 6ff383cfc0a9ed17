"""Errors that disappear, files that may be half written, names that nobody can trace."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, names_in, nodes_in, own_nodes
from tooling.review.records import Place, Rule, Severity
from tooling.review.rules.messages import is_kept, made_name
from tooling.review.rules.readings import neighbours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

_STATE = re.compile(r"^_?(save|dump|write|store)_?.*(state|checkpoint|recover|progress|ledger|metadata|info)")

TEARDOWN = re.compile(
    r"^_*(destroy|close|aclose|stop|shutdown|cleanup|clean_up|teardown|terminate|kill|del|exit)(_|$)|^__a?(del|exit)__$"
)
"""Names of functions that end something: nothing may hang there, and going on after an error is right."""


_LETS_GO = re.compile(rf"{TEARDOWN.pattern}|^_*(finish|clear|join|unlink|remove|reset)")
"""Names of calls after which nothing is wanted of an object: nobody can help it if they fail."""


def wildcard(module: Module, _side: Side) -> Iterator[Hit]:
    """`from x import *` outside of package roots."""
    for node in module.nodes(ast.ImportFrom):
        if any(alias.name == "*" for alias in node.names) and not module.path.endswith("__init__.py"):
            yield node, f"everything of `{module.absolute(node)}` is imported"


def frozen_import(module: Module, side: Side) -> Iterator[Hit]:
    """Find an import of a package that the policy keeps for old code only."""
    if module.path.partition("/")[0] in side.frozen:
        return
    for node in module.nodes(ast.ImportFrom):
        if module.absolute(node).partition(".")[0] in side.frozen:
            yield node, f"`{module.absolute(node)}` belongs to a frozen package"
    for plain in module.nodes(ast.Import):
        for alias in plain.names:
            if alias.name.partition(".")[0] in side.frozen:
                yield plain, f"`{alias.name}` belongs to a frozen package"


def swallowed(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a broad `except` that does nothing, around something that is done for its effect, that logs what it has
    done, or whose result the caller waits for: nothing tells that it failed. Trying one way after another to get a
    value is left alone."""
    for handler in module.nodes(ast.ExceptHandler):
        broad = handler.type is None or last_name(handler.type) in {"Exception", "BaseException"}
        rest = [each for each in handler.body if not isinstance(each, ast.Pass | ast.Continue)]
        silent = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in rest)
        attempt = module.parents[handler]
        if not broad or not silent or not isinstance(attempt, ast.Try):
            continue
        effects = all(isinstance(each, ast.Expr) for each in attempt.body)
        function = module.function_of(handler)
        ending = isinstance(function, Function) and bool(TEARDOWN.match(function.name))
        calls = nodes_in(attempt, ast.Call)
        ending |= bool(calls) and all(_LETS_GO.search(last_name(each.func)) for each in calls)
        told = any("#" in line for line in module.lines[handler.lineno - 1 : handler.end_lineno])
        if (effects or _hides(module, attempt, handler)) and not ending and not told:
            yield handler, "every error disappears here"


def _hides(module: Module, attempt: ast.Try, handler: ast.ExceptHandler) -> bool:
    """Whether a handler that does nothing hides a failure: others beside it raise, it ends what a `with` holds, the
    last line says what was done, or nothing follows that could be returned instead."""
    function = module.function_of(attempt)
    others = [each for each in attempt.handlers if each is not handler]
    if not isinstance(function, Function):
        return False
    if any(isinstance(each.body[-1], ast.Raise) and each.body[-1].exc is not None for each in others):
        return True
    # One that tries the same with other names
    shapes = {each: re.sub(r"'[^']*'", "", " ".join(map(ast.dump, each.body))) for each in own_nodes(function, ast.Try)}
    twins = [each for each, shape in shapes.items() if shape == shapes.get(attempt) and each.handlers]
    if any(isinstance(each.handlers[0].body[-1], ast.Raise) for each in twins):
        return True
    inside = [each for one in attempt.body for each in (one, *own_nodes(one))]
    manager = any("contextmanager" in last_name(each) for each in function.decorator_list)
    if manager and any(isinstance(each, ast.Yield) for each in inside):
        return True
    last = attempt.body[-1]
    if isinstance(last, ast.If) and "rank" in ast.unparse(last.test) and not last.orelse:
        last = last.body[-1]
    said = last.value if isinstance(last, ast.Expr) and len(attempt.body) > 1 else None
    if isinstance(said, ast.Call) and re.match(r"(?:info|print|success)", last_name(said.func)):
        return True
    promised = ast.unparse(function.returns) if function.returns is not None else ""
    node: ast.AST = attempt
    while (parent := module.parents.get(node)) is not None and node is not function:
        block = next(
            (each for each in (getattr(parent, "body", []), getattr(parent, "orelse", [])) if node in each), []
        )
        if isinstance(parent, ast.For | ast.While | ast.AsyncFor) or (block and block[-1] is not node):
            return False
        node = parent
    ends = [last, *nodes_in([last], ast.Return)] if isinstance(last, ast.If) and last.orelse else [last]
    values = [each.value for each in ends if isinstance(each, ast.Return) and each.value is not None]
    given = bool(values) and not all(isinstance(each, ast.Constant) for each in values)
    return given and not re.search(r"None|Optional", promised) and not _TRIES.search(function.name)


_TRIES: Final = re.compile(r"try|maybe|safe|optional|default|find|detect|guess|probe|lookup")
"""Names of functions that may well return nothing."""


def torn_state(module: Module, _side: Side) -> Iterator[Hit]:
    """Find state that is written over the last good copy."""
    for function in module.functions():
        if not _STATE.match(function.name):
            continue
        calls = own_nodes(function, ast.Call)
        if any(last_name(each.func) in {"replace", "rename", "move", "NamedTemporaryFile"} for each in calls):
            continue
        for node in calls:
            mode = node.args[1] if len(node.args) > 1 else None
            writing = isinstance(mode, ast.Constant) and str(mode.value).startswith("w")
            if isinstance(node.func, ast.Name) and node.func.id == "open" and writing:
                yield node, f"`{function.name}` writes over the only copy"


def silent_getattr(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a `__getattr__` that answers None to unknown names."""
    for function in module.functions():
        if function.name != "__getattr__" or module.class_of(function) is None or not function.body:
            continue
        ends = function.body[-1]
        if isinstance(ends, ast.If) and ends.orelse:
            ends = ends.orelse[-1]
        none = isinstance(ends, ast.Return) and (
            ends.value is None or (isinstance(ends.value, ast.Constant) and ends.value.value is None)
        )
        if none or (isinstance(ends, ast.If) and not ends.orelse):
            yield ends, "unknown attributes become None"


def reraised(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an `__exit__` that raises the error it is given: the traceback starts anew, and the cleaning up behind it is
    skipped."""
    for function in module.functions():
        names = [each.arg for each in function.args.args]
        if function.name not in {"__exit__", "__aexit__"} or len(names) < 3:
            continue
        for node in own_nodes(function, ast.Raise):
            if node.exc is not None and last_name(node.exc) == names[2]:
                yield node, f"`{function.name}` raises the exception that is under way"


def probe_raises(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `def is_available(name): return bool(version(name))`, which raises where it is not there."""
    for function in module.functions():
        asks = re.match(r"_?(is|has)_(\w+_)?(available|installed)$", function.name)
        calls = own_nodes(function, ast.Call) if asks else []
        for call in calls:
            raises = module.dotted(call.func) in {"importlib.import_module", "importlib.metadata.version"}
            guarded = any(isinstance(each, ast.Try | ast.If | ast.With) for each in module.around(call, function))
            if raises and not guarded and not any(isinstance(each, ast.If) for each in function.body):
                yield call, f"`{function.name}` raises where the package is not there"


def dead_assignment(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a computed value that the next statement replaces."""
    for one, other in neighbours(module):
        name = _replaced(one, other)
        if name:
            yield one, f"`{name}` is replaced before anybody reads it"


def _replaced(one: ast.stmt, other: ast.stmt) -> str:
    if not isinstance(one, ast.Assign) or not isinstance(other, ast.Assign):
        return ""
    if len(one.targets) != 1 or len(other.targets) != 1:
        return ""
    target = one.targets[0]
    several = isinstance(target, ast.Tuple) and all(isinstance(each, ast.Name) for each in target.elts)
    names = names_in(target)
    name = ast.unparse(target)
    same = (several or isinstance(target, ast.Name)) and ast.unparse(other.targets[0]) == name and name.strip("_, ()")
    read = any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(other.value))
    # A first call may be there for its effect; a plain value for the reader.
    computed = isinstance(one.value, ast.BinOp | ast.Subscript | ast.Attribute | ast.Compare | ast.BoolOp | ast.Call)
    # `x = next(rows)` twice is a way to skip; the same call with less said is a line that was to be replaced.
    first, second = one.value, other.value
    effect = (
        isinstance(first, ast.Call)
        and isinstance(second, ast.Call)
        and ast.unparse(first.func) == ast.unparse(second.func)
    )
    if effect and isinstance(first, ast.Call) and isinstance(second, ast.Call):
        was, now = ({*map(ast.unparse, each.args), *map(ast.unparse, each.keywords)} for each in (first, second))
        effect = not (now and now < was)
    return name if same and not read and computed and not effect else ""


def open_socket(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a socket of a function that only closes it where nothing went wrong, or never."""
    for function in module.functions():
        for node in own_nodes(function):
            target, made = made_name(node)
            if made is None or module.dotted(made.func) != "socket.socket":
                continue
            if not is_kept(module, function, target):
                yield made, f"nothing closes `{target}`"
            elif _closed_without_errors(module, function, target):
                yield made, f"`{target}` stays open where something goes wrong"


def _closed_without_errors(module: Module, function: Function, name: str) -> bool:
    """Whether a socket is only closed at the end of a `try` whose handlers leave the function without it."""
    uses = [each for each in own_nodes(function, ast.Name) if each.id == name]
    parents = [module.parents[each] for each in uses if isinstance(each.ctx, ast.Load)]
    closings = [each for each in parents if isinstance(each, ast.Attribute) and each.attr == "close"]
    if not closings or any(not isinstance(each, ast.Attribute) for each in parents):
        return False
    for each in closings:
        around = list(module.around(each, function))
        tried = next((one for one in around if isinstance(one, ast.Try)), None)
        if tried is None or not tried.handlers or not any(one in around for one in tried.body):
            return False
        if any(not isinstance(one.body[-1], ast.Return | ast.Raise) for one in tried.handlers):
            return False
    return True


def _uncompilable(tree: ast.Module) -> SyntaxError | None:
    """Return what only the compiler refuses: a keyword given twice, `return` outside a function. Nothing is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, "<review>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def unreadable(comparison: Comparison) -> Iterator[Place]:
    """Find a Python file that cannot be parsed, or compiled, any more."""
    for file in comparison.files:
        after = comparison.head.text(file.path) if file.path.endswith(".py") else None
        if after is None or "{{" in after or "{%" in after:
            continue
        if (module := comparison.head.module(file.path)) is not None:
            before = comparison.base.module(file.old_path) if file.status != "A" else None
            if (wrong := _uncompilable(module.tree)) is not None and (before is None or not _uncompilable(before.tree)):
                yield Place(file.path, wrong.lineno or 1, f"no valid Python: {wrong.msg}")
            continue
        if file.status == "A" or comparison.base.module(file.old_path) is not None:
            line, reason = 1, ""
            try:
                ast.parse(after)
            except SyntaxError as error:
                line, reason = error.lineno or 1, error.msg
            except ValueError as error:
                reason = str(error)
            except (RecursionError, MemoryError):  # nested too deep for us: among what was not reviewed
                pass
            if reason and (line in file.added or file.status != "A"):
                yield Place(file.path, line, f"no valid Python: {reason}")


RULES = (
    Rule("wildcard-import", Severity.MEDIUM, in_file=wildcard),
    Rule("frozen-import", Severity.HIGH, in_file=frozen_import),
    Rule("swallowed-error", Severity.MEDIUM, in_file=swallowed),
    Rule("torn-state", Severity.LOW, in_tests=False, in_file=torn_state),
    Rule("silent-getattr", Severity.MEDIUM, in_file=silent_getattr),
    Rule("exit-raises-again", Severity.MEDIUM, in_file=reraised),
    Rule("probe-raises", Severity.HIGH, in_tests=False, in_file=probe_raises),
    Rule("dead-assignment", Severity.MEDIUM, in_file=dead_assignment),
    Rule("socket-left-open", Severity.MEDIUM, in_file=open_socket),
    Rule("unreadable-python", Severity.CRITICAL, in_change=unreadable),
)
