"""Arguments, members and calls: places inside expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.upgrade.findings import FindingKind
from tooling.upgrade.fixes.source import LeftAloneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableSource


def fix_expression(source: EditableSource, finding: AuditFinding) -> None:
    """Collect the splice for one finding. Raises LeftAloneError with the reason."""
    match finding.kind:
        case FindingKind.PARAM_RENAMED:
            _rename_keyword(source, finding)
        case FindingKind.PARAM_KWONLY | FindingKind.PARAM_REORDERED:
            _name_argument(source, finding)
        case FindingKind.RENAMED | FindingKind.MOVED | FindingKind.REMOVED:
            # `engine.old` -> `engine.new`, for a member whose container stayed
            container, _, name = finding.symbol.rpartition(".")
            assert finding.replacement is not None, "only findings with a replacement come here"
            new_container, _, new = finding.replacement.text.rpartition(".")
            if (
                new_container not in ("", container)
                and new_container.rpartition(".")[2] != container.rpartition(".")[2]
            ):
                raise LeftAloneError(f"it needs an import of {new_container}, which is written by hand")
            if not new.isidentifier():
                raise LeftAloneError(f"{finding.replacement.text!r} is not a name")
            source.put(*source.span(_attribute(source, finding, name).attr), new)
        case FindingKind.KIND_CHANGED:
            # `x.size` -> `x.size()`, or back
            import libcst

            assert finding.replacement is not None, "only findings with a replacement come here"
            node = _attribute(source, finding, finding.symbol.rpartition(".")[2])
            called = next((call for call in source.nodes(libcst.Call) if call.func is node), None)
            if finding.replacement.text.endswith("()") and called is None:
                end = source.span(node)[1]
                source.put(end, end, "()")
            elif not finding.replacement.text.endswith("()") and called is not None and not called.args:
                source.put(source.span(node)[1], source.span(called)[1], "")
            else:
                raise LeftAloneError("it is used in another way here")
        case _:
            raise LeftAloneError(f"no safe edit is known for {finding.kind}")


def _rename_keyword(source: EditableSource, finding: AuditFinding) -> None:
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    name = finding.replacement.text.rpartition(".")[2]
    if not name.isidentifier():
        raise LeftAloneError(f"{finding.replacement.text!r} is not a name")
    new = name
    for call in source.nodes(libcst.Call):
        for argument in call.args:
            word = argument.keyword
            if word is not None and word.value == finding.parameter and source.start(word) == _place(finding):
                if any(other.keyword is not None and other.keyword.value == new for other in call.args):
                    raise LeftAloneError(f"{new} is passed already")
                source.put(*source.span(word), new)
                return
    raise LeftAloneError(f"the keyword {finding.parameter} is not written at this place")


def _name_argument(source: EditableSource, finding: AuditFinding) -> None:
    """`f(1, 2)` -> `f(1, b=2)`."""
    import libcst

    if not finding.parameter.isidentifier():
        raise LeftAloneError("the name of the parameter is not known")
    for argument in source.nodes(libcst.Arg):
        if source.start(argument.value) == _place(finding) and argument.keyword is None and not argument.star:
            at = source.span(argument.value)[0]
            source.put(at, at, f"{finding.parameter}=")
            return
    raise LeftAloneError("no positional argument is written at this place")


def _attribute(source: EditableSource, finding: AuditFinding, name: str) -> Any:
    import libcst

    found = [
        node
        for node in source.nodes(libcst.Attribute)
        if node.attr.value == name and _place(finding) in (source.start(node), source.start(node.attr))
    ]
    if len(found) != 1:
        raise LeftAloneError(f".{name} is not written once at this place")
    return found[0]


def _place(finding: AuditFinding) -> tuple[int, int]:
    return finding.line, finding.column


def covered_by_imports(
    source: EditableSource, findings: Sequence[AuditFinding], mended: Sequence[Any]
) -> set[AuditFinding]:
    """Select findings on names that an import binds which is right now: nothing is left to do for them."""
    import libcst

    from tooling.upgrade.fixes.imports import bound_name

    imported = {bound_name(alias) for alias in mended}
    starts = {source.start(node): node.value for node in source.nodes(libcst.Name) if node.value in imported}
    return {finding for finding in findings if starts.get(_place(finding)) is not None}
