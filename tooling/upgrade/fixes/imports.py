"""Imports of names and modules that moved or were renamed.

    from vllm.utils import Counter, cdiv      ->  from vllm.utils import cdiv
                                                  from vllm.utils.counter import Counter

A renamed name is renamed wherever this file uses the import, unless others may import it from here: then the new name
is imported under the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst

from tooling.kit.edits.literals import dotted_text
from tooling.upgrade.fixes.source import LeftAloneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableSource


@dataclass(frozen=True)
class _Change:
    """One name of an import statement, and what it becomes."""

    alias: Any
    module: str
    name: str

    @property
    def local(self) -> str:
        """Name it is bound to now."""
        return bound_name(self.alias)


def bound_name(alias: Any) -> str:
    """Return what `import x.y as z` or `from m import z` binds: "z"; "x" for `import x.y`."""
    if alias.asname is not None:
        return str(alias.asname.name.value)
    return str(alias.evaluated_name).partition(".")[0]


def fix_imports(
    source: EditableSource, findings: Sequence[AuditFinding], exported: Callable[[str], bool]
) -> tuple[dict[AuditFinding, str], list[Any]]:
    """Collect splices for all findings that lie on a name of an import.

    exported: whether other files import a name from this one. Returns for each finding on an import "" or why it was
    left alone, and the import names (nodes) that are right now.
    """
    outcome: dict[AuditFinding, str] = {}
    mended: list[Any] = []
    for statement in source.nodes(libcst.ImportFrom, libcst.Import):
        if isinstance(statement.names, libcst.ImportStar):
            continue
        here = [(alias, finding) for alias in statement.names for finding in findings if _on(source, alias, finding)]
        if not here:
            continue
        kept = list(source.splices)
        try:
            if isinstance(statement, libcst.Import):
                for alias, finding in here:
                    if alias.asname is None and not _uses_follow(source, finding, findings):
                        raise LeftAloneError("`import a.b` without `as`: every use would have to change with it")
                    source.put(*source.span(alias.name), finding.instead)
            else:
                changes = [_change(statement, *pair) for pair in here]
                texts = {change: _alias_text(source, change, exported) for change in changes}
                old_module = dotted_text(statement.module)
                staying = [change for change in changes if change.module == old_module]
                leaving = [change for change in changes if change.module != old_module]
                if len(leaving) == len(statement.names) and len({change.module for change in leaving}) == 1:
                    # All go to one place: the statement keeps its form.
                    source.put(*source.span(statement.module), leaving[0].module)
                    staying, leaving = list(changes), []
                for change in staying:
                    source.put(*source.span(change.alias), texts[change])
                if leaving:
                    _split(source, statement, leaving, texts)
            outcome |= {finding: "" for _, finding in here}
            # Uses of a whole path are mended where they stand
            mended += [
                alias for alias, _ in here if isinstance(statement, libcst.ImportFrom) or alias.asname is not None
            ]
        except LeftAloneError as error:
            source.splices = kept
            outcome |= {finding: str(error) for _, finding in here}
    return outcome, mended


def _uses_follow(source: EditableSource, finding: AuditFinding, findings: Sequence[AuditFinding]) -> bool:
    """Whether all that is written with the path of a module that moved inside its package is mended too."""
    old, new = finding.symbol, finding.instead
    if old.partition(".")[0] != new.partition(".")[0] or "." not in new:
        return False
    following = {
        (each.line, each.column)
        for each in findings
        if each.symbol.startswith(f"{old}.") and each.replacement and each.replacement.text.startswith(f"{new}.")
    }
    statements = {id(alias.name) for each in source.nodes(libcst.Import) for alias in each.names}
    paths = [each for each in source.nodes(libcst.Attribute) if dotted_text(each) == old and id(each) not in statements]
    return all(source.start(each) in following for each in paths)


def _on(source: EditableSource, alias: Any, finding: AuditFinding) -> bool:
    if source.start(alias) == (finding.line, finding.column):
        return True
    # Some tools give the statement's start: then the line and the name must agree.
    return source.start(alias)[0] == finding.line and alias.evaluated_name == finding.symbol.rpartition(".")[2]


def _change(statement: Any, alias: Any, finding: AuditFinding) -> _Change:
    if statement.relative:
        raise LeftAloneError("it is imported from a module of this repository")
    module, _, name = finding.instead.rpartition(".")
    if not module or not name.isidentifier():
        raise LeftAloneError(f"{finding.instead!r} is not a name in a module")
    return _Change(alias, module, name)


def _split(source: EditableSource, statement: Any, leaving: Sequence[_Change], texts: dict[_Change, str]) -> None:
    """Write new statements for the names that leave, below the rest of the old one."""
    lines = [
        f"from {module} import {', '.join(texts[change] for change in leaving if change.module == module)}"
        for module in dict.fromkeys(change.module for change in leaving)
    ]
    if len(leaving) == len(statement.names):
        source.put(*source.span(statement), lines.pop(0))
    else:
        for change in leaving:
            source.cut(statement.names, change.alias)
    for line in lines:
        import_below(source, leaving[0].alias, line)


def _alias_text(source: EditableSource, change: _Change, exported: Callable[[str], bool]) -> str:
    """Return the name as the new statement has it; renames its uses where that is safe."""
    if change.alias.asname is not None:
        return change.name if change.local == change.name else f"{change.name} as {change.local}"
    if change.name == change.local:
        return change.name
    uses = references(source, change.alias)
    if uses is None or exported(change.local) or any(node.value == change.name for node in source.nodes(libcst.Name)):
        return f"{change.name} as {change.local}"
    for node in uses:
        source.put(*source.span(node), change.name)
    return change.name


def import_below(source: EditableSource, alias: Any, text: str) -> None:
    """Write an import in a line below the statement of another one."""
    statement = source.parents[alias]
    line = source.parents[statement]
    start, end = source.ranges[statement].start, source.span(statement)[1]
    indentation = source.indentation(start.line)
    if len(line.body) != 1 or start.column != len(indentation):
        raise LeftAloneError("the import shares its line with something else")
    below = source.data.find(b"\n", end)
    at = len(source.data) if below < 0 else below - (source.data[below - 1 : below] == b"\r")
    insertion = f"{source.newline}{indentation}{text}"
    if not any(each.start == each.end == at and insertion.encode() in each.text for each in source.splices):
        source.append(at, insertion)


def references(source: EditableSource, alias: Any) -> list[Any] | None:
    """Return the places that use what an import binds; None when another binding of that name may be meant."""
    name, found = bound_name(alias), []
    scope = source.scopes.get(alias) or source.scopes.get(
        next(node for node in source.nodes(libcst.ImportFrom, libcst.Import) if alias in node.names)
    )
    if scope is None:
        return None
    assignments = list(scope[name])
    if len(assignments) != 1:
        return None
    for access in assignments[0].references:
        if not isinstance(access.node, libcst.Name) or len(access.referents) != 1:
            return None
        found.append(access.node)
    return found
