"""Says for each file of a unit what it is for, which contract it meets and what is left to do in it.

For a unit that was not generated yet, says what would be generated; the questions of the kind are options here too.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.report import Report
from tooling.kit.change.plan import Plan
from tooling.kit.names import parse_name
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.rendering import complete_answers, template_context
from tooling.new.change import UnitRequest, find_unit
from tooling.new.command_line import read_answers
from tooling.new.commands.generate import plan_unit
from tooling.new.commands.status import file_state
from tooling.new.proof import standing
from tooling.python.source import defined_names, parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tooling.cli.parser import Parser
    from tooling.kit.kind import DocumentEntry, RegistryEntry, TemplateFile
    from tooling.new.change import Invocation, Project
    from tooling.new.proof import Standing

_MARKER = re.compile(r"\b(?:TODO|FIXME)\b.*")
_EXAMPLE = "example"
_MARKUP_ENDS = ("-->", "*/", '"""', "'''")


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", help="kind of the unit, e.g. reward")
    parser.add_argument("name", metavar="NAME", nargs="?", help="its name; without one, any unit of the kind")
    parser.add_argument("--answers", metavar="FILE.json", help="answers for a unit that was not generated ('-': stdin)")


def run(invocation: Invocation) -> Report:
    """Explain the unit, or any unit of the kind."""
    arguments = invocation.arguments
    answers, options = read_answers(arguments)
    explanation = explain(invocation.project, arguments.kind, arguments.name, answers=answers, options=options)
    return Report(
        command="explain",
        changing=False,
        text="\n".join(_lines(explanation)),
        next_steps=tuple(explanation["next_steps"]),
        data={"explanation": explanation},
    )


def explain(
    project: Project,
    kind: str,
    name: str | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Explain a generated unit, or what would be generated (under the name "example" when none is given), as JSON
    values.

    For a generated unit the answer comes from its receipt and its files; for one that is not there yet, from the
    template. Raises UsageError for an unknown kind, for a unit that was not generated and whose answers are incomplete,
    and for answers about a unit that was generated: its receipt has them.
    """
    if name is not None:
        try:
            receipt = find_unit(project, kind, name)
        except UsageError:
            project.kind(kind)  # an unknown kind is the better complaint
        else:
            if answers or options:
                raise UsageError(
                    f"the {kind} {receipt.name!r} was generated already, its answers are in its receipt",
                    where=receipt.path,
                    fix=f"leave the answers out; `areal-new update {kind} {receipt.name}` takes new ones",
                )
            plan = Plan(project.root)
            try:
                summary = project.kind(kind).summary
            except UsageError:
                summary = ""  # the kind was removed; its units are still explained
            return _explanation(
                plan,
                (kind, receipt.name, summary),
                receipt.answers,
                [
                    (entry.entry(path), file_state(plan, path, entry.sha256))
                    for path, entry in sorted(receipt.files.items())
                ],
                receipt.entries,
                receipt.documents,
                known=standing(plan, receipt),
            )
    source = project.kind(kind)
    manifest = load_manifest(source.folder)
    if name is None and not answers and not options and manifest.example:  # what holds of any unit; nothing is rendered
        names = parse_name(_EXAMPLE, reserved=manifest.reserved)
        settings = project.settings
        example = complete_answers(source.folder, manifest.example, names, settings, kind=kind)
        resolved = resolve(manifest, {**template_context(names, settings, kind), **example})
        return _explanation(
            Plan(project.root),
            (kind, names.snake, manifest.summary),
            {},
            [(entry, "planned") for entry in resolved.files],
            resolved.registry,
            resolved.documents,
            next_steps=resolved.next,
            commit=resolved.commit,
        )
    request = UnitRequest(kind=kind, name=name or _EXAMPLE, answers=answers or {}, options=options or {})
    change = plan_unit(project, request)
    if change.receipt is None:  # options that ask for findings only
        raise UsageError(f"the {kind} {request.name!r} cannot be planned", where=kind)
    return _explanation(
        change.plan,
        (kind, change.receipt.name, source.summary),
        change.receipt.answers,
        [(entry.entry(path), "planned") for path, entry in sorted(change.receipt.files.items())],
        change.receipt.entries,
        change.receipt.documents,
        next_steps=change.next_steps,
        commit=change.commit,
    )


def _explanation(
    plan: Plan,
    about: tuple[str, str, str],
    answers: Mapping[str, Any],
    files: Iterable[tuple[TemplateFile, str]],
    entries: Iterable[RegistryEntry],
    documents: Iterable[DocumentEntry],
    *,
    known: Standing | None = None,
    next_steps: Iterable[str] = (),
    commit: str = "",
) -> dict[str, Any]:
    """Return the JSON values of an explanation. about: kind, name and summary; files: with their states; known: of a
    generated unit."""

    def text(path: str) -> str:
        try:
            return (plan.read(path) or b"").decode("utf-8", errors="replace")
        except ToolError:
            return ""

    kind, name, summary = about
    return {
        "kind": kind,
        "name": name,
        "generated": known is not None,
        "proof": None if known is None else known.as_data(),
        "summary": summary,
        "answers": dict(answers),
        "files": [
            {
                "path": entry.path,
                "purpose": entry.purpose,
                "contract": _located(entry.contract, text(entry.contract.partition(":")[0])) if entry.contract else "",
                "state": state,
                "test": entry.test,
                "todo": list(entry.todo),
                "markers": [{"line": line, "text": marker} for line, marker in find_markers(text(entry.path))],
            }
            for entry, state in files
        ],
        "entries": [asdict(entry) for entry in entries],
        "documents": [asdict(line) for line in documents],
        "next_steps": list(next_steps),
        "commit": commit,
    }


def find_markers(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold TODO or FIXME as a word, numbered from 1, from that word on."""
    for number, line in enumerate(text.split("\n"), start=1):
        found = _MARKER.search(line)
        if found:
            marker = found.group().strip()
            for end in _MARKUP_ENDS:
                marker = marker.removesuffix(end).rstrip()
            yield number, marker


def _located(contract: str, text: str) -> str:
    """Return a contract with the line that defines its name: "areal/api/reward.py:12:RewardFunction"; as it is when
    the name is not found. "Class.method" looks for the method."""
    path, separator, name = contract.partition(":")
    tree = parsed(text)
    line, body = 0, [] if tree is None else tree.body
    for part in name.split("."):
        node = next((node for defined, node in defined_names(body) if defined == part), None)
        if node is None:
            return contract
        line, body = node.lineno, getattr(node, "body", [])
    return f"{path}:{line}:{name}" if separator else contract


def _lines(explanation: Mapping[str, Any]) -> Iterator[str]:
    standing = "generated" if explanation["generated"] else "not generated; this is what would be"
    yield f"{explanation['kind']} {explanation['name']} ({standing})"
    if explanation["summary"]:
        yield f"  {explanation['summary']}"
    if explanation["proof"]:
        yield f"  {explanation['proof']['summary']}"
    for file in explanation["files"]:
        yield f"\n{file['path']} ({file['state']})"
        yield f"  {file['purpose']}"
        if file["contract"]:
            yield f"  contract: {file['contract']}"
        yield from (f"  to do: {todo}" for todo in file["todo"])
        yield from (f"  line {marker['line']}: {marker['text']}" for marker in file["markers"])
    for entry in explanation["entries"]:
        yield f"\n{entry['file']}\n  registered in {entry['table'] or entry['shape']} as {entry['key']!r}"
    for document in explanation["documents"]:
        yield f"\n{document['file']}\n  a line in the section {document['section']!r}"
