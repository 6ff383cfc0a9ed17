"""Comments that suppress a finding, on its line or alone on the line above; a reason is required.

# review: ignore[unsafe-yaml] our own constant
# noqa: RUF006 - short, and cancelled with the loop       where ruff's rule says the same as ours
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.review.records import MIN_REASON

if TYPE_CHECKING:
    from tooling.review.records import Finding
    from tooling.review.repository.side import Side

_IGNORE = re.compile(r"#\s*review:\s*ignore\[(?P<rules>[\w, -]+)\]\s*[:-]*\s*(?P<reason>.*)")
_NOQA = re.compile(r"#\s*noqa:\s*(?P<rules>[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)[\s:#-]*(?P<reason>.*)")
LINTED: Final[dict[str, str]] = {
    "B006": "mutable-default",
    "BLE001": "swallowed-error",
    "F403": "wildcard-import",
    "F821": "undefined-name",
    "RUF006": "dropped-task",
    "S102": "evaluated-text",
    "S104": "open-address",
    "S110": "swallowed-error",
    "S112": "swallowed-error",
    "S301": "unsafe-deserialisation",
    "S307": "evaluated-text",
    "S506": "unsafe-yaml",
    "S602": "shell-from-values",
    "S605": "shell-from-values",
    "S614": "unsafe-torch-load",
}
"""Rules of ruff, and ours that looks for the same: whoever gave a reason to one does not have to repeat it."""


def reason(side: Side, finding: Finding) -> str:
    """Why a finding is suppressed; "" when it counts."""
    lines = (side.text(finding.place.path) or "").split("\n")
    at = finding.place.line - 1
    if not 0 <= at < len(lines):
        return ""
    above = lines[at - 1] if at and lines[at - 1].lstrip().startswith("#") else ""
    for line in (lines[at], above):
        ours, theirs = _IGNORE.search(line), _NOQA.search(line)
        if ours and finding.rule.id in _words(ours["rules"]):
            return _enough(ours["reason"])
        if theirs and finding.rule.id in {LINTED.get(code) for code in _words(theirs["rules"])}:
            return _enough(theirs["reason"])
    return ""


def codes_of(rule: str) -> list[str]:
    """The codes of ruff that say the same."""
    return [code for code, ours in LINTED.items() if ours == rule]


def _words(text: str) -> set[str]:
    return {each.strip() for each in text.split(",")}


def _enough(text: str) -> str:
    return text.strip() if len(text.strip()) >= MIN_REASON else ""
