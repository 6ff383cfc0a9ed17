"""Statements: imports, assignments, loops, `with`; definitions are in `definitions`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan.branches import Branches, Exits, leaves
from tooling.upgrade.usage.scan.expressions import constant_key

if TYPE_CHECKING:
    from collections.abc import Callable


class Statements(Branches):
    """Statements of a scope."""

    def statement(self, node: ast.stmt) -> Exits:
        """One statement; whether it never goes on."""
        return bool(_STATEMENTS[type(node)](self, node)) if type(node) in _STATEMENTS else False

    def definition(self, node: Any) -> None:
        """A function or class."""
        raise NotImplementedError

    def skip_condition(self, node: ast.expr) -> tuple[int, ...]:
        """The condition that a decorator or mark puts on what it stands over."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ import statements

    def import_(self, node: ast.Import) -> None:
        """`import a.b`, `import a.b as x`."""
        for alias in node.names:
            value = self.node("import", alias.name)
            self.emit("import", alias, value)
            if alias.asname:
                self.bind(alias.asname, value)
            else:
                self.bind(alias.name.partition(".")[0], self.node("import", alias.name.partition(".")[0]))

    def import_from(self, node: ast.ImportFrom) -> None:
        """`from a import b`."""
        module = node.module or ""
        if module == "__future__":
            return
        for alias in node.names:
            if alias.name == "*":
                value = self._imported(node.level, module)
                self.emit("star-import", alias, value)
                self.facts.stars.append(value)
                continue
            value = self._imported(node.level, f"{module}.{alias.name}" if module else alias.name)
            self.emit("import", alias, value)
            self.bind(alias.asname or alias.name, value)

    def _imported(self, level: int, dotted: str) -> int:
        return self.node("relative", level, dotted) if level else self.node("name", dotted)

    # ------------------------------------------------------------------------------------------------- assignments

    def assign_statement(self, node: ast.Assign) -> None:
        """`a = b = value`."""
        value = self.expression(node.value)
        count = None
        for target in node.targets:
            if isinstance(target, ast.Tuple | ast.List) and not any(isinstance(e, ast.Starred) for e in target.elts):
                count = len(target.elts)
                if self.facts.nodes[value][0] not in ("tuple", "list"):
                    self.emit("unpack", node.value, value, count=count)
            self.assign(target, value, node.value)

    def annotated(self, node: ast.AnnAssign) -> None:
        """`x: T = value`. Annotations of locals are never run."""
        inside = self.frame.kind == "function"
        kind = self.annotation(node.annotation, evaluated=not inside)
        value = self.expression(node.value) if node.value is not None else UNKNOWN
        held = kind if kind > NONE else value
        if self.frame.kind == "class" and isinstance(node.target, ast.Name):
            self.class_annotation(node.target.id, held)
        if node.value is not None or (kind > NONE and isinstance(node.target, ast.Name)):
            self.assign(node.target, held, node.value)

    def class_annotation(self, name: str, value: int) -> None:
        """A field of the class whose body this is."""
        facts = self.facts.classes[self.frame.qualname]
        facts.fields = True
        facts.annotations[name] = value

    def assign(self, target: ast.expr, value: int, origin: ast.expr | None = None) -> None:
        """Bind a target."""
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value, origin)
        elif isinstance(target, ast.Attribute):
            base = self.base(target.value)
            if isinstance(target.value, ast.Name):
                key = f"{target.value.id}.{target.attr}"
                self.assigned.add(key)
                self.frame.values[key] = value
                if target.value.id == self.frame.receiver and self.frame.owner:
                    facts = self.facts.classes[self.frame.owner]
                    facts.attributes.setdefault(target.attr, []).append(value)
            self.emit("assign", target, self.attribute(base, target.attr), value=value)
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    self.assign(element.value, UNKNOWN)
                    value = UNKNOWN  # positions after it are not known
                else:
                    self.assign(element, self.item(value, index))
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, origin)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN)

    def _assign_name(self, name: str, value: int, origin: ast.expr | None) -> None:
        self.assigned.add(name)
        known = self.known_dict(origin) if origin is not None else None
        self.bind(name, value, origin)
        if known is not None and self.frame.kind != "class":
            self.frame.dicts[name] = known
            self.frame.dict_made[name] = self.conditions
        if origin is not None and name == "__all__" and self.frame.kind == "module":
            self._exports(origin, add=False)
        if origin is not None and name == "pytestmark":
            for mark in origin.elts if isinstance(origin, ast.List | ast.Tuple) else [origin]:
                self.frame.marks = (*self.frame.marks, *self.skip_condition(mark))

    def _assign_item(self, target: ast.Subscript, origin: ast.expr | None) -> None:
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        key = constant_key(target.slice)
        if name and isinstance(key, str):
            self.dict_begun(name)
        if name in self.frame.dicts:
            if isinstance(key, str) and origin is not None:
                self.dict_changed(name, [(target.slice, key, origin)])
            else:
                self.frame.dicts[name].more = True
        self.value_used(target.value)
        if self.dotted(self.chain(target.value)) != "sys.modules":
            self.expression(target.slice)

    def augmented(self, node: ast.AugAssign) -> None:
        """`x += value`."""
        self.expression(node.value)
        if isinstance(node.target, ast.Name):
            known = self.frame.dicts.get(node.target.id)
            other = self.known_dict(node.value)
            self.bind(node.target.id, self.lookup(node.target.id))
            if node.target.id == "__all__" and self.frame.kind == "module":
                self._exports(node.value, add=True)
            if known is not None:
                known.more |= other is None or other.more
                known.entries.update(other.entries if other is not None else {})
                self.frame.dicts[node.target.id] = known
        elif isinstance(node.target, ast.Attribute):
            self.emit("assign", node.target, self.attribute_value(node.target))
        else:
            self.expression(node.target)

    def _exports(self, value: ast.expr, *, add: bool) -> None:
        names: list[str] | None = None
        if isinstance(value, ast.List | ast.Tuple):
            names = [one.value for one in value.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        before = self.facts.exports if add else []
        self.facts.exports = None if names is None or before is None else [*before, *names]

    def delete(self, node: ast.Delete) -> None:
        """`del x`."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.frame.values[target.id] = UNKNOWN
                self.frame.dicts.pop(target.id, None)
            elif isinstance(target, ast.Attribute):
                self.emit("delete", target, self.attribute_value(target))
            elif isinstance(target, ast.Subscript):
                name = target.value.id if isinstance(target.value, ast.Name) else ""
                known = self.frame.dicts.get(name)
                if known is not None:
                    known.entries.pop(str(constant_key(target.slice)), None)
                self.value_used(target.value)

    # ------------------------------------------------------------------------------------------------ control flow

    def loop(self, node: Any) -> None:
        """`for`, `async for`."""
        elements = self.loop_elements(node.iter, isinstance(node, ast.AsyncFor))
        before = self.frame.copy_values()
        self.assign(node.target, elements)
        self.block(node.body)
        self._merge_back(before[0])
        self.block(node.orelse)

    def _merge_back(self, before: dict[str, int]) -> None:
        """After a body that may not have run."""
        for name, value in before.items():
            held = self.frame.values.get(name, UNKNOWN)
            if held != value:
                self.frame.values[name] = self.either([value, held])

    def while_(self, node: ast.While) -> None:
        """`while`."""
        self.value_used(node.test)
        before = self.frame.copy_values()
        test = 0 if isinstance(node.test, ast.Constant) else self.test(node.test) + 1
        with self.under(test), self.narrowing():
            self.narrow(node.test, holds=True)
            self.block(node.body)
        self._merge_back(before[0])
        self.block(node.orelse)

    def with_(self, node: Any) -> Exits:
        """`with`, `async with`; `contextlib.suppress` and `pytest.raises` are attempts."""
        attempts = self.attempts
        asynchronous = isinstance(node, ast.AsyncWith)
        for item in node.items:
            value = self.expression(item.context_expr)
            suppressed = self._suppressed(item.context_expr)
            if suppressed:
                self.facts.attempts.append((self.tries, "body", suppressed, -1, False))
                self.tries += 1
                self.attempts = (*self.attempts, len(self.facts.attempts) - 1)
                continue
            self.emit("enter", item.context_expr, value, awaited=asynchronous)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, self.step("enter", value, asynchronous))
        exits = self.block(node.body)
        suppresses = self.attempts != attempts
        self.attempts = attempts
        return exits and not suppresses

    def _suppressed(self, node: ast.expr) -> tuple[Any, ...]:
        if not isinstance(node, ast.Call):
            return ()
        if self.dotted(self.chain(node.func)) not in ("contextlib.suppress", "pytest.raises"):
            return ()
        names: list[Any] = []
        for argument in (
            node.args[:1] if isinstance(node.func, ast.Attribute) and node.func.attr == "raises" else node.args
        ):
            for entry in argument.elts if isinstance(argument, ast.Tuple) else [argument]:
                if isinstance(entry, ast.Name) and self.is_builtin(entry.id):
                    names.append(entry.id)
                else:
                    names.append(self.chain(entry))
        return tuple(names)

    def assert_(self, node: ast.Assert) -> None:
        """`assert test`: the rest of the block stands under it."""
        self.value_used(node.test)
        if node.msg is not None:
            self.expression(node.msg)
        self.conditions = (*self.conditions, self.test(node.test) + 1)
        self.narrow(node.test, holds=True)

    def expression_statement(self, node: ast.Expr) -> Exits:
        """A bare expression; a docstring is none."""
        value = node.value
        if isinstance(value, ast.Constant):
            return False
        if not isinstance(value, ast.Call):
            self.expression(value)
            return False
        self.used_call(value)
        return leaves(value, self.dotted(self.chain(value.func)))

    def returned(self, node: ast.Return) -> Exits:
        """`return value`."""
        frame = self.frame
        frame.returns.append(self.expression(node.value) if node.value is not None else NONE)
        return True

    def raised(self, node: ast.Raise) -> Exits:
        """`raise`."""
        for part in (node.exc, node.cause):
            if part is not None:
                self.expression(part)
        return True

    def left(self, node: ast.stmt) -> Exits:
        """`continue`, `break`."""
        return True


_STATEMENTS: dict[type[ast.stmt], Callable[[Any, Any], Any]] = {
    ast.Import: Statements.import_,
    ast.ImportFrom: Statements.import_from,
    ast.Assign: Statements.assign_statement,
    ast.AnnAssign: Statements.annotated,
    ast.AugAssign: Statements.augmented,
    ast.Delete: Statements.delete,
    ast.For: Statements.loop,
    ast.AsyncFor: Statements.loop,
    ast.While: Statements.while_,
    ast.With: Statements.with_,
    ast.AsyncWith: Statements.with_,
    ast.If: Statements.if_,
    ast.Try: Statements.try_,
    ast.TryStar: Statements.try_,
    ast.Match: Statements.match_,
    ast.Assert: Statements.assert_,
    ast.Expr: Statements.expression_statement,
    ast.Return: Statements.returned,
    ast.Raise: Statements.raised,
    ast.Continue: Statements.left,
    ast.Break: Statements.left,
    ast.FunctionDef: lambda walk, node: walk.definition(node),
    ast.AsyncFunctionDef: lambda walk, node: walk.definition(node),
    ast.ClassDef: lambda walk, node: walk.definition(node),
}
