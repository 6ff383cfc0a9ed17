"""What a checklist holds, and its Markdown: generated parts between markers, people's words around them.

    <!-- areal-audit:begin entry vllm.LLM -->        a generated part; its key is the symbol
    ...
    <!-- areal-audit:end -->
    Watch the memory when ...                        kept, and moved along with the part above it

Whatever stands outside the markers is kept byte for byte. A part whose subject is gone is dropped when nothing was
written below it; else the notes stay under a heading that says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.python.access_paths import Name
from tooling.python.conditions import AllOf, AnyOf, CompareVersion, HasName, HasParameter, ModuleExists, Not
from tooling.python.symbols.symbol import Definite, Found, Instance, Open, SymbolKind, Values
from tooling.upgrade.report.document import code, escaped, table
from tooling.upgrade.uses import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tooling.python.conditions import Condition
    from tooling.python.symbols.symbol import Symbol
    from tooling.upgrade.policy.watched import FocusedPackage
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import FileUses, Use


@dataclass(frozen=True, slots=True)
class Checklist:
    """All of it."""

    package: FocusedPackage
    version: str
    """That the signatures are of; "" when its source could not be read."""
    files: Mapping[str, str]
    """Files of the repository that use the package, each with its tier. "primary": the product's own code that runs it;
    "secondary": tests, benchmarks, examples and scripts; "tertiary": names it in types, strings or checks only."""
    entries: Mapping[str, str]
    """Symbols of the package by the dotted path where they are defined, sorted, with what this repository does with
    them as Markdown."""
    guarded: tuple[tuple[str, str, str], ...]
    """Code that runs only for some versions: path, function and condition, sorted."""
    upstream_paths: tuple[str, ...]
    """Files of the package that define what is used, sorted."""


def spelled(condition: Condition, package: FocusedPackage) -> str:
    """Return a condition in words if it speaks of the package's version or shape; else ""."""
    match condition:
        case Not(inner):
            text = spelled(inner, package)
            return f"not ({text})" if text else ""
        case AllOf(conditions) | AnyOf(conditions):
            word = " and " if isinstance(condition, AllOf) else " or "
            return word.join(filter(None, (spelled(part, package) for part in conditions)))
        case CompareVersion(_, name, operator, literal):
            about = name in package.imports or name.replace("_", "-").lower() == package.distribution
            return f"{name} {operator} {literal}" if about else ""
        case HasName(_, name):
            return f"has `{name}`"
        case HasParameter(_, name):
            return f"takes `{name}`"
        case ModuleExists(dotted):
            return (
                f"has module {dotted}"
                if dotted.split(".", maxsplit=1)[0] in {name.split(".", maxsplit=1)[0] for name in package.imports}
                else ""
            )
    return ""


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


def collect(package: FocusedPackage, version: str, files: Iterable[FileUses], upstream: Upstream | None) -> Checklist:
    """upstream: the release in use; None when it could not be read (then there are no entries)."""
    tiers, guarded = dict[str, str](), set[tuple[str, str, str]]()
    uses_of: dict[str, list[Use]] = defaultdict(list)
    symbols: dict[str, Symbol] = {}
    for file in files:
        # An operation names nothing that the use of its value does not
        uses = [use for use in file.uses if use.package in package.imports and use.action is not Action.OPERATE]
        for use in uses:
            texts = filter(None, (spelled(condition, package) for condition in use.conditions))
            guarded |= {(use.place.path, use.function, text) for text in texts}
            for symbol in _symbols(use, upstream):
                symbols[symbol.dotted] = symbol
                uses_of[symbol.dotted].append(use)
        if uses:
            runs = any(use.action in _RUNS and use.evaluated for use in uses)
            is_aside = file.path.split("/", maxsplit=1)[0] in SECONDARY
            tiers[file.path] = "secondary" if is_aside else "primary" if runs else "tertiary"
    return Checklist(
        package,
        version,
        tiers,
        {
            dotted: _entry(symbol, uses_of[dotted], upstream)
            for dotted, symbol in sorted(symbols.items())
            if upstream is not None
        },
        tuple(sorted(guarded)),
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


def _entry(symbol: Symbol, uses: Sequence[Use], upstream: Upstream) -> str:
    first = min(uses, key=lambda use: (use.action in (Action.IMPORT, Action.STRING), use.place))
    # With the function, where it is the product's own: tests come and go. How many more is left out: every new call
    # would make the list untrue.
    sites = sorted(
        {
            f"{path} ({use.function})" if use.function and path.split("/", maxsplit=1)[0] not in SECONDARY else path
            for use in uses
            for path in (use.place.path,)
        }
    )
    shown = ", ".join(map(code, sites[:MOST_SITES])) + (", ..." if len(sites) > MOST_SITES else "")
    signature = ""
    if symbol.kind is SymbolKind.FUNCTION and symbol.binding in ("property", "cached-property"):
        signature = f"@property {symbol.name}"
    elif symbol.kind in (SymbolKind.CLASS, SymbolKind.FUNCTION):
        found = upstream.signature(symbol)
        word = "class" if symbol.kind is SymbolKind.CLASS else "async def" if symbol.is_async else "def"
        signature = "" if isinstance(found, Open) else f"{word} {found.text(symbol.name)}"
    facts = {
        "Source": code(symbol.file),
        "Called in": shown,
        "As written": code(first.symbol_text[:LONGEST_SNIPPET]),
        "Signature": code(signature),
        "Deprecated": escaped(symbol.deprecated),
    }
    lines = [f"### {escaped(symbol.dotted)}", ""]
    lines += [f"- {name}: {text}" for name, text in facts.items() if text or name == "Source"]
    lines += [f"- [ ] {check}" for check in _checks(symbol, uses)]
    return "\n".join(lines) + "\n"


def _checks(symbol: Symbol, uses: Sequence[Use]) -> list[str]:
    """Say what must still hold for these uses, as sentences a person can check."""
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
    return lines or ["still exists and means the same"]


_BEGIN: Final = re.compile(r"^<!-- areal-audit:begin (?P<key>[\w .:-]+) -->$")
_END: Final = "<!-- areal-audit:end -->"
MOST_SITES: Final = 12
TIERS: Final = {
    "primary": "Primary: our code that runs it",
    "secondary": "Secondary: tests, benchmarks, examples, scripts",
    "tertiary": "Tertiary: named in types, strings or checks only",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A generated part and what people wrote below it. key "" is the text before the first part."""

    key: str
    body: str
    notes: str = ""


def parts_of(checklist: Checklist) -> list[Part]:
    """Return the generated parts in their order."""
    lines = ["## Affected Files", "", "Without those of generated units, which `areal-new list --json` names.", ""]
    for tier, title in TIERS.items():
        paths = sorted(path for path, of_file in checklist.files.items() if of_file == tier)
        if paths:
            lines += [f"### {title}", "", *(f"- {code(path)}" for path in paths), ""]
    if not checklist.files:
        lines += ["No file uses it.", ""]
    places = [(code(path), code(function) or "module", escaped(text)) for path, function, text in checklist.guarded]
    guards = ["## Version-Guarded Code", "", *(table(("file", "in", "condition"), places) if places else ["None."])]
    return [
        Part(
            "head",
            f"# {escaped(checklist.package.distribution)}\n\n"
            "Generated by `areal-audit --write` from the code; CI checks it with `areal-audit --check`.\n"
            "Write notes between the marked parts: they are kept.\n",
        ),
        Part("files", "\n".join(lines[:-1]) + "\n"),
        Part("catalog", "## API Usage Catalog\n"),
        *(Part(f"entry {symbol}", body) for symbol, body in checklist.entries.items()),
        Part("guarded", "\n".join(guards) + "\n"),
    ]


def parse(text: str, path: str) -> tuple[str, list[Part]]:
    """Frontmatter and parts of a file. Raises UsageError with the line for markers that do not match."""
    head = text.splitlines(keepends=True)
    if not head or head[0].strip() != "---":
        raise _damaged(path, 1, "the file does not begin with frontmatter (---)")
    end = next((number for number, line in enumerate(head[1:], 1) if line.strip() == "---"), None)
    if end is None:
        raise _damaged(path, 1, "the frontmatter has no end (---)")
    front, lines, first = "".join(head[: end + 1]), head[end + 1 :], end + 2
    parts, notes, body, key = [], list[str](), list[str](), None
    above = Part("", "")
    for number, line in enumerate(lines, first):
        match = _BEGIN.match(line.rstrip())
        if line.strip() == _END or match:
            if (match is None) != (key is not None):
                what = "ends a part that did not begin" if match is None else f"begins a part inside {key!r}"
                raise _damaged(path, number, f"this marker {what}")
            if match:
                parts.append(Part(above.key, above.body, "".join(notes)))
                key, body = match["key"], []
            else:
                above, notes, key = Part(key or "", "".join(body)), [], None
        elif key is not None:
            body.append(line)
        else:
            notes.append(line)
    if key is not None:
        raise _damaged(path, first + len(lines), f"the part {key!r} has no end marker")
    parts.append(Part(above.key, above.body, "".join(notes)))
    keys = [part.key for part in parts]
    twice = next((name for name in keys if keys.count(name) > 1), None)
    if twice is not None:
        raise _damaged(path, 1, f"the part {twice!r} comes twice")
    return front, parts


def render(checklist: Checklist, old: str | None, path: str) -> str:
    """Return the whole file; `old` is what is there now, whose notes are kept. Raises UsageError when it is damaged."""
    existing = parse(old, path)[1] if old is not None else []
    notes = {part.key: part.notes for part in existing}
    fresh = parts_of(checklist)
    wanted = {part.key for part in fresh}
    lost = [part for part in existing if part.key and part.key not in wanted and part.notes.strip()]
    package = checklist.package
    rows = [
        "---",
        f"package: {package.distribution}",
        f"version: {checklist.version or 'unknown'}",
        "github: " + (f"https://github.com/{package.repository}" if package.repository else ""),
        f'branch_template: "{package.tag}"',
        "upstream_paths:" if checklist.upstream_paths else "upstream_paths: []",
        *(f"  - {path}" for path in checklist.upstream_paths),
        "---",
    ]
    text = ["\n".join(rows) + "\n", notes.get("", "\n")]
    for part in fresh:
        default = "\n"
        text.append(f"<!-- areal-audit:begin {part.key} -->\n{part.body}{_END}\n{notes.get(part.key, default)}")
    for part in lost:
        title = part.key.removeprefix("entry ")
        heading = f"### Notes on {title}, which is not used any more\n"
        text.append(part.notes if part.notes.lstrip().startswith(heading.strip()) else f"{heading}{part.notes}")
    return "".join(text)


def _damaged(path: str, line: int, why: str) -> UsageError:
    return UsageError(
        f"the checklist is damaged: {why}",
        where=f"{path}:{line}",
        fix="restore the marker line, or delete the file and run `areal-audit --write`",
    )


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that is not true any more."""

    path: str
    key: str
    """"files", "guarded", "entry vllm.LLM", "frontmatter", or "file" for the whole."""
    what: str
    """"missing", "stale", "changed" or "damaged"."""
    message: str


def drift(checklist: Checklist, text: str | None, path: str, *, signatures: bool = True) -> list[Drift]:
    """Everything `text` says that is not so; empty when it is what would be written. signatures: whether the release
    was there to compare with; without it files and guards are compared only."""
    if text is None:
        return [Drift(path, "file", "missing", "this package has no checklist")]
    try:
        front, existing = parse(text, path)
    except UsageError as error:
        return [Drift(error.where, "file", "damaged", error.message)]
    bodies = {part.key: part.body for part in existing if part.key}
    fresh = {part.key: part.body for part in parts_of(checklist)}
    found = []
    for key, body in fresh.items():
        if not signatures and (key.startswith("entry ") or key == "files"):
            continue
        if key not in bodies:
            entry = key.removeprefix("entry ")
            what = f"no part {key!r}" if entry == key else f"{entry} is used and has no entry"
            found.append(Drift(path, key, "missing", what))
        elif bodies[key] != body:
            found.append(Drift(path, key, "changed", _difference(bodies[key], body)))
    if not signatures:
        # Without the release tiers are not compared, only the names of the files.
        names = set(checklist.files)
        listed = set(re.findall(r"^- `([^`]+)`", bodies.get("files", ""), re.MULTILINE))
        what = "uses it and is not listed"
        found += [Drift(path, "files", "missing", f"{name} {what}") for name in sorted(names - listed)]
        what = "is listed and does not use it"
        return found + [Drift(path, "files", "stale", f"{name} {what}") for name in sorted(listed - names)]
    found += [Drift(path, key, "stale", "nothing uses it any more") for key in bodies if key not in fresh]
    if not found and (expected := render(checklist, text, path)) != text:
        found.append(Drift(path, "frontmatter", "changed", _difference(front, expected)))
    return found


def _difference(old: str, new: str) -> str:
    """Return the first lines that differ, in words."""
    before, after = old.splitlines(), new.splitlines()
    for left, right in zip(before, after, strict=False):
        if left != right:
            return f"says {left.strip()!r}, is {right.strip()!r}"
    return f"has {len(before)} lines, should have {len(after)}"
