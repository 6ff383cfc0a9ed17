"""Arguments of calls: renamed, named, passed by position, left out, written out; and calls that are awaited.

f(old=1)        ->  f(new=1)              f(1, 2)         ->  f(1, b=2)
f(1, b=2)       ->  f(1, 2)               f(1, gone=2)    ->  f(1)
f(1)            ->  f(1, size=3)          engine.stop()   ->  await engine.stop()
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tooling.upgrade.fixes.source import LeftAloneError

if TYPE_CHECKING:
    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableSource


def rename_keyword(source: EditableSource, finding: AuditFinding) -> None:
    """Also of an entry of a dictionary that is unpacked on the spot."""
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    name = finding.replacement.text.rpartition(".")[2]
    if not name.isidentifier():
        raise LeftAloneError(f"{finding.replacement.text!r} is not a name")
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
    import libcst

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
    import libcst

    _, argument = _keyword(source, finding)
    if not isinstance(argument, libcst.Arg) or argument.keyword is None:
        raise LeftAloneError("it is an entry of a dictionary")
    start, end = source.span(argument.keyword)[0], source.whole_span(argument.value)[0]
    if b"#" in source.data[start:end]:
        raise LeftAloneError("a comment beside it would be lost")
    source.put(start, end, "")


def leave_out(source: EditableSource, finding: AuditFinding) -> None:
    """Take an argument out, if its value does nothing by being made."""
    import libcst
    import libcst.matchers as m

    call, part = _keyword(source, finding)
    if m.findall(part.value, m.Call() | m.Await() | m.Yield() | m.NamedExpr()):
        raise LeftAloneError("making its value may do something: whether that may go is for people")
    siblings = list(call.args)
    if not isinstance(part, libcst.Arg):
        siblings = list(source.parents[part].elements)
    source.cut(siblings, part)


def write_default(source: EditableSource, finding: AuditFinding) -> None:
    """Pass what a parameter was by default."""
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    call = called(source, finding)
    text = finding.replacement.text
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


def await_call(source: EditableSource, finding: AuditFinding) -> None:
    """Add `await`, or take it away."""
    import libcst

    assert finding.replacement is not None, "only findings with a replacement come here"
    call = called(source, finding)
    outer = source.parents.get(call)
    if not finding.replacement.text.startswith("await "):
        if not isinstance(outer, libcst.Await):
            raise LeftAloneError("it is not awaited at this place")
        source.put(source.span(outer)[0], source.whole_span(call)[0], "")
        return
    for inner, each in pairwise([call, *source.around(call)]):
        if isinstance(each, libcst.Lambda | libcst.GeneratorExp | libcst.ClassDef):
            break
        # Defaults and decorators are run by what is around the function
        if isinstance(each, libcst.FunctionDef) and inner is each.body:
            if each.asynchronous is None:
                break
            start, end = source.span(call)
            plain = isinstance(outer, libcst.Expr | libcst.Return | libcst.Assign | libcst.AnnAssign | libcst.Arg)
            source.put(start, start, "await " if plain else "(await ")
            if not plain:
                source.append(end, ")")
            return
    raise LeftAloneError("what is around it is not asynchronous: its callers would have to change with it")


def called(source: EditableSource, finding: AuditFinding) -> Any:
    """Return the call that a finding is about: of several that begin at one place the one of that name."""
    import libcst

    name = finding.symbol.rpartition(".")[2]
    found = [
        call
        for call in source.nodes(libcst.Call)
        if place(finding) in (source.start(call), source.start(getattr(call.func, "attr", call)))
    ]
    of_name = [call for call in found if getattr(getattr(call.func, "attr", call.func), "value", "") == name]
    if len(of_name or found) != 1:
        raise LeftAloneError(f"{name} is not called once at this place")
    return (of_name or found)[0]


def place(finding: AuditFinding) -> tuple[int, int]:
    """Line and column of a finding, as `EditableSource.start` gives those of a node."""
    return finding.line, finding.column


def _keyword(source: EditableSource, finding: AuditFinding) -> tuple[Any, Any]:
    """Return the call, and its argument or the entry of a dictionary that it unpacks, that pass the parameter."""
    import libcst

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
    import libcst
    from libcst.metadata import GlobalScope

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
    import libcst

    key = getattr(entry, "key", None)
    if not isinstance(key, libcst.SimpleString) or key.evaluated_value != finding.parameter:
        return False
    return place(finding) in (source.start(key), source.start(entry.value))
