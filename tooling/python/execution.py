"""Follow statements without running them, for the few places where names are made by code.

Where a condition is not known both ways are followed; each way out is noted in `StatementEvaluator.outcomes`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tooling.python.functions import announces
from tooling.python.operations import UNKNOWN, Applied, Closure, Globals, OutOfFuel, Ref, compare
from tooling.python.source import absolute, dotted_name, parameter_names, text_of
from tooling.python.values import ValueEvaluator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_DEPTH = 4
_WITHOUT_EFFECT = (ast.Pass, ast.Assert, ast.ClassDef, ast.AsyncFunctionDef, ast.Global, ast.Nonlocal)


@dataclass
class FunctionExit:
    """One way out of a function."""

    raised: str
    """Name of the exception; "" for a return."""
    value: object = None
    warning: str = ""
    """Text of warnings on the way."""
    said: str = ""
    """What the exception says, where that is known."""


class RaisesError(Exception):
    """A function that was followed raises for these arguments, whichever way it takes."""

    def __init__(self, outcome: FunctionExit) -> None:
        super().__init__(outcome.raised)
        self.outcome = outcome


@dataclass
class StatementEvaluator(ValueEvaluator):
    """Follows statements. `package` is what relative imports start from; `watched` a parameter: conditions on it
    that are not known are noted in `unsure`."""

    package: str = ""
    watched: str = ""
    unsure: bool = False
    exact: bool = False
    """Any condition that is not known is noted in `unsure`."""
    lost: bool = False
    """Something was not followed: there may be other ways out, and other names."""
    outcomes: list[FunctionExit] = field(default_factory=list)
    stored: dict[str, object] = field(default_factory=dict)
    """What was put into `sys.modules`, by key."""
    named: dict[str, object] = field(default_factory=dict)
    """What was put into `globals()`, by key."""
    finders: list[object] = field(default_factory=list)
    """What was added to `sys.meta_path`."""
    warnings: list[str] = field(default_factory=list)
    apply: Callable[[Applied], object] | None = None
    """A say in what a call gives."""
    function_of: Callable[[str], Closure | None] | None = None
    """Finds the function that a dotted path stands for, so that calls of it are followed where that is conclusive."""
    depth: int = 0
    guarded: int = 0
    """Statements and operands around that keep an exception from ending the function."""

    def run(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements in order; True when no way leads past them."""
        for statement in statements:
            try:
                method = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
                if method is None and (self.watched or self.exact):
                    self.lost = self.lost or not isinstance(statement, _WITHOUT_EFFECT)
                if method is not None and method(statement):
                    return True
            except RaisesError as error:
                self.outcomes.append(error.outcome)
                return True
            except OutOfFuel:
                self.lost = True
                return False
        return False

    def _do_expr(self, node: ast.Expr) -> bool:
        self.evaluate(node.value)
        return False

    def _do_assign(self, node: ast.Assign) -> bool:
        value = self.evaluate(node.value)
        for target in node.targets:
            self._store(target, value)
        return False

    def _do_annassign(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            self._store(node.target, self.evaluate(node.value))
        return False

    def _do_augassign(self, node: ast.AugAssign) -> bool:
        old = self.evaluate(_as_load(node.target))
        value = self.value(node.value)
        if isinstance(old, list) and isinstance(value, list | tuple | set):
            old.extend(value)
        elif (isinstance(old, set) and isinstance(value, set | frozenset)) or (
            isinstance(old, dict) and isinstance(value, dict)
        ):
            old.update(value)
        else:
            self._store(node.target, self.evaluate(ast.BinOp(_as_load(node.target), node.op, node.value)))
        return False

    def _store(self, target: ast.expr, value: object) -> None:
        if not isinstance(target, ast.Subscript):
            self.bind(target, value)
            return
        base, key = self.evaluate(target.value), self.index(target.slice)
        if isinstance(base, dict | list) and not isinstance(key, slice):
            base[key] = value
        elif isinstance(base, Globals) and isinstance(key, str):
            self.named[key] = value
            if self.depth == 0 and not self.watched:
                self.env[key] = value
        elif isinstance(base, Ref) and base.dotted == "sys.modules" and isinstance(key, str):
            self.stored[key] = value
        elif isinstance(base, Globals | Ref):
            self.lost = self.lost or isinstance(base, Globals) or base.dotted == "sys.modules"

    def _do_if(self, node: ast.If) -> bool:
        truth = self.truth(node.test)
        if truth is not None:
            return self.run(node.body if truth else node.orelse)
        self.unsure = self.unsure or self._unsure_about(node.test)
        before = dict(self.env)
        ended = self.run(node.body)
        inside, self.env = self.env, before
        otherwise = self.run(node.orelse)
        if otherwise and not ended:
            self.env = inside
        elif not ended:
            self.env = {**inside, **{name: value for name, value in self.env.items() if value is not UNKNOWN}}
        return ended and otherwise

    def _unsure_about(self, test: ast.expr) -> bool:
        """Whether what is not known of a condition is about the watched parameter."""
        if self.exact:
            return True
        if not self.watched or self.truth(test) is not None:
            return False
        if isinstance(test, ast.BoolOp):
            return any(self._unsure_about(value) for value in test.values)
        if isinstance(test, ast.UnaryOp):
            return self._unsure_about(test.operand)
        return any(isinstance(node, ast.Name) and node.id == self.watched for node in ast.walk(test))

    def _do_for(self, node: ast.For) -> bool:
        items = self.items(node.iter)
        if items is None:
            if isinstance(node.iter, ast.Call) and dotted_name(node.iter.func) == "dir" and not self.watched:
                return False  # names are copied from another module: `Star.copies`
            self.bind(node.target, UNKNOWN)
            known, self.unsure = self.unsure, False
            self.run(node.body)
            self.unsure = known or bool(self.watched)
            return False
        for item in items:
            self.fuel.burn()
            self.bind(node.target, item)
            if self.run(node.body):
                return not any(isinstance(part, ast.Continue | ast.Break) for part in ast.walk(node))
        return self.run(node.orelse)

    def _do_continue(self, node: ast.Continue) -> bool:
        return True

    _do_break = _do_continue

    def _do_while(self, node: ast.While) -> bool:
        while self.truth(node.test) and not any(isinstance(part, ast.Continue | ast.Break) for part in ast.walk(node)):
            self.fuel.burn()
            if self.run(node.body):
                return True
        self.lost = self.lost or self.truth(node.test) is not False
        return False

    def _do_with(self, node: ast.With) -> bool:
        self.guarded += 1  # `contextlib.suppress`
        try:
            return self.run(node.body)
        finally:
            self.guarded -= 1

    def perhaps(self, node: ast.expr) -> Any:
        """Evaluate an operand behind one that is not known."""
        self.guarded += 1
        try:
            return self.evaluate(node)
        finally:
            self.guarded -= 1

    def _do_try(self, node: ast.Try) -> bool:
        if self._asks_in_vain(node.body) and len(node.handlers) == 1:
            return self.run([*node.handlers[0].body, *node.finalbody])
        raised = len(self.outcomes)
        self.guarded += bool(node.handlers)
        ended = self.run(node.body)
        self.guarded -= bool(node.handlers)
        caught = [outcome for outcome in self.outcomes[raised:] if outcome.raised]
        if node.handlers and caught and not self.watched:
            ended = False
        if not ended:
            ended = self.run(node.orelse)
        for handler in node.handlers:
            if not self.watched:
                self.run(handler.body)
        return ended or self.run(node.finalbody)

    def _asks_in_vain(self, body: Sequence[ast.stmt]) -> bool:
        """`source = TABLE[name]` for a name that the table does not hold, nor `globals()` what the `__getattr__` of a
        module is asked for."""
        match body:
            case [ast.Return(ast.Subscript(table, key)) | ast.Assign(value=ast.Subscript(table, key)), *_]:
                held, asked = self.evaluate(table), self.index(key)
                if isinstance(held, Globals):
                    return bool(self.watched) and isinstance(key, ast.Name) and key.id == self.watched
                return isinstance(held, dict) and compare(ast.In(), asked, held) is False
        return False

    def _do_return(self, node: ast.Return) -> bool:
        value = self.evaluate(node.value) if node.value is not None else None
        self.outcomes.append(FunctionExit("", value, " ".join(self.warnings)))
        return True

    def _do_raise(self, node: ast.Raise) -> bool:
        called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        text = self.evaluate(node.exc.args[0]) if isinstance(node.exc, ast.Call) and node.exc.args else ""
        said = text if isinstance(text, str) else ""
        raised = ast.unparse(called) if called else "raise"
        self.outcomes.append(FunctionExit(raised, None, " ".join(self.warnings), said))
        return True

    def _do_import(self, node: ast.Import) -> bool:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.env[name] = Ref(alias.name if alias.asname else name)
        return False

    def _do_importfrom(self, node: ast.ImportFrom) -> bool:
        module = absolute(self.package, node.level, node.module or "")
        for alias in node.names:
            self.env[alias.asname or alias.name] = Ref(f"{module}.{alias.name}")
        return False

    def _do_functiondef(self, node: ast.FunctionDef) -> bool:
        self.env[node.name] = Closure(node, self)
        return False

    def _on_subscript(self, node: ast.Subscript) -> object:
        base = self.evaluate(node.value)
        if not isinstance(base, Ref) or base.dotted != "sys.modules":
            return super()._on_subscript(node)
        key = self.index(node.slice)
        return Ref(key) if isinstance(key, str) else UNKNOWN

    def call(self, node: ast.Call, name: str) -> object:
        """Follow calls of functions at hand, note warnings, resolve imports by name."""
        callee = self.evaluate(node.func)
        if isinstance(callee, Closure) and isinstance(callee.node, ast.FunctionDef):
            return self.inline(callee, self._elements(node.args), self.arguments(node)[1])
        last = name.rpartition(".")[2]
        if last in ("warn", "warning", "warning_once", "warn_once") or announces(last):
            text = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "message")]
            said = self.evaluate(text[0]) if text else ""
            self.warnings.append(said if isinstance(said, str) else text_of(text[0]))
            return None
        if name in ("importlib.import_module", "import_module", "__import__", "_importlib.import_module"):
            return self._imported(node)
        if name == "getattr" and len(node.args) >= 2:
            base, attribute = self.evaluate(node.args[0]), self.value(node.args[1])
            return (
                Ref(f"{base.dotted}.{attribute}") if isinstance(base, Ref) and isinstance(attribute, str) else UNKNOWN
            )
        if name in ("sys.meta_path.append", "sys.meta_path.insert"):
            self.finders.append(self.evaluate(node.args[-1]))
            return None
        if isinstance(callee, Ref) and self.function_of is not None and self.depth < MAX_DEPTH:
            function = self.function_of(callee.dotted)
            followed = self._followed(function, *self.arguments(node)) if function is not None else UNKNOWN
            if followed is not UNKNOWN:
                return followed
        found = super().call(node, name)
        return self.apply(found) if isinstance(found, Applied) and self.apply else found

    def _imported(self, node: ast.Call) -> object:
        args, keywords = self.arguments(node)
        name = args[0] if args else UNKNOWN
        if not isinstance(name, str):
            return UNKNOWN
        level = len(name) - len(name.lstrip(".")) or (args[4] if len(args) > 4 and isinstance(args[4], int) else 0)
        base = args[1] if len(args) > 1 else keywords.get("package", self.package)
        base = base.names.get("__package__") if isinstance(base, Globals) else base
        start = base if isinstance(base, str) else self.package
        return Ref(absolute(start, level, name.lstrip(".")))

    def _inside(self, function: Closure, args: list[object], keywords: dict[str, object]) -> StatementEvaluator:
        """Make what follows the body of a function that is called with these values."""
        around: StatementEvaluator = function.made_in or self
        inner = StatementEvaluator(
            around.lookup, around.read, dict(around.env), self.fuel, package=around.package, watched=self.watched
        )
        inner.depth, inner.apply, inner.function_of = self.depth + 1, self.apply, self.function_of
        names = parameter_names(function.node.args)
        inner.env.update(dict.fromkeys(names, UNKNOWN))
        inner.env.update(zip(names, args, strict=False))
        inner.env.update({name: value for name, value in keywords.items() if name in names})
        return inner

    def inline(self, function: Closure, args: list[object], keywords: dict[str, object]) -> object:
        """Return what a call of a function at hand gives, if all its ways out give the same."""
        if self.depth >= MAX_DEPTH or not isinstance(function.node, ast.FunctionDef):
            return UNKNOWN
        inner = self._inside(function, args, keywords)
        inner.run(function.node.body)
        self.stored.update({key: _stands_for(key, value, args, self.package) for key, value in inner.stored.items()})
        self.lost = self.lost or inner.lost
        self.named.update(inner.named)
        self.warnings.extend(inner.warnings)
        values = [outcome.value for outcome in inner.outcomes if not outcome.raised]
        return values[0] if len(values) == 1 else UNKNOWN

    def _followed(self, function: Closure, args: list[object], keywords: dict[str, object]) -> object:
        """Return what a call of a function gives that stands elsewhere, UNKNOWN unless that is sure.

        pydantic's `__getattr__` calls `_getattr_migration`, which `getattr_migration(__name__)` made: it returns some
        names, and raises for those in its table `REMOVED_IN_V2`. Raises RaisesError where all ways out raise.
        """
        if not isinstance(function.node, ast.FunctionDef):
            return UNKNOWN
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function.node)):
            return UNKNOWN  # nothing runs before somebody iterates
        inner = self._inside(function, args, keywords)
        inner.exact = True
        ended = inner.run(function.node.body)
        if inner.lost or inner.unsure or not ended:
            return UNKNOWN
        values = [outcome.value for outcome in inner.outcomes if not outcome.raised]
        if not values and self.guarded:
            self.unsure = True
            return UNKNOWN
        if not values:
            raise RaisesError(inner.outcomes[-1])
        if len(values) > 1:
            return UNKNOWN
        self.warnings.extend(inner.warnings)
        return values[0]


def _stands_for(key: str, value: object, args: list[object], package: str) -> object:
    """Resolve a module made by a helper that is given its name and one other: it stands for that one."""
    others = [item for item in args if isinstance(item, str) and item != key]
    if isinstance(value, Ref) or key not in args or len(others) != 1:
        return value
    name = others[0].lstrip(".")
    return Ref(absolute(package, len(others[0]) - len(name), name))


def _as_load(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Name):
        return ast.Name(node.id, ast.Load())
    if isinstance(node, ast.Subscript):
        return ast.Subscript(node.value, node.slice, ast.Load())
    return node
