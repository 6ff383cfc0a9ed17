"""Collect what a checklist holds: affected files, symbols with what their uses rely on, version guards."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.python.access_paths import Name
from tooling.python.conditions import AllOf, AnyOf, CompareVersion, HasName, HasParameter, ModuleExists, Not
from tooling.python.symbols.symbol import Definite, Found, Instance, SymbolKind, Values
from tooling.upgrade.uses import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.python.conditions import Condition
    from tooling.python.symbols.symbol import Signature, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import FileUses, Use


@dataclass(frozen=True, slots=True)
class ChecklistPackage:
    """The head of a checklist, from the policy."""

    distribution: str
    imports: tuple[str, ...]
    github: str
    """Web address of the upstream repository."""
    branch_template: str
    """Tag or branch of a version, e.g. "v{version}"."""
    version: str
    """Version that the signatures are of; "" when its source could not be read."""


@dataclass(frozen=True, slots=True)
class AffectedFile:
    """A file of the repository that uses the package."""

    path: str
    tier: str
    """"primary": the product's own code that runs it; "secondary": tests, benchmarks, examples and scripts;
    "tertiary": names it in types, strings or checks only."""


@dataclass(frozen=True, slots=True)
class ChecklistEntry:
    """A symbol of the package, and everything this repository does with it."""

    symbol: str
    """Dotted path where it is defined."""
    source: str
    """File inside the package that defines it."""
    signature: str
    """One line; "" for modules and values."""
    deprecated: str
    sites: tuple[str, ...]
    """"path (function)", sorted."""
    snippet: str
    """The first use as it is written."""
    verify: tuple[str, ...]
    """What must still hold, from how it is used."""


@dataclass(frozen=True, slots=True)
class GuardedPlace:
    """Code that runs only for some versions."""

    path: str
    function: str
    condition: str


@dataclass(frozen=True, slots=True)
class Checklist:
    """All of it, sorted."""

    subject: ChecklistPackage
    files: tuple[AffectedFile, ...]
    entries: tuple[ChecklistEntry, ...]
    guarded: tuple[GuardedPlace, ...]
    upstream_paths: tuple[str, ...]
    """Files of the package that define what is used."""


def guards_of(use: Use, subject: ChecklistPackage) -> set[GuardedPlace]:
    """Return the conditions about the package that a use stands under."""
    return {
        GuardedPlace(use.place.path, use.function, text)
        for condition in use.conditions
        if (text := spelled(condition, subject))
    }


def spelled(condition: Condition, subject: ChecklistPackage) -> str:
    """Return a condition in words if it speaks of the package's version or shape; else ""."""
    match condition:
        case Not(inner):
            text = spelled(inner, subject)
            return f"not ({text})" if text else ""
        case AllOf(conditions):
            return _joined(" and ", conditions, subject)
        case AnyOf(conditions):
            return _joined(" or ", conditions, subject)
    match condition:
        case CompareVersion(_, name, operator, literal):
            about = name in subject.imports or name.replace("_", "-").lower() == subject.distribution
            return f"{name} {operator} {literal}" if about else ""
        case HasName(_, name):
            return f"has `{name}`"
        case HasParameter(_, name):
            return f"takes `{name}`"
        case ModuleExists(dotted):
            return (
                f"has module {dotted}"
                if dotted.split(".", maxsplit=1)[0] in {name.split(".", maxsplit=1)[0] for name in subject.imports}
                else ""
            )
    return ""


def _joined(word: str, conditions: Iterable[Condition], subject: ChecklistPackage) -> str:
    return word.join(filter(None, (spelled(part, subject) for part in conditions)))


SECONDARY: Final = ("tests", "test", "benchmarks", "examples", "scripts", "docs")
"""Folders whose code is not the product's."""
LONGEST_SNIPPET: Final = 100
_RUNS: Final = frozenset(Action) - {Action.ANNOTATION, Action.STRING, Action.PROBE, Action.IMPORT, Action.STAR_IMPORT}

_HOLDS: Final = {
    Action.AWAIT: "can be awaited",
    Action.SUBCLASS: "can be subclassed",
    Action.OVERRIDE: "is called with what our override takes",
    Action.ASSIGN: "is still looked up where we replace it",
    Action.EXCEPT: "is still what is raised",
}


def collect(subject: ChecklistPackage, files: Iterable[FileUses], upstream: Upstream | None) -> Checklist:
    """upstream: the release in use; None when it could not be read (then there are no entries)."""
    affected, guarded = [], set[GuardedPlace]()
    uses_of: dict[str, list[Use]] = defaultdict(list)
    symbols: dict[str, Symbol] = {}
    for file in files:
        own = (use for use in file.uses if use.package in subject.imports)
        uses = [
            use for use in own if use.action is not Action.OPERATE
        ]  # it names nothing that its value's use does not
        if not uses:
            continue
        for use in uses:
            guarded |= guards_of(use, subject)
            for symbol in _symbols(use, upstream):
                symbols[symbol.dotted] = symbol
                uses_of[symbol.dotted].append(use)
        runs = any(use.action in _RUNS and use.evaluated for use in uses)
        is_aside = file.path.split("/", maxsplit=1)[0] in SECONDARY
        tier = "secondary" if is_aside else "primary" if runs else "tertiary"
        affected.append(AffectedFile(file.path, tier))
    entries = [_entry(symbols[dotted], uses_of[dotted], upstream) for dotted in sorted(symbols) if upstream is not None]
    return Checklist(
        subject,
        tuple(sorted(affected, key=lambda file: (file.tier, file.path))),
        tuple(entries),
        tuple(sorted(guarded, key=lambda place: (place.path, place.function, place.condition))),
        tuple(sorted({symbol.file for symbol in symbols.values() if symbol.file})),
    )


def _symbols(use: Use, upstream: Upstream | None) -> list[Symbol]:
    """Return what a use touches. Modules count only where they are imported by name."""
    if upstream is None:
        return []
    if isinstance(use.target, Name):
        found = upstream.resolve(use.target.dotted)
        symbols = [found.symbol] if isinstance(found, Found) else []
    else:
        values = upstream.follow(use.target)
        types = values.types if isinstance(values, Values) else ()
        symbols = [kind.symbol for kind in types if isinstance(kind, Definite | Instance)]
    return [symbol for symbol in symbols if symbol.kind is not SymbolKind.MODULE and upstream.owns(symbol.dotted)]


def _entry(symbol: Symbol, uses: Sequence[Use], upstream: Upstream | None) -> ChecklistEntry:
    assert upstream is not None, "entries need a release"
    ordered = sorted(uses, key=lambda use: (use.action in (Action.IMPORT, Action.STRING), use.place))
    signature = None
    if symbol.kind in (SymbolKind.CLASS, SymbolKind.FUNCTION) and symbol.binding not in ("property", "cached-property"):
        found = upstream.signature(symbol)
        signature = found if not hasattr(found, "why") else None
    sites = sorted({_site(use) for use in uses})
    # What must still hold for these uses, as sentences a person can check
    actions = {use.action for use in uses}
    calls = [use.arguments.given for use in uses if use.action is Action.CALL and use.arguments is not None]
    keywords = sorted({argument.name for given in calls for argument in given if argument.name})
    positional = max((sum(argument.name is None for argument in given) for given in calls), default=0)
    lines = []
    if keywords:
        lines.append("takes the keywords " + ", ".join(f"`{name}`" for name in keywords))
    if positional:
        lines.append(f"takes {positional} positional argument{'s' if positional > 1 else ''}")
    lines += [_HOLDS[action] for action in Action if action in actions and action in _HOLDS]
    if any(use.awaited for use in uses) and _HOLDS[Action.AWAIT] not in lines:
        lines.append(_HOLDS[Action.AWAIT])
    counts = sorted({use.count for use in uses if use.action is Action.UNPACK and use.count})
    if counts:
        lines.append(f"gives {' or '.join(map(str, counts))} values")
    if symbol.name.startswith("_") or any(use.private for use in uses):
        lines.append("still exists: it is private")
    return ChecklistEntry(
        symbol=symbol.dotted,
        source=symbol.file,
        signature=_shown(symbol, signature),
        deprecated=symbol.deprecated,
        sites=tuple(sites),
        snippet=ordered[0].symbol_text[:LONGEST_SNIPPET],
        verify=tuple(lines or ["still exists and means the same"]),
    )


def _site(use: Use) -> str:
    """With the function, where it is the product's own: tests come and go."""
    path = use.place.path
    return f"{path} ({use.function})" if use.function and path.split("/", maxsplit=1)[0] not in SECONDARY else path


def _shown(symbol: Symbol, signature: Signature | None) -> str:
    name = symbol.name
    if symbol.kind is SymbolKind.FUNCTION and symbol.binding in ("property", "cached-property"):
        return f"@property {name}"
    if signature is None:
        return ""
    word = "class" if symbol.kind is SymbolKind.CLASS else "async def" if symbol.is_async else "def"
    return f"{word} {signature.text(name)}"
