"""Reads the one source of skills and experts: pages with a head of YAML, held to their formats.

Skills follow the open Agent Skills specification (agentskills.io) to the letter: clients differ in what they forgive.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import PositiveInt

from tooling.cli.settings import Settings, Strings, read_settings
from tooling.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


class HarnessSettings(Settings):
    """What a page may take, and which platforms get one."""

    agents_lines: PositiveInt = 120
    """Of AGENTS.md: every session of every agent reads all of it."""
    skill_lines: PositiveInt = 80
    """Of one SKILL.md."""
    expert_lines: PositiveInt = 110
    """Of one agents/<name>.md, as far as it is written by hand. More than a skill: an expert is read by a helper with a
    context of its own, once, and its tables of symptoms and choices are what it is asked for."""
    block_lines: PositiveInt = 100
    """Of the block about what an expert owns, which the code writes."""
    owned: Strings = ()
    """Globs of the files that an expert has to answer for."""
    skill_tokens: PositiveInt = 1500
    """Of one SKILL.md, estimated; references are loaded on demand and do not count."""
    platforms: Strings = ()
    """Names of the platforms that are compiled for; none named: all."""
    local_folders: Strings = ()
    """Folders of skills that are not copied to the platforms: other commands write them, too often to be copied."""


def read_harness_settings(root: Path) -> HarnessSettings:
    """Read the settings of the repository at `root`. Raises UsageError for unknown keys and wrong values."""
    return read_settings(HarnessSettings, root, "harness")


@dataclass(frozen=True, slots=True, order=True)
class PageFinding:
    """One problem. Example: PageFinding("agents/planner.md", 12, "path", "areal/gone.py does not exist", "...")."""

    path: str
    """Relative to the repository root."""
    line: int
    """1-based; 0 when the whole file is meant."""
    rule: str
    """skill-format, expert-format, eval-format, path, link, symbol, command, option, map, size, owner, block or
    absence."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        """Return `path:line: rule: message; fix`."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.rule}: {self.message}" + (f"; {self.fix}" if self.fix else "")

    def document(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return asdict(self)


READ: Final = "read"
"""An expert that reads and searches, and does nothing else."""
RUN: Final = "run"
"""An expert that also runs the commands it names, and edits nothing."""


@dataclass(frozen=True, slots=True)
class SourcePage:
    """A Markdown file with a head of YAML between two lines of `---`."""

    path: str
    head: str
    """The head as written, without its `---` lines."""
    values: Mapping[str, Any]
    """The head's keys and values."""
    body: str
    body_line: int
    """1-based line of the file that the body begins on."""

    @property
    def text(self) -> str:
        """Return the whole file."""
        return f"---\n{self.head}---\n{self.body}"

    @property
    def lines(self) -> int:
        """Return the number of lines of the whole file."""
        return self.body_line - 1 + len(self.body.splitlines())


@dataclass(frozen=True, slots=True)
class Skill:
    """One task: how an agent does it with this repository's commands."""

    page: SourcePage
    name: str
    description: str
    resources: tuple[str, ...]
    """Further files that travel with it, relative to its folder, sorted: "references/errors.md"."""
    local: tuple[str, ...]
    """Folders beside SKILL.md that stay where they are."""

    @property
    def folder(self) -> str:
        """Return its folder, e.g. "skills/add-reward"."""
        return self.page.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Expert:
    """One adviser: what it is asked, what it owns, what it may do."""

    page: SourcePage
    name: str
    description: str
    """When to ask it."""
    scope: str
    """READ or RUN."""
    commands: tuple[str, ...]
    """What an expert of scope RUN may run; a "*" stands for the rest of a command line."""
    owns: tuple[str, ...]
    """Globs of the files it answers for."""
    hints: Mapping[str, Mapping[str, Any]]
    """Settings of single platforms: {"claude": {"model": "opus"}}."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All of them, sorted by name, and what is wrong with those that are left out."""

    skills: tuple[Skill, ...] = ()
    experts: tuple[Expert, ...] = ()
    problems: tuple[PageFinding, ...] = field(default=())


_FENCE = "---"


class PageError(ValueError):
    """The file is not a page; `line` is where."""

    def __init__(self, message: str, line: int = 1) -> None:
        """Create the error. line: 1-based."""
        super().__init__(message)
        self.line = line


def read_page(root: Path, path: str) -> SourcePage:
    """Return the page at `root/path`.

    Raises PageError when it is not UTF-8, has no head, or one that clients would read differently: broken YAML, a key
    given twice, anything but a mapping.
    """
    try:
        text = (root / path).read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PageError(f"cannot be read: {error}") from error
    lines = text.split("\n")
    if lines[0] != _FENCE or _FENCE not in lines[1:]:
        raise PageError("no head: the file has to begin with `---`, YAML, `---`")
    end = lines.index(_FENCE, 1)
    head = "\n".join(lines[1:end]) + "\n"
    import yaml

    try:
        node = yaml.compose(head, Loader=yaml.SafeLoader)
        values = yaml.safe_load(head)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or "broken"
        raise PageError(f"the head is not valid YAML: {said}", (mark.line if mark else 0) + 2) from error
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise PageError("the head is not a mapping of keys to values")
    seen = set()
    for key, _ in node.value:
        if key.value in seen:
            raise PageError(f"{key.value} is given twice", key.start_mark.line + 2)
        seen.add(key.value)
    return SourcePage(path, head, values, "\n".join(lines[end + 1 :]), end + 2)


SKILL_KEYS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
EXPERT_KEYS: Final = ("name", "description", "scope", "commands", "owns", "hints")
_NAME_LENGTH, _DESCRIPTION_LENGTH, _COMPATIBILITY_LENGTH = 64, 1024, 500


def skill_problems(page: SourcePage, folder: str) -> Iterator[PageFinding]:
    """Find what the specification does not allow. folder: the name of the skill's folder."""
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
        yield about.finding("metadata", "metadata is not a mapping of text to text", "quote its values")


def expert_problems(page: SourcePage, name: str) -> Iterator[PageFinding]:
    """Find what no platform could be given. name: the file's, without its suffix."""
    about = _About(page, "expert-format")
    yield from about.unknown(EXPERT_KEYS)
    yield from _identity(about, name)
    values = page.values
    scope = values.get("scope", READ)
    if scope not in {READ, RUN}:
        yield about.finding("scope", f"scope is {scope!r}", f"write {READ} or {RUN}")
    for key in ("commands", "owns"):
        listed = values.get(key, [])
        if not isinstance(listed, list) or not all(isinstance(item, str) and item for item in listed):
            yield about.finding(key, f"{key} is not a list of texts", f"write {key}: [first, second]")
    if bool(values.get("commands")) != (scope == RUN):
        yield about.finding("commands", f"scope {scope} and commands contradict each other", f"{RUN} lists commands")
    hints = values.get("hints", {})
    if not isinstance(hints, dict) or not all(isinstance(hint, dict) for hint in hints.values()):
        yield about.finding("hints", "hints is not a mapping of platforms to settings", "write hints: {claude: {...}}")


def _identity(about: _About, expected: str) -> Iterator[PageFinding]:
    """Find problems of name and description, which both kinds have."""
    yield from about.text("name", _NAME_LENGTH)
    yield from about.text("description", _DESCRIPTION_LENGTH)
    name = about.page.values.get("name")
    if not isinstance(name, str) or not name:
        return
    name = unicodedata.normalize("NFKC", name)
    plain = all(letter == "-" or (letter.isalnum() and letter == letter.lower()) for letter in name)
    if not plain or name.startswith("-") or name.endswith("-") or "--" in name:
        yield about.finding(
            "name", f"{name!r} is not a name", "use lower-case letters, digits and single hyphens inside"
        )
    if name != unicodedata.normalize("NFKC", expected):
        yield about.finding("name", f"the name {name!r} is not that of its place, {expected!r}", "make them equal")


class _About:
    """Findings on one page's head, with their lines."""

    def __init__(self, page: SourcePage, rule: str) -> None:
        self.page = page
        self._rule = rule

    def finding(self, key: str, message: str, fix: str) -> PageFinding:
        found = re.search(rf"^{re.escape(key)}\s*:", self.page.head, re.MULTILINE)
        line = self.page.head.count("\n", 0, found.start()) + 2 if found else 1
        return PageFinding(self.page.path, line, self._rule, message, fix)

    def unknown(self, known: tuple[str, ...]) -> Iterator[PageFinding]:
        for key in self.page.values:
            if key not in known:
                fix = did_you_mean(str(key), known) or f"known keys: {', '.join(known)}"
                yield self.finding(str(key), f"unknown key {key!r}", fix)

    def text(self, key: str, most: int) -> Iterator[PageFinding]:
        """Require text of at most `most` characters (0: of any length)."""
        value: Any = self.page.values.get(key)
        if not isinstance(value, str) or not value.strip():
            yield self.finding(key, f"{key} is missing or no text", f"write {key}: ...")
        elif most and len(value) > most:
            yield self.finding(key, f"{key} has {len(value)} characters, {most} are allowed", "shorten it")


def mapping(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a key's mapping; empty without one."""
    found = values.get(key)
    return dict(found) if isinstance(found, dict) else {}


SKILLS, EXPERTS, ENTRY = "skills", "agents", "SKILL.md"
_NO_PAGES = {"README.md"}


def read_sources(root: Path, files: Sequence[str], policy: HarnessSettings) -> Sources:
    """Read skills and experts among the repository's files. Those with a problem are left out, and it is named."""
    problems: list[PageFinding] = []
    known = set(files)
    folders = sorted({path.split("/")[1] for path in files if path.startswith(f"{SKILLS}/") and path.count("/") > 1})
    for name in folders:
        if f"{SKILLS}/{name}/{ENTRY}" not in known:
            fix = "write it, or move the folder"
            problems.append(PageFinding(f"{SKILLS}/{name}", 0, "skill-format", f"has no {ENTRY}", fix))
    named = [name for name in folders if f"{SKILLS}/{name}/{ENTRY}" in known]
    skills = [_skill(root, name, files, policy, problems) for name in named]
    names = [path for path in files if path.startswith(f"{EXPERTS}/") and path.count("/") == 1]
    experts = [_expert(root, path, problems) for path in names if path.endswith(".md") and _base(path) not in _NO_PAGES]
    return Sources(
        tuple(skill for skill in skills if skill is not None),
        tuple(expert for expert in experts if expert is not None),
        tuple(sorted(problems)),
    )


def _skill(
    root: Path, name: str, files: Sequence[str], policy: HarnessSettings, problems: list[PageFinding]
) -> Skill | None:
    folder = f"{SKILLS}/{name}"
    page = _page(root, f"{folder}/{ENTRY}", "skill-format", problems)
    found = list(skill_problems(page, name)) if page is not None else []
    problems += found
    if page is None or found:
        return None
    inside = sorted(path.removeprefix(f"{folder}/") for path in files if path.startswith(f"{folder}/"))
    local = tuple(kept for kept in policy.local_folders if kept.startswith(f"{folder}/"))
    local = tuple(kept.removeprefix(f"{folder}/").rstrip("/") for kept in local)
    resources = [path for path in inside if path != ENTRY and path.split("/")[0] not in local]
    return Skill(page, page.values["name"], page.values["description"].strip(), tuple(resources), local)


def _expert(root: Path, path: str, problems: list[PageFinding]) -> Expert | None:
    page = _page(root, path, "expert-format", problems)
    found = list(expert_problems(page, _base(path).removesuffix(".md"))) if page is not None else []
    if page is not None and not page.body.strip():
        found.append(PageFinding(path, page.body_line, "expert-format", "has no text", "write what it knows"))
    problems += found
    if page is None or found:
        return None
    values = page.values
    return Expert(
        page,
        values["name"],
        values["description"].strip(),
        values.get("scope", READ),
        tuple(values.get("commands", ())),
        tuple(values.get("owns", ())),
        {name: dict(hint) for name, hint in mapping(values, "hints").items()},
    )


def _page(root: Path, path: str, rule: str, problems: list[PageFinding]) -> SourcePage | None:
    try:
        return read_page(root, path)
    except PageError as error:
        problems.append(PageFinding(path, error.line, rule, str(error), "see skills/add-model/SKILL.md for an example"))
        return None


def _base(path: str) -> str:
    return path.rpartition("/")[2]
