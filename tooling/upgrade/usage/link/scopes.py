"""Names of conditions, looked up in files: what `conditions` reads them with."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tooling.python.access_paths import Name, SuperOf
from tooling.python.condition_reader import UNSKIPPED, Unread, read_condition, unread
from tooling.python.conditions import (
    Condition,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Undecided,
    all_of,
    undecided,
)
from tooling.python.guard_values import GuardClass, GuardDefinition, GuardObject, GuardSymbol
from tooling.python.operations import UNKNOWN
from tooling.python.source import alone, definition, parse_expression
from tooling.upgrade.usage.facts import NONE, ClassFacts, FileFacts
from tooling.upgrade.usage.link.classes import LinkedModule, Ours, OwnClass, OwnInstance, Super

if TYPE_CHECKING:
    from tooling.python.conditions import ReleaseAnswers
    from tooling.python.guard_values import GuardScope
    from tooling.upgrade.usage.link.classes import Value
    from tooling.upgrade.usage.link.resolve import Resolver
    from tooling.upgrade.usage.link.store import FactsStore


_FUNCTION_LINES = 60
_TELLING = re.compile(
    r"version|avail|greater|hasattr|getattr|dir\(|signature\(|argspec|fields|find_spec|type_checking|operator\.|vars\("
    r"|__dict__|__all__|__annotations__|sys\.modules|co_varnames|signature$",
    re.IGNORECASE,
)
"""What a text about versions, names or modules says somewhere."""
_LOOKUPS = frozenset({"AttributeError", "Exception", "BaseException", "*"})


class FileScope:
    """Module level of a file."""

    def __init__(self, link: Resolver, store: FactsStore, path: str) -> None:
        self._link = link
        self._store = store
        self._path = path

    def find(self, name: str) -> object:
        """What a name stands for."""
        facts = self._store.facts(self._path)
        rows = facts.bindings.get(name)
        if not rows:
            if not name.isidentifier():
                return self._of_class(name, facts)
            modules = [entry.value for star in facts.stars for entry in self._link.value(self._path, star)]
            paths = [each.path for each in modules if isinstance(each, LinkedModule)]
            having = next((path for path in paths if name in self._store.facts(path).bindings), None)
            return FileScope(self._link, self._store, having).find(name) if having is not None else None
        if len(rows) > 1:
            flag = self._flag(facts, rows)
            if flag is not None:
                return flag
            rows = [row for row in rows if row[0] != NONE] or rows
        number, _, span = rows[-1] if len(rows) > 1 and rows[-1][1] == 0 else rows[0]
        found = self.row(number)
        text = "" if span is None else self._store.text(self._path, span)
        if found is not None and not _is_told_by(text, found):
            return found
        node = parse_expression(text) if text else None
        return (None if node is None else GuardDefinition(node, self)) or found or UNKNOWN

    def _of_class(self, name: str, facts: FileFacts) -> object:
        """`Versions.up`, where Versions is a class that another file defines, and methods of one of this file."""
        first, _, last = name.partition(".")
        if first in facts.classes:
            values = facts.classes[first].attributes.get(last, ())
            method = facts.classes[first].methods.get(last, "")
            return self.row(values[0]) if len(values) == 1 and not method else self.definition(method)
        rows = facts.bindings.get(first, ())
        row = facts.nodes[rows[0][0]] if len(rows) == 1 else ("unknown",)
        if row[0] not in ("name", "relative") or "." in last:
            return None
        level, dotted = (row[1], row[2]) if row[0] == "relative" else (0, row[1])
        found = self._store.checkout.find(self._path, dotted, level)
        if found is None or len(found[1]) != 1 or found[0] == self._path:
            return None
        return FileScope(self._link, self._store, found[0]).find(f"{found[1][0]}.{last}")

    def symbol(self, dotted: str, level: int = 0) -> object:
        """What a dotted path leads to inside the repository, or in a package that is asked for."""
        if not level and self._link.package_of(dotted):
            return GuardSymbol(dotted, Name(dotted))
        found = self._store.checkout.find(self._path, dotted, level)
        if found is not None and not found[1]:
            return GuardSymbol(self._store.checkout.module_name(found[0]))
        if found is None or len(found[1]) not in (1, 2):
            return None
        return FileScope(self._link, self._store, found[0]).find(".".join(found[1]))

    def row(self, number: int) -> object:
        """What a value of the file is to a condition."""
        facts = self._store.facts(self._path)
        row = facts.nodes[number]
        if row[0] == "own":
            return self.definition(row[1])
        if row[0] in ("import", "name"):
            return self.symbol(row[1]) or GuardSymbol(row[1])
        if row[0] == "relative":
            return self.symbol(row[2], row[1]) or GuardSymbol("." * row[1] + row[2])
        if row[0] == "global":
            return self.find(row[1])
        if row[0] == "arg" and (text := self._default(*row[1:])):
            node = parse_expression(text)
            return None if node is None else GuardDefinition(node, self)
        alternatives = self._link.value(self._path, number)
        return self._value(alternatives[0].value) if len(alternatives) == 1 else None

    def _default(self, qualname: str, name: str) -> str:
        """The default of a parameter, where that tells something of a release."""
        found = [
            text for entry, _, text in self._store.facts(self._path).functions[qualname].parameters if entry == name
        ]
        return found[0] if found and found[0] and _TELLING.search(found[0]) else ""

    def _value(self, held: Value | None) -> object:
        if isinstance(held, Ours):
            return GuardSymbol("", held.access_path)
        if isinstance(held, OwnClass | OwnInstance):
            made = FileScope(self._link, self._store, held.path).definition(held.qualname)
            return GuardObject(made) if isinstance(made, GuardClass) and isinstance(held, OwnInstance) else made
        if isinstance(held, Super):
            bases = self._link.lineage(OwnClass(held.path, held.qualname)).ours
            return GuardSymbol("", SuperOf(tuple(bases))) if bases else None
        return None

    def definition(self, qualname: str) -> GuardDefinition | GuardClass | None:
        """A class, or a function that is short enough to be followed."""
        facts = self._store.facts(self._path)
        if qualname in facts.classes:
            made = facts.classes[qualname]
            if made.line == made.end_line and self._class(made) is None:
                return None  # `namedtuple("Version", "major minor")`, which is read as it is written
            return GuardClass(functools.partial(self._class, facts.classes[qualname]), self)
        function = facts.functions.get(qualname)
        if function is None or function.end_line - function.line > _FUNCTION_LINES:
            return None  # no function, or too long to be followed
        node = _parsed(self._store.text(self._path, (function.line, 0, function.end_line, 100_000)))
        return GuardDefinition(node, self) if isinstance(node, ast.FunctionDef) else None

    def _class(self, facts: ClassFacts) -> ast.ClassDef | None:
        node = _parsed(self._store.text(self._path, (facts.line, 0, facts.end_line, 100_000)))
        return node if isinstance(node, ast.ClassDef) else None

    # --------------------------------------------------------------------------------------------------------- flags

    def _flag(self, facts: FileFacts, rows: list[Any]) -> object:
        """`try: import x; HAS_X = True` / `except ImportError: HAS_X = False`, and names set to None by the handler."""
        body, fallback, kept = None, False, None
        for number, context, span in rows:
            attempts = facts.contexts[context][1]
            text = "None" if number == NONE else self._store.text(self._path, span) if span is not None else ""
            last = facts.attempts[attempts[-1]] if attempts else None
            if last is not None and last[1] == "body" and text not in ("False", "None"):
                body, kept = last[0], None if text == "True" else number
            elif text in ("False", "None"):
                fallback = True
        if body is None or not fallback:
            # `HAS_X = True` may stand in the `else` of the `try`, or before it all as False
            texts = [self._store.text(self._path, span) if span is not None else "" for _, _, span in rows]
            if set(texts) != {"True", "False"}:
                return None
            for (_, context, _), text in zip(rows, texts, strict=True):
                attempts = facts.contexts[context][1]
                if text == "False" and attempts and facts.attempts[attempts[-1]][1] == "handler":
                    return self._exists(facts, facts.attempts[attempts[-1]][0], None)
            return None
        return self._exists(facts, body, kept)

    def _exists(self, facts: FileFacts, attempt: int, kept: int | None) -> object:
        """The imports of an attempt's body, and the keywords it tries, as a condition."""
        conditions: list[Condition] = []
        names: set[str] = set()
        for action, _, target, context, details in facts.uses:
            tried = [
                facts.attempts[one]
                for one in facts.contexts[context][1]
                if facts.attempts[one][:2] == (attempt, "body")
            ]
            asks = action == "import" or (action == "read" and any(_LOOKUPS.intersection(one[2]) for one in tried))
            row = facts.nodes[target]
            if not tried or row[0] not in ("import", "name") or not self._link.package_of(row[1]):
                continue
            base, _, last = row[1].rpartition(".")
            names.add(last)
            if action == "call" and any("TypeError" in one[2] for one in tried):
                given = [each[1] for each in dict(details)["arguments"][0] if each[1]]
                conditions += [HasParameter(Name(row[1]), each) for each in given]
            if not asks:
                continue
            is_module = row[0] == "import" and action == "import"
            conditions.append(ModuleExists(row[1]) if is_module or not base else HasName(Name(base), last))
        if not conditions:  # something else is tried: a call, or a search for a module that may be read by itself
            return undecided("an attempt works", _AttemptWorks(names)) if names else UNKNOWN if kept is None else None
        symbol = self.row(kept) if kept is not None else None
        if isinstance(symbol, GuardSymbol):
            return GuardSymbol(symbol.dotted, symbol.access_path, all_of(conditions))
        return all_of(conditions)


def _is_told_by(text: str, found: object) -> bool:
    """Whether the expression that a name was bound to says more of it than its class does; `job = jobs.get()` is
    something of a package, to be asked for its names."""
    if isinstance(found, GuardObject):
        return bool(text)
    return isinstance(found, GuardSymbol) and not found.dotted and _TELLING.search(text) is not None


class TestScope:
    """Local names of one condition, then those of its file."""

    __test__ = False

    def __init__(self, rows: tuple[Any, ...], file: FileScope) -> None:
        self._rows = {row[0]: row for row in rows}
        self._file = file

    def find(self, name: str) -> object:
        """What a name stands for."""
        row = self._rows.get(name)
        if row is None:
            return self._file.find(name)
        found = self._file.row(row[1]) if row[1] > NONE else None
        if found is not None and not _is_told_by(row[2], found):
            return found
        node = parse_expression(row[2]) if row[2] else None
        return UNKNOWN if node is None else GuardDefinition(node, TestScope(row[3], self._file))

    def symbol(self, dotted: str, level: int = 0) -> object:
        """What a dotted path leads to inside the repository, or in a package that is asked for."""
        return self._file.symbol(dotted, level)


@dataclass(frozen=True, slots=True)
class _AttemptWorks:
    """Whether an attempt worked, in which more is tried than an import."""

    names: set[str]

    def about(self) -> frozenset[str]:
        """See `OpenQuestion`."""
        return frozenset(self.names)

    def holds(self, _side: ReleaseAnswers) -> None:
        """See `OpenQuestion`."""


def linked_condition(link: Resolver, store: FactsStore, path: str, number: int) -> Condition:
    """A test of a file as a condition."""
    text, rows, _ = store.facts(path).tests[number]
    scope: GuardScope = TestScope(rows, FileScope(link, store, path))
    node = parse_expression(text)
    found = unread(text, scope) if node is None else read_condition(node, scope)
    if text.startswith(UNSKIPPED) and isinstance(found, Undecided) and not Unread(text, scope).about():
        return Constant(True)  # a decorator that asks for nothing of a release
    return found


@functools.lru_cache(maxsize=2_000)
def _parsed(text: str) -> ast.AST | None:
    return definition(alone(text))
