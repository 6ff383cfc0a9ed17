"""What stands around a use: the other parts of its `try` statement, and the methods of its class."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, ClientClass, Name, roots_of, spelled
from tooling.python.once import once
from tooling.python.symbols.targets import locate
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.case import JudgedUse
from tooling.upgrade.verdicts.comparison import Alternatives, JudgeContext
from tooling.upgrade.verdicts.guards import new_side, reachable
from tooling.upgrade.verdicts.judge import imported_name, problems
from tooling.upgrade.verdicts.presence import FOR_A_WHILE, exception_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.uses import FileUses, Use
    from tooling.upgrade.verdicts.comparison import ReleasePair


class Surroundings:
    """Looked up once per `try` statement and per class."""

    def __init__(self, files: Sequence[FileUses], pairs: Sequence[ReleasePair]) -> None:
        """files: those of the whole repository."""
        self._pairs = pairs
        self._tried: dict[tuple[str, int], list[Use]] = defaultdict(list)
        self._stars: dict[str, set[str]] = defaultdict(set)
        self._imported: dict[str, set[str]] = defaultdict(set)
        self._bound: dict[str, set[str]] = defaultdict(set)
        self._assigned: dict[str, list[tuple[int, Use]]] = defaultdict(list)
        self._apart = {file.path for file in files if file.apart}
        self.extensions = {each.owner.dotted: each for file in files for each in file.extensions}
        self.made: set[str] = set()
        """Classes of the repository that are called with the constructor of a package's."""
        self._called: set[str] = set()
        for file in files:
            for use in file.uses:
                path = file.path
                for attempt in use.attempts:
                    if not attempt.path:
                        self._tried[path, attempt.number].append(use)
                if use.action is Action.CALL:
                    self._called.add(spelled(use.target))
                if use.action is Action.CALL and isinstance(use.target, ClientClass):
                    self.made.add(use.target.dotted)
                elif use.action is Action.ASSIGN:
                    lines = [line for name, line in file.loading if name == use.function]
                    if lines or not use.function:
                        line = min(lines, default=use.place.line)
                        self._assigned[spelled(use.target)].append((line, use))
                elif use.action is Action.STAR_IMPORT and isinstance(use.target, Name):
                    self._stars[path].add(use.target.dotted)
                elif use.action is Action.IMPORT and isinstance(use.target, Name):
                    self._imported[path].add(use.target.dotted)
                    self._bound[path].add(use.symbol_text.rpartition(" ")[2])

    @once(meanwhile=Alternatives())  # a use inside asks for nothing of its own statement
    def alternatives(self, path: str, number: int) -> Alternatives:
        """How the parts of a `try` statement fare on the new version."""
        raised: set[str] = set()
        unknown, body = False, 0
        handlers: dict[int, int] = defaultdict(int)
        for use in self._tried.get((path, number), []):
            attempt = next(each for each in use.attempts if (each.number, each.path) == (number, ""))
            if attempt.part == "else" or reachable(use.conditions, new_side(self._pairs)) is False:
                continue
            if attempt.part == "handler":
                handlers[attempt.handler] += 1
                continue
            body += 1
            found = self._raised(use)
            unknown = unknown or found is None
            raised |= found or set()
        return Alternatives(frozenset(raised), unknown, body, dict(handlers))

    def _raised(self, use: Use) -> set[str] | None:
        """Exceptions that a use raises on the new version; None if nobody knows."""
        for pair in self._pairs:
            if not any(pair.owns(root) for root in roots_of(use.target)):
                continue
            case = JudgedUse(use, pair.old, pair.new, JudgeContext(pair.distribution, self._pairs))
            sight = case.after
            if sight.absent and not sight.found:
                return {exception_of(case, sight.absent[0])} - {""}
            raised = {problem.raises for problem in problems(case) if problem.raises}
            return raised or (set() if sight.closed else None)
        return None

    def starred(self, use: Use) -> str:
        """Module whose star import alone binds the name that a use spells."""
        module, _, name = imported_name(use).rpartition(".")
        by_star = module in self._stars[use.place.path] and name == use.symbol_text.partition("(")[0]
        return module if by_star and name not in self._bound[use.place.path] else ""

    def names_in(self, path: str) -> frozenset[str]:
        """Dotted paths of what a file imports."""
        return frozenset(self._imported[path])

    def imported(self, module: str) -> bool:
        """Whether a file of the repository imports a module, or something in it."""
        return module in self._modules()

    @once()
    def _modules(self) -> frozenset[str]:
        """What files import, and the packages that it lies in."""
        names = set().union(*self._imported.values(), *self._stars.values())
        parts = [name.split(".") for name in names]
        return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each) + 1))

    def assigned(self, use: Use, dotted: str) -> bool:
        """Whether the top level of the file, or a function that it calls, has put an attribute on a class or module
        before a use, or that of another one outside of tests, on the new version: `if not hasattr(Tensor, "old"):
        Tensor.old = Tensor.new`. What a test patches for a while, or a function for whoever calls it later, is not
        there for others. An assignment itself is for the repository's own calls, if it has any."""
        if use.action is Action.ASSIGN:
            return dotted in self._called and not FOR_A_WHILE.match(use.symbol_text)
        return any(
            (
                (line < use.place.line or use.function not in ("", each.function) or use.action is Action.STRING)
                if each.place.path == use.place.path
                else ("test" not in each.place.path or each.place.path.endswith("conftest.py"))
                and each.place.path not in self._apart
            )
            and each.symbol_text.endswith((f".{dotted.rpartition('.')[2]}", ")", "]"))
            and not FOR_A_WHILE.match(each.symbol_text)
            and isinstance(each.target.base if isinstance(each.target, Attribute) else each.target, Name)
            and reachable(each.conditions, new_side(self._pairs)) is not False
            for line, each in self._assigned[dotted]
        )

    def extended(self, owner: str, name: str) -> bool:
        """Whether a class of the repository that derives from this class of an old release has such an attribute."""
        bases = {base for each in self.extensions.values() if name in each.names for base in each.owner.bases}
        return any(
            ancestor.dotted == owner
            for base in bases
            for pair in self._pairs
            for met in locate(pair.old, base).found
            for ancestor in pair.old.bases(met.symbol)[0]
        )
