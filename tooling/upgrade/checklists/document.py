"""The Markdown of a checklist: generated parts between markers, people's words around them.

    <!-- areal-audit:begin entry vllm.LLM -->        a generated part; its key is the symbol
    ...
    <!-- areal-audit:end -->
    Watch the memory when ...                        kept, and moved along with the part above it

Whatever stands outside the markers is kept byte for byte. A part whose subject is gone is dropped when nothing was
written below it; else the notes stay under a heading that says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.upgrade.report.text import code, escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.checklists.contents import AffectedFile, Checklist, ChecklistEntry, GuardedPlace

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
    return [
        Part("head", _head(checklist)),
        Part("files", _files(checklist.files)),
        Part("catalog", "## API Usage Catalog\n"),
        *(Part(f"entry {entry.symbol}", _entry(entry)) for entry in checklist.entries),
        Part("guarded", _guarded(checklist.guarded)),
    ]


def parse(text: str, path: str) -> tuple[str, list[Part]]:
    """Frontmatter and parts of a file. Raises UsageError with the line for markers that do not match."""
    front, lines, first = _frontmatter(text, path)
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
    subject = checklist.subject
    rows = [
        "---",
        f"package: {subject.distribution}",
        f"version: {subject.version or 'unknown'}",
        f"github: {subject.github}",
        f'branch_template: "{subject.branch_template}"',
        "upstream_paths:" if checklist.upstream_paths else "upstream_paths: []",
        *(f"  - {path}" for path in checklist.upstream_paths),
        "---",
    ]
    text = [("\n".join(rows) + "\n"), notes.get("", "\n")]
    for part in fresh:
        default = "\n"
        text.append(f"<!-- areal-audit:begin {part.key} -->\n{part.body}{_END}\n{notes.get(part.key, default)}")
    for part in lost:
        title = part.key.removeprefix("entry ")
        heading = f"### Notes on {title}, which is not used any more\n"
        text.append(part.notes if part.notes.lstrip().startswith(heading.strip()) else f"{heading}{part.notes}")
    return "".join(text)


def _frontmatter(text: str, path: str) -> tuple[str, list[str], int]:
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].strip() != "---":
        raise _damaged(path, 1, "the file does not begin with frontmatter (---)")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        raise _damaged(path, 1, "the frontmatter has no end (---)")
    return "".join(lines[: end + 1]), lines[end + 1 :], end + 2


def _damaged(path: str, line: int, why: str) -> UsageError:
    return UsageError(
        f"the checklist is damaged: {why}",
        where=f"{path}:{line}",
        fix="restore the marker line, or delete the file and run `areal-audit --write`",
    )


def _head(checklist: Checklist) -> str:
    return (
        f"# {escaped(checklist.subject.distribution)}\n\n"
        "Generated by `areal-audit --write` from the code; CI checks it with `areal-audit --check`.\n"
        "Write notes between the marked parts: they are kept.\n"
    )


def _files(files: Sequence[AffectedFile]) -> str:
    lines = ["## Affected Files", ""]
    for tier, title in TIERS.items():
        rows = [file for file in files if file.tier == tier]
        if rows:
            lines += [f"### {title}", "", *(f"- {code(file.path)}" for file in rows), ""]
    if not files:
        lines += ["No file uses it.", ""]
    return "\n".join(lines[:-1]) + "\n"


def _entry(entry: ChecklistEntry) -> str:
    # How many more is left out: every new call would make the list untrue.
    sites = ", ".join(map(code, entry.sites[:MOST_SITES])) + (", ..." if len(entry.sites) > MOST_SITES else "")
    lines = [f"### {escaped(entry.symbol)}", "", f"- Source: {code(entry.source)}", f"- Called in: {sites}"]
    if entry.snippet:
        lines.append(f"- As written: {code(entry.snippet)}")
    if entry.signature:
        lines.append(f"- Signature: {code(entry.signature)}")
    if entry.deprecated:
        lines.append(f"- Deprecated: {escaped(entry.deprecated)}")
    lines += [f"- [ ] {check}" for check in entry.verify]
    return "\n".join(lines) + "\n"


def _guarded(places: Sequence[GuardedPlace]) -> str:
    lines = ["## Version-Guarded Code", ""]
    if not places:
        lines.append("None.")
    else:
        lines += ["| file | in | condition |", "| --- | --- | --- |"]
        lines += [
            f"| {code(place.path)} | {code(place.function) or 'module'} | {escaped(place.condition)} |"
            for place in places
        ]
    return "\n".join(lines) + "\n"
