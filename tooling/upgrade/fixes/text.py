"""Names in text: flags in command lines and scripts, dotted paths in strings and configuration files, their keys.

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

import re
from typing import TYPE_CHECKING, Any

from tooling.upgrade.findings import FindingKind
from tooling.upgrade.fixes.source import LeftAloneError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableText

_NAMES = (FindingKind.MOVED, FindingKind.RENAMED, FindingKind.REMOVED, FindingKind.DEPRECATED)


def fix_text(source: EditableText, finding: AuditFinding) -> None:
    """Collect the splice for one finding in the text of its lines. Raises LeftAloneError with the reason."""
    text = finding.instead
    if finding.kind is FindingKind.ENV_VAR:
        _replace(source, finding, rf"(?<!\w){re.escape(finding.symbol)}(?!\w)", text)
    elif finding.kind is FindingKind.HTTP_ROUTE:
        old = finding.symbol.rpartition(" ")[2]
        # A slash at the end belongs to the same route, which is named without it
        _replace(source, finding, rf"{re.escape(old)}(?!/?[\w{{-])", text)
    elif finding.kind is FindingKind.CLI_FLAG or text.startswith("--"):
        old = finding.symbol.rpartition(" ")[2]
        # A parser takes "-" and "_" alike if it says so; what is written must be found as it is written
        _replace(source, finding, rf"(?<![\w-]){re.escape(old)}(?![\w-])", text)
    elif finding.kind in (FindingKind.PARAM_RENAMED, FindingKind.DEPRECATED) and finding.parameter:
        _replace(source, finding, rf"(?<![\w.]){re.escape(finding.parameter)}(?=[\"']?\s*:)", text.rpartition(".")[2])
    elif finding.kind is FindingKind.PARAM_REMOVED:
        _drop_line(source, finding)
    elif finding.kind in _NAMES:
        old = "[.:]".join(map(re.escape, finding.symbol.split(".")))
        member = finding.symbol.rpartition(".")[2]
        start, _ = source.line_span(finding.line, finding.line)
        key = re.compile(rf"\s*[\"']({re.escape(member)})[\"']\s*\]".encode())
        at_key = key.match(source.data, start + finding.column)
        if at_key is not None:  # `Mode["OLD"]`: the finding stands at the key itself
            source.put(*at_key.span(1), text.rpartition(".")[2])
            return
        found = _find(source, finding, rf"(?<![\w.]){old}(?!\w)")
        written = found[2]
        colon = written.count(".", written.index(":")) + 1 if ":" in written else 0
        parts = text.split(".")
        new = ":".join([".".join(parts[:-colon]), ".".join(parts[-colon:])]) if colon else text
        source.put(found[0], found[1], new)
    else:
        raise LeftAloneError(f"no safe edit is known for {finding.kind} in text")


def _replace(source: EditableText, finding: AuditFinding, pattern: str, text: str) -> None:
    start, end, _ = _find(source, finding, pattern)
    source.put(start, end, text)


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
    import yaml

    start, end = source.line_span(finding.line, finding.line)
    key = rf"[\"']?{re.escape(finding.parameter)}[\"']?"
    alone = re.match(rf"[ ]*{key}\s*:[ ]*[^\s|>#&*][^#]*$", source.data[start:end].decode().rstrip("\r\n"))
    if alone is None or not source.path.endswith((".yaml", ".yml")):
        raise LeftAloneError("the entry is not on one line of its own")
    try:
        documents = list(yaml.compose_all(source.data, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise LeftAloneError(f"the file cannot be read as YAML: {type(error).__name__}") from error
    for mapping in _mappings(documents):
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


def _mappings(documents: list[Any]) -> Iterator[Any]:
    """Yield the mappings of composed YAML, each once although an alias leads to it again."""
    import yaml

    waiting, seen = list(documents), set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [part for pair in node.value for part in pair]
        else:
            waiting += node.value
