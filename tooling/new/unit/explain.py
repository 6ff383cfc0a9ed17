"""What each file of a unit is for, which contract it meets, and what is left to do in it.

    explain(workspace, "reward", "digits").files[0].todo      # ("say what a right answer is",)
    explain(workspace, "reward", "digits").files[0].markers   # (Marker(12, "TODO: handle fractions"),)

For a generated unit the answer comes from its receipt and its files; for one that is not there yet, from the template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError, UsageError
from tooling.kit.change.plan import Plan
from tooling.kit.names import parse_name
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.rendering import complete_answers, template_context
from tooling.new.unit.context import find_unit
from tooling.new.unit.generate import plan_unit
from tooling.new.unit.records import UnitRequest
from tooling.new.unit.status import file_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tooling.kit.kind import DocumentEntry, FileEntry, Manifest, RegistryEntry
    from tooling.kit.receipts import Receipt
    from tooling.new.unit.context import Workspace

_MARKER = re.compile(r"\b(?:TODO|FIXME)\b.*")
_EXAMPLE = "example"
_MARKUP_ENDS = ("-->", "*/", '"""', "'''")


@dataclass(frozen=True, slots=True)
class Marker:
    """A line that says there is something left to do."""

    line: int
    text: str
    """From the word on: "TODO: handle fractions"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedFile:
    """One file of the unit."""

    path: str
    purpose: str
    contract: str
    """Where the contract is written, "areal/api/reward.py:12:RewardFunction"; without the line when it is not found."""
    state: str
    """"pristine", "edited", "missing", or "planned" for a unit that was not generated."""
    test: bool
    todo: tuple[str, ...]
    markers: tuple[Marker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One unit."""

    kind: str
    name: str
    generated: bool
    summary: str
    answers: Mapping[str, Any]
    files: tuple[ExplainedFile, ...]
    entries: tuple[RegistryEntry, ...] = ()
    documents: tuple[DocumentEntry, ...] = ()
    next_steps: tuple[str, ...] = ()
    commit: str = ""

    def as_data(self) -> dict[str, Any]:
        """As JSON values."""
        from dataclasses import asdict

        return asdict(self)


@dataclass(slots=True)
class _Sources:
    """Content of files as they are, or as a plan makes them."""

    plan: Plan
    _contracts: dict[str, str] = field(default_factory=dict)

    def markers(self, path: str) -> tuple[Marker, ...]:
        """Lines with TODO or FIXME."""
        return tuple(find_markers(self._text(path)))

    def located(self, contract: str) -> str:
        """A contract with the line its name is defined in."""
        if contract not in self._contracts:
            self._contracts[contract] = self._locate(contract)
        return self._contracts[contract]

    def _locate(self, contract: str) -> str:
        path, separator, name = contract.partition(":")
        line = _definition_line(self._text(path), name) if separator else None
        return f"{path}:{line}:{name}" if line else contract

    def _text(self, path: str) -> str:
        try:
            content = self.plan.read(path) or b""
        except ToolError:
            return ""
        return content.decode("utf-8", errors="replace")


def explain(
    workspace: Workspace,
    kind: str,
    name: str | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Explanation:
    """Explain a generated unit, or what would be generated (under the name "example" when none is given).

    Raises UsageError for an unknown kind, for a unit that was not generated and whose answers are incomplete, and for
    answers about a unit that was generated: its receipt has them.
    """
    if name is not None:
        try:
            receipt = find_unit(workspace, kind, name)
        except UsageError:
            workspace.kind(kind)  # an unknown kind is the better complaint
        else:
            if answers or options:
                raise UsageError(
                    f"the {kind} {receipt.name!r} was generated already, its answers are in its receipt",
                    where=receipt.path,
                    fix=f"leave the answers out; `areal-new update {kind} {receipt.name}` takes new ones",
                )
            return _explain_receipt(workspace, receipt)
    manifest = load_manifest(workspace.kind(kind).folder)
    if name is None and not answers and not options and manifest.example:
        return _explain_manifest(workspace, kind, manifest)
    request = UnitRequest(kind=kind, name=name or _EXAMPLE, answers=answers or {}, options=options or {})
    return _explain_plan(workspace, request)


def find_markers(text: str) -> Iterable[Marker]:
    """Lines that hold TODO or FIXME as a word, numbered from 1."""
    for number, line in enumerate(text.split("\n"), start=1):
        found = _MARKER.search(line)
        if found:
            yield Marker(number, _without_markup(found.group()))


def _explain_receipt(workspace: Workspace, receipt: Receipt) -> Explanation:
    plan = Plan(workspace.root)
    sources = _Sources(plan)
    try:
        summary = workspace.kind(receipt.kind).summary
    except UsageError:
        summary = ""  # the kind was removed; its units are still explained
    files = tuple(
        _file(sources, entry.entry(path), file_state(plan, path, entry.sha256))
        for path, entry in sorted(receipt.files.items())
    )
    return Explanation(
        kind=receipt.kind,
        name=receipt.name,
        generated=True,
        summary=summary,
        answers=receipt.answers,
        files=files,
        entries=receipt.entries,
        documents=receipt.documents,
    )


def _explain_plan(workspace: Workspace, request: UnitRequest) -> Explanation:
    kind, name = request.kind, request.name
    unit = plan_unit(workspace, request)
    receipt = unit.receipt
    if receipt is None:  # plan_unit always gives one
        raise UsageError(f"the {kind} {name!r} cannot be planned", where=kind)
    sources = _Sources(unit.plan)
    files = tuple(_file(sources, entry.entry(path), "planned") for path, entry in sorted(receipt.files.items()))
    return Explanation(
        kind=kind,
        name=receipt.name,
        generated=False,
        summary=workspace.kind(kind).summary,
        answers=receipt.answers,
        files=files,
        entries=receipt.entries,
        documents=receipt.documents,
        next_steps=unit.next_steps,
        commit=unit.commit,
    )


def _explain_manifest(workspace: Workspace, kind: str, manifest: Manifest) -> Explanation:
    """What the template says of any unit; nothing is rendered."""
    names = parse_name(_EXAMPLE, reserved=manifest.reserved)
    settings = workspace.settings
    answers = complete_answers(workspace.kind(kind).folder, manifest.example, names, settings, kind=kind)
    resolved = resolve(manifest, {**template_context(names, settings, kind), **answers})
    sources = _Sources(Plan(workspace.root))
    return Explanation(
        kind=kind,
        name=names.snake,
        generated=False,
        summary=manifest.summary,
        answers={},
        files=tuple(_file(sources, entry, "planned") for entry in resolved.files),
        entries=resolved.registry,
        documents=resolved.documents,
        next_steps=resolved.next,
        commit=resolved.commit,
    )


def _file(sources: _Sources, entry: FileEntry, state: str) -> ExplainedFile:
    return ExplainedFile(
        path=entry.path,
        purpose=entry.purpose,
        contract=sources.located(entry.contract),
        state=state,
        test=entry.test,
        todo=entry.todo,
        markers=sources.markers(entry.path),
    )


def _definition_line(text: str, name: str) -> int | None:
    """Line of a class, function or assignment in a Python file; "Class.method" looks for the method."""
    import ast

    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    line = None
    for part in name.split("."):
        found = next((node for node in body if part in _defined(node)), None)
        if found is None:
            return None
        line = found.lineno
        body = getattr(found, "body", [])
    return line


def _defined(node: Any) -> list[str]:
    import ast

    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _without_markup(text: str) -> str:
    text = text.strip()
    for end in _MARKUP_ENDS:
        text = text.removesuffix(end).rstrip()
    return text
