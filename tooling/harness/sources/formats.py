"""The formats of the two kinds of page, as rules on the keys of their heads.

Skills follow the open Agent Skills specification (agentskills.io) to the letter: clients differ in what they forgive.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.suggest import did_you_mean
from tooling.harness.findings import Finding
from tooling.harness.sources.records import READ, RUN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.harness.sources.records import Page

SKILL_KEYS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
EXPERT_KEYS: Final = ("name", "description", "scope", "commands", "owns", "hints")
_NAME_LENGTH, _DESCRIPTION_LENGTH, _COMPATIBILITY_LENGTH = 64, 1024, 500


def skill_problems(page: Page, folder: str) -> Iterator[Finding]:
    """What the specification does not allow. `folder`: the name of the skill's folder."""
    about = _About(page, "skill-format")
    yield from about.unknown(SKILL_KEYS)
    yield from _identity(about, folder)
    values = page.values
    if "license" in values:
        yield from about.text("license", 0)
    if "compatibility" in values:
        yield from about.text("compatibility", _COMPATIBILITY_LENGTH)
    if "allowed-tools" in values:
        yield from about.text("allowed-tools", 0)
    metadata = values.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(part, str) for pair in metadata.items() for part in pair):
        yield about.finding("metadata", "metadata is no mapping of text to text", "quote its values")


def expert_problems(page: Page, name: str) -> Iterator[Finding]:
    """What no platform could be given. `name`: the file's, without its suffix."""
    about = _About(page, "expert-format")
    yield from about.unknown(EXPERT_KEYS)
    yield from _identity(about, name)
    values = page.values
    scope = values.get("scope", READ)
    if scope not in {READ, RUN}:
        yield about.finding("scope", f"scope is {scope!r}", f"write {READ} or {RUN}")
    for key in ("commands", "owns"):
        if not _is_list_of_text(values.get(key, [])):
            yield about.finding(key, f"{key} is no list of texts", f"write {key}: [first, second]")
    if bool(values.get("commands")) != (scope == RUN):
        yield about.finding("commands", f"scope {scope} and commands contradict each other", f"{RUN} lists commands")
    hints = values.get("hints", {})
    if not isinstance(hints, dict) or not all(isinstance(hint, dict) for hint in hints.values()):
        yield about.finding("hints", "hints is no mapping of platforms to settings", "write hints: {claude: {...}}")


def _identity(about: _About, expected: str) -> Iterator[Finding]:
    """Name and description, which both kinds have."""
    yield from about.text("name", _NAME_LENGTH)
    yield from about.text("description", _DESCRIPTION_LENGTH)
    name = about.page.values.get("name")
    if not isinstance(name, str) or not name:
        return
    name = unicodedata.normalize("NFKC", name)
    plain = all(letter == "-" or (letter.isalnum() and letter == letter.lower()) for letter in name)
    if not plain or name.startswith("-") or name.endswith("-") or "--" in name:
        yield about.finding("name", f"{name!r} is no name", "use lower-case letters, digits and single hyphens inside")
    if name != unicodedata.normalize("NFKC", expected):
        yield about.finding("name", f"the name {name!r} is not that of its place, {expected!r}", "make them equal")


class _About:
    """Findings on one page's head, with their lines."""

    def __init__(self, page: Page, rule: str) -> None:
        self.page = page
        self._rule = rule

    def finding(self, key: str, message: str, fix: str) -> Finding:
        found = re.search(rf"^{re.escape(key)}\s*:", self.page.head, re.MULTILINE)
        line = self.page.head.count("\n", 0, found.start()) + 2 if found else 1
        return Finding(self.page.path, line, self._rule, message, fix)

    def unknown(self, known: tuple[str, ...]) -> Iterator[Finding]:
        for key in self.page.values:
            if key not in known:
                fix = did_you_mean(str(key), known) or f"known keys: {', '.join(known)}"
                yield self.finding(str(key), f"unknown key {key!r}", fix)

    def text(self, key: str, most: int) -> Iterator[Finding]:
        """The key has to hold text of at most `most` characters (0: of any length)."""
        value: Any = self.page.values.get(key)
        if not isinstance(value, str) or not value.strip():
            yield self.finding(key, f"{key} is missing or no text", f"write {key}: ...")
        elif most and len(value) > most:
            yield self.finding(key, f"{key} has {len(value)} characters, {most} are allowed", "shorten it")


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


def mapping(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A key's mapping; empty without one."""
    found = values.get(key)
    return dict(found) if isinstance(found, dict) else {}
