"""Which conditions a release may have a say in, found by looking at the names that they lead to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tooling.python.guard_values import MAX_DEPTH
from tooling.python.once import once
from tooling.upgrade.usage.facts import NONE, ClassFacts, FunctionFacts

if TYPE_CHECKING:
    from tooling.upgrade.usage.link.store import FactsStore

_FUNCTION_LINES = 60
_NAMES = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")
"""Names, with the member that is asked for."""
_WORDS = (
    *("version", "avail", "greater", "hasattr", "getattr", "dir(", "signature(", "argspec", "fields"),
    *(
        "find_spec",
        "type_checking",
        "operator.",
        "vars(",
        "__dict__",
        "__all__",
        "__annotations__",
        "sys.modules",
        "co_varnames",
    ),
)
"""What a condition about versions, names or modules says somewhere, unless a name of the repository hides it."""
_ATTEMPT = re.compile(r"^\s*try:.*^\s*(?:import|from) ", re.MULTILINE | re.DOTALL)


class TellingNames:
    """Names that lead to code about versions, names, modules or switches. Most conditions have none, and are about what
    only the run knows: they need no parser."""

    def __init__(self, store: FactsStore) -> None:
        self._store = store

    def in_text(self, path: str, text: str, rows: tuple[Any, ...] = (), depth: int = MAX_DEPTH) -> bool:
        """Whether a condition, or what its names stand for, may say something about a release. rows: local names.
        depth: definitions that may still be entered."""
        if is_telling(text):
            return True
        if not depth:
            return False
        local = {row[0]: row for row in rows}
        return any(
            self.in_text(path, row[2], row[3], depth - 1)
            if row[2]
            else row[1] > NONE and (self.of_row(path, row[1], depth) or self.in_text(path, "", row[3], depth - 1))
            for row in rows
        ) or any(self._of_name(path, name, member, depth) for name, member in _NAMES.findall(text) if name not in local)

    @once(meanwhile=False)  # for names that lead to each other
    def _of_name(self, path: str, name: str, member: str, depth: int) -> bool:
        """A name of a module, or a member of it."""
        return self._looked_up(path, name, member, depth)

    def _looked_up(self, path: str, name: str, member: str, depth: int) -> bool:
        facts = self._store.facts(path)
        rows = facts.bindings.get(name, ())
        if len(rows) > 1 and any(facts.contexts[context][1] for _, context, _ in rows):
            return True  # what an attempt to import leaves behind
        if member and self._looked_up(path, f"{name}.{member}", "", depth):
            return True
        if not rows:
            modules = [self._imported(path, star) for star in facts.stars]
            return any(found is not None and self._of_name(found[0], name, member, depth) for found in modules)
        texts = [self._store.text(path, span) for _, _, span in rows if span is not None]
        return any(text in ("True", "False") or self.in_text(path, text, (), depth - 1) for text in texts) or any(
            number > NONE and self.of_row(path, number, depth, member) for number, _, _ in rows
        )

    def of_row(self, path: str, number: int, depth: int = MAX_DEPTH, member: str = "") -> bool:
        """A row of a file's table, or a member of what it stands for."""
        facts = self._store.facts(path)
        row = facts.nodes[number]
        if row[0] in ("import", "name", "relative"):
            found = self._imported(path, number, member)
            if found is not None and found[1]:
                name, inner = (*found[1], "")[:2]
                if self._of_name(found[0], name, inner, depth):
                    return True
            return is_telling(row[-1])
        if row[0] == "global":
            return self._of_name(path, row[1], member, depth)
        owner = facts.classes.get(row[1]) if row[0] == "own" else None
        name = row[1] if owner is None else owner.methods.get(member, "")
        own = (facts.functions.get(name) if member or owner is None else owner) if row[0] == "own" else None
        text = self.function(path, own) if own is not None else ""
        return bool(text) and (_ATTEMPT.search(text) is not None or self.in_text(path, text, (), depth - 1))

    def _imported(self, path: str, number: int, member: str = "") -> tuple[str, tuple[str, ...]] | None:
        """File and parts that a row of an import leads to, with a member of that."""
        row = self._store.facts(path).nodes[number]
        level, dotted = (row[1], row[2]) if row[0] == "relative" else (0, row[1])
        dotted = f"{dotted}.{member}" if member and dotted else dotted or member
        return self._store.checkout.find(path, dotted, level) if row[0] in ("import", "name", "relative") else None

    def function(self, path: str, facts: FunctionFacts | ClassFacts) -> str:
        """The source of a function or class that is short enough to be followed; ""."""
        if facts.end_line - facts.line > _FUNCTION_LINES:
            return ""
        return self._store.text(path, (facts.line, 0, facts.end_line, 100_000))


def is_telling(text: str) -> bool:
    """Whether a text speaks of versions, names or modules."""
    lowered = text.lower()
    return any(word in lowered for word in _WORDS) or lowered.endswith("signature")
