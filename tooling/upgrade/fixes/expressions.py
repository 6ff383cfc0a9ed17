"""Names inside expressions: members, properties that became methods, paths that lead to another module, overrides."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tooling.kit.edits.literals import dotted_text
from tooling.upgrade.findings import FindingKind
from tooling.upgrade.fixes.arguments import (
    await_call,
    leave_out,
    name_argument,
    pass_by_position,
    place,
    rename_keyword,
    write_default,
)
from tooling.upgrade.fixes.imports import bound_name, import_below
from tooling.upgrade.fixes.source import LeftAloneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableSource


def fix_expression(source: EditableSource, finding: AuditFinding) -> None:
    """Collect the splices for one finding. Raises LeftAloneError with the reason."""
    assert finding.replacement is not None, "only findings with a replacement come here"
    match finding.kind:
        case FindingKind.OVERRIDE_DRIFT if finding.replacement.text.startswith("def "):
            _extend_override(source, finding)
        case FindingKind.DEPRECATED if finding.parameter:
            rename_keyword(source, finding)
        case FindingKind.REMOVED if finding.replacement.text.startswith("import "):
            _import_module(source, finding)
        case FindingKind.RENAMED | FindingKind.MOVED | FindingKind.REMOVED | FindingKind.DEPRECATED:
            _rename(source, finding)
        case FindingKind.KIND_CHANGED:
            _call_or_read(source, finding)
        case FindingKind.PARAM_RENAMED:
            rename_keyword(source, finding)
        case FindingKind.PARAM_KWONLY | FindingKind.PARAM_REORDERED:
            name_argument(source, finding)
        case FindingKind.PARAM_POSONLY:
            pass_by_position(source, finding)
        case FindingKind.PARAM_REMOVED:
            leave_out(source, finding)
        case FindingKind.DEFAULT_CHANGED:
            write_default(source, finding)
        case FindingKind.ASYNC_CHANGED:
            await_call(source, finding)
        case _:
            raise LeftAloneError(f"no safe edit is known for {finding.kind}")


def _rename(source: EditableSource, finding: AuditFinding) -> None:
    """`engine.old` -> `engine.new`, for a member whose container stayed; `up.a.f` -> `up.b.f` with an import of up.b,
    for a path from a module."""
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    container, _, name = finding.symbol.rpartition(".")
    new_container, _, new = finding.replacement.text.rpartition(".")
    if not new.isidentifier():
        raise LeftAloneError(f"{finding.replacement.text!r} is not a name")
    if finding.kind is FindingKind.REMOVED and new == name:
        plain = any(_is_name(each, name) and source.start(each) == place(finding) for each in source.nodes(libcst.Name))
        for star in source.nodes(libcst.ImportStar) if plain else ():
            statement = source.parents[star]
            if not statement.relative and dotted_text(statement.module) == container:
                # `from up import *` gives it no longer; it is still there by name
                import_below(source, star, f"from {new_container} import {new}")
                return
    node = _attribute(source, finding, name)
    stayed = new_container in ("", container) or (
        new_container.rpartition(".")[2] == container.rpartition(".")[2] and new_container[:1].isupper()
    )
    root = _root(node)
    bound = next((alias for alias in _module_imports(source) if bound_name(alias) == root), None)
    spelled = dotted_text(node)
    if bound is not None and bound.asname is not None:
        spelled = f"{dotted_text(bound.name)}{spelled.removeprefix(root)}"
    is_path = bound is not None and spelled == finding.symbol
    if not stayed and not is_path and new_container.rpartition(".")[2] != container.rpartition(".")[2]:
        raise LeftAloneError(f"it needs an import of {new_container}, which is written by hand")
    if stayed or not is_path:
        source.put(*source.span(node.attr), new)
        return
    package = new_container.partition(".")[0]
    if root != package and any(_is_name(each, package) for each in source.ranges):
        raise LeftAloneError(f"{package} means something else in this file")
    source.put(*source.span(node), finding.replacement.text)
    imported = [dotted_text(alias.name) for alias in _module_imports(source) if alias.asname is None]
    if new_container not in imported and all(each.text != new_container.encode() for each in source.splices):
        import_below(source, bound, f"import {new_container}")


def _import_module(source: EditableSource, finding: AuditFinding) -> None:
    """`import up` -> `import up`, `import up.io`: a submodule that must be imported by name."""
    assert finding.replacement is not None, "only findings with a replacement come here"
    root = finding.symbol.partition(".")[0]
    for alias in _module_imports(source):
        if bound_name(alias) == root and alias.asname is None:
            import_below(source, alias, finding.replacement.text)
            return
    raise LeftAloneError(f"{root} is not imported by that name")


def _module_imports(source: EditableSource) -> list[Any]:
    import libcst

    return [alias for statement in source.nodes(libcst.Import) for alias in statement.names]


def _root(node: Any) -> str:
    while hasattr(node, "attr"):
        node = node.value
    return str(node.value) if isinstance(getattr(node, "value", None), str) else ""


def _is_name(node: Any, name: str) -> bool:
    import libcst

    return isinstance(node, libcst.Name) and node.value == name


def _call_or_read(source: EditableSource, finding: AuditFinding) -> None:
    """`x.size` -> `x.size()`, or back."""
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    name = finding.symbol.rpartition(".")[2]
    names = [each for each in source.nodes(libcst.Name) if each.value == name and source.start(each) == place(finding)]
    node = names[0] if names else _attribute(source, finding, name)
    called = next((call for call in source.nodes(libcst.Call) if call.func is node), None)
    if finding.replacement.text.endswith("()") and called is None:
        end = source.span(node)[1]
        source.put(end, end, "()")
    elif not finding.replacement.text.endswith("()") and called is not None and not called.args:
        source.put(source.span(node)[1], source.span(called)[1], "")
    else:
        raise LeftAloneError("it is used in another way here")


def _extend_override(source: EditableSource, finding: AuditFinding) -> None:
    """`def hook(self, x):` -> `def hook(self, x, mask=None):`."""
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    head = ast.parse(f"{finding.replacement.text}: ...").body[0]
    assert isinstance(head, ast.FunctionDef), "a replacement of an override is the head of a function"
    wanted = head.args.args[len(head.args.args) - len(head.args.defaults) :]
    usual = dict(zip((each.arg for each in wanted), map(ast.unparse, head.args.defaults), strict=True))
    for function in source.nodes(libcst.FunctionDef):
        first, last = source.ranges[function].start.line, source.ranges[function.body].start.line
        if function.name.value != head.name or not first <= finding.line <= last:
            continue
        parameters = function.params
        here = {each.name.value for each in (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)}
        text = "".join(f", {name}={value}" for name, value in usual.items() if name not in here)
        if not parameters.params or not text:
            raise LeftAloneError("it takes them already, or has no parameter to put them behind")
        if taken := sorted(_names_used(source, function) & (usual.keys() - here)):
            raise LeftAloneError(f"its body uses {taken[0]} for something else")
        last = parameters.params[-1]
        end = source.whole_span(last.default or (last.annotation.annotation if last.annotation else last.name))[1]
        source.put(end, end, text)
        return
    raise LeftAloneError(f"{head.name} is not defined at this place")


def _names_used(source: EditableSource, function: Any) -> set[str]:
    """Return the names that the body of a function reads or binds; those of members and keywords are not among them."""
    import libcst
    import libcst.matchers as m

    return {
        node.value
        for node in m.findall(function.body, m.Name())
        if isinstance(node, libcst.Name)
        and not (isinstance(outer := source.parents[node], libcst.Attribute) and outer.attr is node)
        and not (isinstance(outer, libcst.Arg) and outer.keyword is node)
    }


def _attribute(source: EditableSource, finding: AuditFinding, name: str) -> Any:
    import libcst

    found = [
        node
        for node in source.nodes(libcst.Attribute)
        if node.attr.value == name and place(finding) in (source.start(node), source.start(node.attr))
    ]
    if len(found) != 1:
        raise LeftAloneError(f".{name} is not written once at this place")
    return found[0]


def covered_by_imports(
    source: EditableSource, findings: Sequence[AuditFinding], mended: Sequence[Any]
) -> set[AuditFinding]:
    """Select findings on names that an import binds which is right now: nothing is left to do for them."""
    import libcst

    imported = {bound_name(alias) for alias in mended}
    starts = {source.start(node): node.value for node in source.nodes(libcst.Name) if node.value in imported}
    names = (FindingKind.MOVED, FindingKind.RENAMED, FindingKind.REMOVED, FindingKind.DEPRECATED)
    return {finding for finding in findings if finding.kind in names and starts.get(place(finding)) is not None}
