"""All fixable findings of a file at once, also names in text: flags in command lines and scripts, dotted paths in
strings and configuration files, their keys.

vllm serve m --old-flag 1                ->  vllm serve m --new-flag 1
UP_OLD_CACHE=/tmp                        ->  UP_CACHE=/tmp
f"{base}/old/route"                      ->  f"{base}/new/route"
Mode["OLD"]                              ->  Mode["NEW"]
mock.patch("up.core.Engine.flush")       ->  mock.patch("up.core.Engine.clear")
serve = "up.old:main"                    ->  serve = "up.new:main"
_target_: up.LLM                             _target_: up.LLM
size: 3                                  ->  length: 3
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst
import yaml

from tooling.python.source import string_of
from tooling.upgrade.declarations.commands import yaml_collections
from tooling.upgrade.findings import FindingKind
from tooling.upgrade.fixes.expressions import covered_by_imports, fix_expression
from tooling.upgrade.fixes.imports import bound_name, fix_imports
from tooling.upgrade.fixes.source import EditableSource, EditableText, LeftAloneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tooling.upgrade.findings import AuditFinding


_NAMES = (FindingKind.MOVED, FindingKind.RENAMED, FindingKind.REMOVED, FindingKind.DEPRECATED)


def fix_text(source: EditableText, finding: AuditFinding) -> None:
    """Collect the splice for one finding in the text of its lines. Raises LeftAloneError with the reason."""
    text, old = finding.instead, re.escape(finding.symbol.rpartition(" ")[2])
    patterns = {
        FindingKind.ENV_VAR: rf"(?<!\w){old}(?!\w)",
        # A slash at the end belongs to the same route, which is named without it
        FindingKind.HTTP_ROUTE: rf"{old}(?!/?[\w{{-])",
        # A parser takes "-" and "_" alike if it says so; what is written must be found as it is written
        FindingKind.CLI_FLAG: rf"(?<![\w-]){old}(?![\w-])",
    }
    pattern = patterns.get(FindingKind.CLI_FLAG if text.startswith("--") else finding.kind)
    if finding.kind in (FindingKind.PARAM_RENAMED, FindingKind.DEPRECATED) and finding.parameter and pattern is None:
        pattern, text = rf"(?<![\w.]){re.escape(finding.parameter)}(?=[\"']?\s*:)", text.rpartition(".")[2]
    if pattern is not None:
        start, end, _ = _find(source, finding, pattern)
        source.put(start, end, text)
    elif finding.kind is FindingKind.PARAM_REMOVED:
        _drop_line(source, finding)
    elif finding.kind in _NAMES:
        dotted = "[.:]".join(map(re.escape, finding.symbol.split(".")))
        member = finding.symbol.rpartition(".")[2]
        start, _ = source.line_span(finding.line, finding.line)
        key = re.compile(rf"\s*[\"']({re.escape(member)})[\"']\s*\]".encode())
        at_key = key.match(source.data, start + finding.column)
        if at_key is not None:  # `Mode["OLD"]`: the finding stands at the key itself
            source.put(*at_key.span(1), text.rpartition(".")[2])
            return
        found = _find(source, finding, rf"(?<![\w.]){dotted}(?!\w)")
        written = found[2]
        colon = written.count(".", written.index(":")) + 1 if ":" in written else 0
        parts = text.split(".")
        new = ":".join([".".join(parts[:-colon]), ".".join(parts[-colon:])]) if colon else text
        source.put(found[0], found[1], new)
    else:
        raise LeftAloneError(f"no safe edit is known for {finding.kind} in text")


def _find(source: EditableText, finding: AuditFinding, pattern: str) -> tuple[int, int, str]:
    """Return the one place in the text of a finding's lines that a pattern matches: byte offsets and what is there."""
    start, end = source.line_span(finding.line, max(finding.line, finding.end_line))
    lines = source.data[start:end]
    spans = source.text_spans(finding.line, finding.column, finding.end_line)
    found = [
        hit
        for hit in re.finditer(pattern.encode(), lines)
        if any(first <= start + hit.start() and start + hit.end() <= last for first, last in spans)
    ]
    first = [each for each in found if each.start() >= finding.column]
    if len(first) != 1 and len(found) != 1:
        raise LeftAloneError(f"it is written {len(found)} times in its lines" if found else "it is not written there")
    hit = (first if len(first) == 1 else found)[0]
    return start + hit.start(), start + hit.end(), hit[0].decode()


def _drop_line(source: EditableText, finding: AuditFinding) -> None:
    """Take `key: value` out of a YAML file, if the value ends on that line and is not the only one of its mapping."""
    start, end = source.line_span(finding.line, finding.line)
    key = rf"[\"']?{re.escape(finding.parameter)}[\"']?"
    alone = re.match(rf"[ ]*{key}\s*:[ ]*[^\s|>#&*][^#]*$", source.data[start:end].decode().rstrip("\r\n"))
    if alone is None or not source.path.endswith((".yaml", ".yml")):
        raise LeftAloneError("the entry is not on one line of its own")
    try:
        found = [each for each in yaml_collections(source.data.decode()) if isinstance(each, yaml.MappingNode)]
    except (yaml.YAMLError, RecursionError) as error:
        raise LeftAloneError(f"the file cannot be read as YAML: {type(error).__name__}") from error
    for mapping in found:
        for name, value in mapping.value:
            if name.start_mark.line + 1 != finding.line or name.value != finding.parameter:
                continue
            if value.end_mark.line != name.start_mark.line:
                raise LeftAloneError("its value goes on in the lines below")
            if mapping.flow_style or len(mapping.value) == 1:
                raise LeftAloneError("it is the only entry of its mapping, or the mapping is written in braces")
            source.put(start, end, "")
            return
    raise LeftAloneError(f"{finding.parameter} is not a key at this place")


@dataclass(frozen=True)
class Fixed:
    """A file after its fixes."""

    data: bytes
    done: tuple[AuditFinding, ...]
    left: tuple[tuple[AuditFinding, str], ...]
    """Fixable findings that were not fixed, and why."""


def fix_file(
    path: str, data: bytes, findings: Sequence[AuditFinding], *, exported: Callable[[str], bool] = lambda _: False
) -> Fixed:
    """Fix what is `fixable` among the findings of one file. exported: whether other files import a name from it.

    Never raises for what the file contains: a file that cannot be edited comes back as it was.
    """
    wanted = [finding for finding in findings if finding.fixable and finding.replacement is not None]
    if not path.endswith((".py", ".pyi")):
        text = EditableText(path, data)
        reasons = {finding: _attempt(text, finding, fix_text) for finding in wanted}
        return _outcome(text.result(), wanted, reasons)
    try:
        source = EditableSource(path, data)
        public = _public_names(data)
    except LeftAloneError as error:
        return Fixed(data, (), tuple((finding, str(error)) for finding in wanted))

    def together(chosen: Sequence[AuditFinding]) -> Fixed:
        return _edited(source, chosen, lambda name: exported(name) or name in public)

    with suppress(LeftAloneError):
        return together(wanted)
    # One edit that breaks the file must not take the others with it
    kept: list[AuditFinding] = []
    broken: dict[AuditFinding, str] = {}
    fixed = Fixed(data, (), ())
    for finding in wanted:
        try:
            fixed = together([*kept, finding])
            kept.append(finding)
        except LeftAloneError as error:
            broken[finding] = str(error)
    return Fixed(fixed.data, fixed.done, (*fixed.left, *broken.items()))


def _public_names(data: bytes) -> set[str]:
    """Return what `__all__` lists; a list that cannot be read counts as none. Raises LeftAloneError."""
    try:
        statements = ast.parse(data).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise LeftAloneError(f"the file cannot be parsed: {type(error).__name__}") from error
    public: set[str] = set()
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is not None and any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets):
            public |= {text for part in ast.walk(value) if (text := string_of(part)) is not None}
    return public


def _edited(source: EditableSource, wanted: Sequence[AuditFinding], exported: Callable[[str], bool]) -> Fixed:
    """Make these edits, and none made before. Raises LeftAloneError when the file would not compile with them."""
    source.splices = []
    at_import = {finding: _where_imported(source, finding) for finding in wanted}
    told, mended = fix_imports(source, tuple(at_import.values()), exported)
    outcome = {finding: told[there] for finding, there in at_import.items() if there in told}
    rest = [finding for finding in wanted if finding not in outcome]
    outcome |= dict.fromkeys(covered_by_imports(source, rest, mended), "")
    for finding in rest:
        if finding in outcome:
            continue
        why = _attempt(source, finding, fix_expression)
        if why and not finding.parameter:
            why = _attempt(source, finding, fix_text) and why
        outcome[finding] = why
    _refuse_half_named_calls(source, outcome)
    return _outcome(source.result(), wanted, outcome)


def _outcome(data: bytes, wanted: Sequence[AuditFinding], reasons: Mapping[AuditFinding, str]) -> Fixed:
    done = tuple(finding for finding in wanted if not reasons[finding])
    return Fixed(data, done, tuple((finding, reasons[finding]) for finding in wanted if reasons[finding]))


def _where_imported(source: EditableSource, finding: AuditFinding) -> AuditFinding:
    """Find the import of a deprecated name that is used as it is: there it is mended."""
    if finding.kind is not FindingKind.DEPRECATED or finding.parameter:
        return finding
    here = [each for each in source.nodes(libcst.Name) if source.start(each) == (finding.line, finding.column)]
    for statement in source.nodes(libcst.ImportFrom) if here else ():
        for alias in () if isinstance(statement.names, libcst.ImportStar) else statement.names:
            if bound_name(alias) == here[0].value and alias.name.value == finding.symbol.rpartition(".")[2]:
                line, column = source.start(alias)
                return replace(finding, line=line, column=column)
    return finding


def _attempt(source: Any, finding: AuditFinding, edit: Callable[[Any, AuditFinding], None]) -> str:
    """Why a finding was left alone; "" if it was mended."""
    kept = list(source.splices)
    try:
        edit(source, finding)
    except LeftAloneError as error:
        source.splices = kept
        return str(error)
    return ""


def _refuse_half_named_calls(source: EditableSource, outcome: dict[AuditFinding, str]) -> None:
    """Refuse calls with a positional argument behind a named one: where one got its keyword, all behind it must
    have."""
    for call in source.nodes(libcst.Call):
        spans = [source.whole_span(argument.value)[0] for argument in call.args if argument.keyword is None]
        named = [any(s.start == s.end == at and s.text.endswith(b"=") for s in source.splices) for at in spans]
        if True in named and not all(named[named.index(True) :]):
            source.splices = [
                s for s in source.splices if not (s.start == s.end and s.start in spans and s.text.endswith(b"="))
            ]
            places = {place for each in call.args for place in (source.start(each.value), source.start(each))}
            for finding in outcome:
                naming = finding.kind in (FindingKind.PARAM_KWONLY, FindingKind.PARAM_REORDERED)
                if naming and (finding.line, finding.column) in places:
                    outcome[finding] = "a positional argument behind it cannot be named for sure"
