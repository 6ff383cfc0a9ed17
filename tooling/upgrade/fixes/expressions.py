"""Names and arguments inside expressions: members, properties that became methods, paths that lead to another module,
overrides; arguments renamed, named, passed by position, left out, written out.

f(old=1)        ->  f(new=1)              f(1, 2)         ->  f(1, b=2)
f(1, b=2)       ->  f(1, 2)               f(1, gone=2)    ->  f(1)
f(1)            ->  f(1, size=3)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import libcst
import libcst.matchers as m
from libcst.metadata import GlobalScope

from tooling.kit.edits.literals import dotted_text
from tooling.upgrade.findings import FindingKind
from tooling.upgrade.fixes.asynchrony import change_protocol
from tooling.upgrade.fixes.imports import bound_name, import_below
from tooling.upgrade.fixes.source import LeftAloneError, called, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableSource


def rename_keyword(source: EditableSource, finding: AuditFinding) -> None:
    """Also of an entry of a dictionary that is unpacked on the spot."""
    name = finding.instead.rpartition(".")[2]
    if not name.isidentifier():
        raise LeftAloneError(f"{finding.instead!r} is not a name")
    call, part = _keyword(source, finding)
    if any(other.keyword is not None and other.keyword.value == name for other in call.args):
        raise LeftAloneError(f"{name} is passed already")
    if isinstance(part, libcst.Arg) and part.keyword is not None:
        source.put(*source.span(part.keyword), name)
    else:
        quote = part.key.quote
        source.put(*source.span(part.key), f"{part.key.prefix}{quote}{name}{quote}")


def name_argument(source: EditableSource, finding: AuditFinding) -> None:
    """Write the keyword of a positional argument."""
    if not finding.parameter.isidentifier():
        raise LeftAloneError("the name of the parameter is not known")
    for argument in source.nodes(libcst.Arg):
        # A tuple begins with its parenthesis for `ast`, other expressions behind theirs
        begins = {source.start(argument.value), source.start(argument)}
        if place(finding) in begins and argument.keyword is None and not argument.star:
            at = source.whole_span(argument.value)[0]
            source.put(at, at, f"{finding.parameter}=")
            return
    raise LeftAloneError("no positional argument is written at this place")


def pass_by_position(source: EditableSource, finding: AuditFinding) -> None:
    """Take the keyword away where only positional ones, or such as lose theirs, stand before it."""
    _, argument = _keyword(source, finding)
    if not isinstance(argument, libcst.Arg) or argument.keyword is None:
        raise LeftAloneError("it is an entry of a dictionary")
    start, end = source.span(argument.keyword)[0], source.whole_span(argument.value)[0]
    if b"#" in source.data[start:end]:
        raise LeftAloneError("a comment beside it would be lost")
    source.put(start, end, "")


def leave_out(source: EditableSource, finding: AuditFinding) -> None:
    """Take an argument out, if its value does nothing by being made."""
    call, part = _keyword(source, finding)
    if m.findall(part.value, m.Call() | m.Await() | m.Yield() | m.NamedExpr()):
        raise LeftAloneError("making its value may do something: whether that may go is for people")
    siblings = list(call.args)
    if not isinstance(part, libcst.Arg):
        siblings = list(source.parents[part].elements)
    source.cut(siblings, part)


def write_default(source: EditableSource, finding: AuditFinding) -> None:
    """Pass what a parameter was by default."""
    call = called(source, finding)
    text = finding.instead
    if any(argument.keyword is not None and f"{argument.keyword.value}=" in text for argument in call.args):
        raise LeftAloneError("it is passed already")
    if not call.args:
        end = source.span(call)[1] - 1
        source.put(end, end, text)
        return
    last = call.args[-1]
    if isinstance(last.value, libcst.GeneratorExp) and not last.value.lpar:
        raise LeftAloneError("a generator without brackets is the only argument")
    source.append(source.whole_span(last.value)[1], f", {text}")


def _keyword(source: EditableSource, finding: AuditFinding) -> tuple[Any, Any]:
    """Return the call, and its argument or the entry of a dictionary that it unpacks, that pass the parameter."""
    for call in source.nodes(libcst.Call):
        for argument in call.args:
            word = argument.keyword
            if word is not None and word.value == finding.parameter and source.start(word) == place(finding):
                unpacked = getattr(call.func, "value", "") == "dict" and finding.symbol != "dict"
                holder = source.parents.get(source.parents.get(call)) if unpacked else None
                if unpacked and not (isinstance(holder, libcst.Call) and source.parents[call].star == "**"):
                    raise LeftAloneError("the mapping may be used elsewhere too")
                return call, argument
            handed = argument.star == "**" or (argument.keyword is not None and argument.keyword.value == "kwargs")
            if handed and isinstance(argument.value, libcst.Dict):
                for entry in argument.value.elements:
                    if _is_entry(source, entry, finding):
                        return call, entry
    for mapping in source.nodes(libcst.Dict):
        for entry in mapping.elements:
            if _is_entry(source, entry, finding):
                return _only_unpacked(source, mapping), entry
    raise LeftAloneError(f"the keyword {finding.parameter} is not written in a call at this place")


def _only_unpacked(source: EditableSource, mapping: Any) -> Any:
    """Return the one call that `**name` hands a local dictionary to, if that and further entries is all it is for.

    options = {"model": "m", "old": 1}
    options["seed"] = 2
    LLM(**options)"""
    assigned = source.parents[mapping]
    target = assigned.targets[0].target if isinstance(assigned, libcst.Assign) and len(assigned.targets) == 1 else None
    scope = source.scopes.get(target)
    calls = []
    if isinstance(scope, GlobalScope):  # other files may import it
        scope = None
    if isinstance(target, libcst.Name) and scope is not None and len(list(scope[target.value])) == 1:
        (assignment,) = scope[target.value]
        for access in assignment.references:
            outer = source.parents[access.node]
            if isinstance(outer, libcst.Arg) and outer.star == "**":
                calls.append(source.parents[outer])
            elif isinstance(outer, libcst.Subscript) and isinstance(source.parents[outer], libcst.AssignTarget):
                continue
            else:
                calls.append(None)
    if len(calls) != 1 or calls[0] is None:
        raise LeftAloneError("the mapping may be used elsewhere too")
    return calls[0]


def _is_entry(source: EditableSource, entry: Any, finding: AuditFinding) -> bool:
    key = getattr(entry, "key", None)
    if not isinstance(key, libcst.SimpleString) or key.evaluated_value != finding.parameter:
        return False
    return place(finding) in (source.start(key), source.start(entry.value))


def _rename(source: EditableSource, finding: AuditFinding) -> None:
    """`engine.old` -> `engine.new`, for a member whose container stayed; `up.a.f` -> `up.b.f` with an import of up.b,
    for a path from a module."""
    container, _, name = finding.symbol.rpartition(".")
    new_container, _, new = finding.instead.rpartition(".")
    if not new.isidentifier():
        raise LeftAloneError(f"{finding.instead!r} is not a name")
    if finding.kind is FindingKind.REMOVED and new == name:
        plain = any(each.value == name and source.start(each) == place(finding) for each in source.nodes(libcst.Name))
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
    spelled = dotted_text(node)
    root = spelled.partition(".")[0]
    bound = next((alias for alias in _module_imports(source) if bound_name(alias) == root), None)
    if bound is not None and bound.asname is not None:
        spelled = f"{dotted_text(bound.name)}{spelled.removeprefix(root)}"
    is_path = bound is not None and spelled == finding.symbol
    if not stayed and not is_path and new_container.rpartition(".")[2] != container.rpartition(".")[2]:
        raise LeftAloneError(f"it needs an import of {new_container}, which is written by hand")
    if stayed or not is_path:
        source.put(*source.span(node.attr), new)
        return
    package = new_container.partition(".")[0]
    if root != package and any(each.value == package for each in source.nodes(libcst.Name)):
        raise LeftAloneError(f"{package} means something else in this file")
    source.put(*source.span(node), finding.instead)
    imported = [dotted_text(alias.name) for alias in _module_imports(source) if alias.asname is None]
    if new_container not in imported and all(each.text != new_container.encode() for each in source.splices):
        import_below(source, bound, f"import {new_container}")


def _import_module(source: EditableSource, finding: AuditFinding) -> None:
    """`import up` -> `import up`, `import up.io`: a submodule that must be imported by name."""
    root = finding.symbol.partition(".")[0]
    for alias in _module_imports(source):
        if bound_name(alias) == root and alias.asname is None:
            import_below(source, alias, finding.instead)
            return
    raise LeftAloneError(f"{root} is not imported by that name")


def _module_imports(source: EditableSource) -> list[Any]:
    return [alias for statement in source.nodes(libcst.Import) for alias in statement.names]


def _call_or_read(source: EditableSource, finding: AuditFinding) -> None:
    """`x.size` -> `x.size()`, or back."""
    name = finding.symbol.rpartition(".")[2]
    names = [each for each in source.nodes(libcst.Name) if each.value == name and source.start(each) == place(finding)]
    node = names[0] if names else _attribute(source, finding, name)
    called = next((call for call in source.nodes(libcst.Call) if call.func is node), None)
    if finding.instead.endswith("()") and called is None:
        end = source.span(node)[1]
        source.put(end, end, "()")
    elif not finding.instead.endswith("()") and called is not None and not called.args:
        source.put(source.span(node)[1], source.span(called)[1], "")
    else:
        raise LeftAloneError("it is used in another way here")


def _extend_override(source: EditableSource, finding: AuditFinding) -> None:
    """`def hook(self, x):` -> `def hook(self, x, mask=None):`."""
    head = ast.parse(f"{finding.instead}: ...").body[0]
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
    return {
        node.value
        for node in m.findall(function.body, m.Name())
        if isinstance(node, libcst.Name)
        and not (isinstance(outer := source.parents[node], libcst.Attribute) and outer.attr is node)
        and not (isinstance(outer, libcst.Arg) and outer.keyword is node)
    }


def _attribute(source: EditableSource, finding: AuditFinding, name: str) -> Any:
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
    imported = {bound_name(alias) for alias in mended}
    starts = {source.start(node): node.value for node in source.nodes(libcst.Name) if node.value in imported}
    names = (FindingKind.MOVED, FindingKind.RENAMED, FindingKind.REMOVED, FindingKind.DEPRECATED)
    return {finding for finding in findings if finding.kind in names and starts.get(place(finding)) is not None}


_EDITS = {
    FindingKind.RENAMED: _rename,
    FindingKind.MOVED: _rename,
    FindingKind.REMOVED: _rename,
    FindingKind.DEPRECATED: _rename,
    FindingKind.KIND_CHANGED: _call_or_read,
    FindingKind.PARAM_RENAMED: rename_keyword,
    FindingKind.PARAM_KWONLY: name_argument,
    FindingKind.PARAM_REORDERED: name_argument,
    FindingKind.PARAM_POSONLY: pass_by_position,
    FindingKind.PARAM_REMOVED: leave_out,
    FindingKind.DEFAULT_CHANGED: write_default,
    FindingKind.ASYNC_CHANGED: change_protocol,
}


def fix_expression(source: EditableSource, finding: AuditFinding) -> None:
    """Collect the splices for one finding. Raises LeftAloneError with the reason."""
    edit = _EDITS.get(finding.kind)
    if finding.kind is FindingKind.OVERRIDE_DRIFT and finding.instead.startswith("def "):
        edit = _extend_override
    elif finding.kind is FindingKind.DEPRECATED and finding.parameter:
        edit = rename_keyword
    elif finding.kind is FindingKind.REMOVED and finding.instead.startswith("import "):
        edit = _import_module
    if edit is None:
        raise LeftAloneError(f"no safe edit is known for {finding.kind}")
    edit(source, finding)
