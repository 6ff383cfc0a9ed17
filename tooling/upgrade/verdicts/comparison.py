"""Hold what all judges share: a pair of releases, a problem before it is a finding, evidence in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.symbols.symbol import Open, SymbolKind
from tooling.upgrade.findings import AuditSeverity, Evidence, FindingKind, Replacement

if TYPE_CHECKING:
    from tooling.python.symbols.symbol import Absent, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Extension, SourcePlace, Use


Explanation = tuple[FindingKind, Replacement | None]
"""MOVED, RENAMED or REMOVED, and what to write instead."""
Explainer = Callable[["Absent", "Upstream", "Upstream", "Use"], Explanation | None]
"""Why something is gone; None if it is simply not there any more."""


@dataclass(frozen=True, slots=True)
class ReleasePair:
    """One distribution in two versions."""

    distribution: str
    old: Upstream
    new: Upstream

    def owns(self, dotted: str) -> bool:
        """Whether either version holds the name."""
        return self.old.owns(dotted) or self.new.owns(dotted)


@dataclass(frozen=True, slots=True)
class UseProblem:
    """A difference that one use runs into; guards and fallbacks have not been looked at yet."""

    kind: FindingKind
    severity: AuditSeverity
    place: SourcePlace
    symbol: str
    message: str
    raises: str = ""
    """Builtin exception that the new version raises there; "" if it fails silently or later."""
    parameter: str = ""
    confidence: float = 0.95
    old: Evidence = field(default_factory=Evidence)
    new: Evidence = field(default_factory=Evidence)
    replacement: Replacement | None = None
    fixable: bool = False
    cause: str = ""
    """Dotted path of what is gone, where several uses of one expression run into the same thing."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """How the parts of one `try` statement fare on the new version."""

    body_raises: frozenset[str] = frozenset()
    """Exceptions that uses in the body raise there."""
    body_open: bool = False
    """Whether some use in the body could not be judged."""
    body_uses: int = 0
    handler_uses: Mapping[int, int] = field(default_factory=dict)
    """Uses of a package in each handler."""


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """What a judge knows beside one use: the other distributions of the upgrade, and what stands around in the file.

    All of it may be left empty; then guards on other distributions stay undecided, fallbacks have no alternatives."""

    distribution: str
    pairs: Sequence[ReleasePair] = ()
    """All distributions that change; guards may ask for any of them."""
    explain: Explainer | None = None
    alternatives: Callable[[str, int], Alternatives] = lambda _path, _number: Alternatives()
    """Of the `try` statement with this number in this file."""
    starred: Callable[[Use], str] = lambda _use: ""
    """Module whose star import alone binds the name that a use spells; "" if another import does."""
    extension: Callable[[str], Extension | None] = lambda _dotted: None
    """What a class of the repository adds to its bases, by its dotted path."""
    made: Callable[[str], bool] = lambda _dotted: False
    """Whether such a class is called with the constructor that it inherits."""
    imported: Callable[[str], bool] = lambda _module: True
    """Whether the repository imports a module itself, or something in it."""
    names_in: Callable[[str], frozenset[str]] = lambda _path: frozenset()
    """Dotted paths of what a file imports."""
    assigned: Callable[[Use, str], bool] = lambda _use, _dotted: False
    """Whether the file has set this attribute (dotted path) of a package's class or module itself before a use."""
    extended: Callable[[str, str], bool] = lambda _owner, _name: False
    """Whether a class of the repository that derives from this one of the old release (dotted path) has an attribute of
    this name."""


MOST_DEFINERS = 40
"""Classes that define a name; what more have is everybody's."""
_LONGEST = 240


def evidence(upstream: Upstream, symbol: Symbol) -> Evidence:
    """Where a definition stands, and the definition in one line."""
    return Evidence(symbol.file, symbol.line, shorten(definition(upstream, symbol)))


def evidence_of_absence(absent: Absent) -> Evidence:
    """Where one would have to look for it."""
    return Evidence(absent.file, absent.line, "")


def definition(upstream: Upstream, symbol: Symbol) -> str:
    """A definition as one line."""
    name = symbol.name
    if symbol.kind is SymbolKind.MODULE:
        return f"module {symbol.dotted}"
    if symbol.kind is SymbolKind.VALUE:
        return f"{name} = {symbol.value}" if symbol.value else name
    if "property" in symbol.binding:
        return f"@{symbol.binding.replace('-', '_')} def {name}(self)"
    signature = upstream.signature(symbol)
    text = f"{name}(...)" if isinstance(signature, Open) else signature.text(name)
    if symbol.kind is SymbolKind.CLASS:
        return f"class {text}"
    return f"async def {text}" if symbol.is_async else f"def {text}"


def mentions(upstream: Upstream, file: str, pattern: str) -> int:
    """Line of a file of the release that a pattern matches; 0 if none does."""
    text = upstream.source.read(file)
    found = re.search(pattern.encode(), text)
    return text.count(b"\n", 0, found.start()) + 1 if found else 0


def shorten(text: str, longest: int = _LONGEST) -> str:
    """One line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
