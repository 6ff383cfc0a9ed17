"""Names in text: flags in command lines and scripts, dotted paths in strings and configuration files, their keys.

vllm serve m --old-flag 1                ->  vllm serve m --new-flag 1
mock.patch("up.core.Engine.flush")       ->  mock.patch("up.core.Engine.clear")
serve = "up.old:main"                    ->  serve = "up.new:main"
_target_: up.LLM                             _target_: up.LLM
size: 3                                  ->  length: 3
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.findings import FindingKind
from tooling.upgrade.fixes.source import LeftAloneError

if TYPE_CHECKING:
    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableText

_NAMES = (FindingKind.MOVED, FindingKind.RENAMED, FindingKind.REMOVED, FindingKind.DEPRECATED)


def fix_text(source: EditableText, finding: AuditFinding) -> None:
    """Collect the splice for one finding in the text of its lines. Raises LeftAloneError with the reason."""
    assert finding.replacement is not None, "only findings with a replacement come here"
    text = finding.replacement.text
    if finding.kind is FindingKind.CLI_FLAG or text.startswith("--"):
        old = finding.symbol.rpartition(" ")[2]
        # A parser takes "-" and "_" alike if it says so; what is written must be found as it is written
        _replace(source, finding, rf"(?<![\w-]){re.escape(old)}(?![\w-])", text)
    elif finding.kind in (FindingKind.PARAM_RENAMED, FindingKind.DEPRECATED) and finding.parameter:
        _replace(source, finding, rf"(?<![\w.]){re.escape(finding.parameter)}(?=[\"']?\s*:)", text.rpartition(".")[2])
    elif finding.kind is FindingKind.PARAM_REMOVED:
        _drop_line(source, finding)
    elif finding.kind in _NAMES:
        old = "[.:]".join(map(re.escape, finding.symbol.split(".")))
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
    """Return the one place in the lines of a finding that a pattern matches: byte offsets and the text there."""
    start, end = source.line_span(finding.line, max(finding.line, finding.end_line))
    lines = source.data[start:end]
    found = list(re.finditer(pattern.encode(), lines))
    first = [each for each in found if each.start() >= finding.column]
    if len(first) != 1 and len(found) != 1:
        raise LeftAloneError(f"it is written {len(found)} times in its lines" if found else "it is not written there")
    hit = (first if len(first) == 1 else found)[0]
    return start + hit.start(), start + hit.end(), hit[0].decode()


def _drop_line(source: EditableText, finding: AuditFinding) -> None:
    """Take `key: value` out, if the value ends on that line."""
    start, end = source.line_span(finding.line, finding.line)
    line, follows = source.data[start:end].decode().rstrip("\r\n"), source.data[end:].splitlines()
    key = rf"[\"']?{re.escape(finding.parameter)}[\"']?"
    match = re.match(rf"([ ]*){key}\s*:[ ]*[^\s|>#&*][^#]*$", line)
    below = len(follows[0]) - len(follows[0].lstrip()) if follows and follows[0].strip() else 0
    if match is None or below > len(match[1]) or source.path.endswith(".json"):
        raise LeftAloneError("the entry is not on one line of its own")
    source.put(start, end, "")
