"""`upgrade-summary.md`: what a person needs to review an upgrade. Written with its changes, never without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.upgrade.report.text import code, escaped, markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.upgrade.operations.upgrading import Upgrade

MOST_CHANGES = 60
"""Version changes of a lock that are listed."""


_TITLE: Final = "# Upgrade to "


def is_summary(content: bytes) -> bool:
    """Whether a file was written by `summary`, and may be replaced."""
    return content.startswith(_TITLE.encode())


def summary(upgrade: Upgrade) -> str:
    """Return the whole document. Deterministic: no times, no machine."""
    title = ", ".join(str(request) for request in upgrade.options.requests)
    moves = [
        f"| {escaped(move.distribution)} | {escaped(move.old)} | {escaped(move.new)} | {escaped(move.why)} |"
        for move in upgrade.moves
    ]
    fixes = [
        f"- {code(each.path)}: {each.kind} {code(each.symbol)} → {code(new.text if (new := each.replacement) else '')}"
        for each in upgrade.fixes.done
    ]
    fixes += [
        f"- left: {code(f'{each.path}:{each.line}')} {each.kind}: {escaped(why)}" for each, why in upgrade.fixes.left
    ]
    parts = [
        f"{_TITLE}{escaped(title)}\n",
        *(f"**{escaped(each)}.**\n" for each in upgrade.downgrades),
        _section(
            "Version changes", ["| package | from | to | why |", "| --- | --- | --- | --- |", *moves] if moves else []
        ),
        _section("Declarations", _edits(upgrade)),
        _section("Resolution", _locks(upgrade)),
        _section("Fixes", fixes),
    ]
    if upgrade.audits:
        parts.append(f"## Audit\n\n{markdown(upgrade.audits).rstrip()}\n")
    parts.append(_section("To be looked at", _open(upgrade)))
    return "\n".join(part for part in parts if part)


def _section(title: str, lines: Iterable[str]) -> str:
    body = list(lines)
    return f"## {title}\n\n" + "\n".join(body) + "\n" if body else ""


def _edits(upgrade: Upgrade) -> Iterator[str]:
    edits = upgrade.bump.edits if upgrade.bump else ()
    if edits:
        yield "| place | before | after | why |"
        yield "| --- | --- | --- | --- |"
    for edit in edits:
        yield f"| {code(f'{edit.path}:{edit.line}')} | {code(edit.before)} | {code(edit.after)} | {escaped(edit.why)} |"
    kept = [each for each in upgrade.bump.kept if not each.attention] if upgrade.bump else []
    if kept:
        yield ""
        yield "Left as they are:"
        yield ""
        yield from (f"- {code(f'{each.path}:{each.line}')} {code(each.text)}: {escaped(each.why)}" for each in kept)


def _locks(upgrade: Upgrade) -> Iterator[str]:
    for result in upgrade.locks:
        yield f"### {escaped(result.label.partition(' ')[2])}: {result.made}"
        yield ""
        yield from (f"- {escaped(note)}" for note in result.notes)
        if result.conflict is not None:
            yield from (f"- {escaped(str(cause))}" for cause in result.conflict.causes)
        if result.proposal is not None:
            did = "was relaxed" if result.proposal.applied else "could be relaxed"
            place = result.proposal.declaration
            yield f"- {code(place.where)} {did} to {code(result.proposal.specifier)}: {escaped(result.proposal.why)}"
        changes = result.changes[:MOST_CHANGES]
        yield from (
            f"- {escaped(each.name)} {escaped(each.old or 'new')} → {escaped(each.new or 'gone')}" for each in changes
        )
        if len(result.changes) > len(changes):
            yield f"- and {len(result.changes) - len(changes)} more"
        yield ""


def _open(upgrade: Upgrade) -> Iterator[str]:
    yield from (f"- {escaped(warning)}" for warning in upgrade.warnings)
    for audit in upgrade.audits:
        for unseen in audit.open:
            what = f"{unseen.count} uses not judged, {escaped(unseen.why)}, e.g. {code(unseen.example)}"
            yield f"- {escaped(audit.distribution)}: {what}"
        yield from (f"- {escaped(audit.distribution)}: not read: {escaped(each)}" for each in audit.unreadable)
