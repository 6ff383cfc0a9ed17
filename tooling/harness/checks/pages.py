"""Runs all checks of a repository's pages: mentions, sizes, and the map of AGENTS.md.

The map is a code block that begins with a folder, one line per folder with what it is for. Every folder it names must
exist, and of each level that it shows all folders are shown: readers take what is not on a map for not being there.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tooling.cli.toml import TOMLError, parse_toml
from tooling.harness.checks.absence import absence_findings
from tooling.harness.checks.commands import Commands, HelpPages
from tooling.harness.checks.definitions import read_definitions
from tooling.harness.checks.paths import FileTree
from tooling.harness.checks.references import MentionJudge, mentions
from tooling.harness.checks.symbols import Symbols
from tooling.harness.evaluation.read import evaluation_findings
from tooling.harness.ownership.block import block_lines, without_block
from tooling.harness.sources import PageFinding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tooling.harness.sources import HarnessSettings, Sources


_BYTES_PER_TOKEN = 4


def tokens_of(text: str) -> int:
    """Estimate tokens without a tokenizer, good to about a fifth for English with code: bytes divided by four."""
    return -(-len(text.encode("utf-8")) // _BYTES_PER_TOKEN)


def size_findings(sources: Sources, policy: HarnessSettings) -> Iterator[PageFinding]:
    """Find skills and experts that take more than their limits."""
    for skill in sources.skills:
        yield from too_long(skill.page.path, skill.page.lines, policy.skill_lines)
        tokens = tokens_of(skill.page.body)
        if tokens > policy.skill_tokens:
            message = f"has about {tokens} tokens, {policy.skill_tokens} are allowed"
            yield PageFinding(skill.page.path, 0, "size", message, "move details to references/, one level deep")
    for expert in sources.experts:
        by_code = block_lines(expert.page.body)
        yield from too_long(expert.page.path, expert.page.lines - by_code, policy.expert_lines)
        if by_code > policy.block_lines:
            message = f"the code says {by_code} lines about what it owns, {policy.block_lines} are allowed"
            yield PageFinding(expert.page.path, 0, "size", message, "give some of `owns` to another expert")


def too_long(path: str, lines: int, most: int) -> Iterator[PageFinding]:
    """Yield a finding when there are more than `most` lines."""
    if lines > most:
        yield PageFinding(
            path, most + 1, "size", f"has {lines} lines, {most} are allowed", "say less, or move it elsewhere"
        )


_ENTRY = re.compile(r"(?P<indent> *)(?P<name>[\w.-]+)/(?: +\S.*)?")


def map_findings(path: str, text: str, tree: FileTree) -> Iterator[PageFinding]:
    """Find what the map says that does not exist, and what it leaves out. A missing map is a finding too."""
    entries = _entries(text)
    if not entries:
        yield PageFinding(path, 0, "map", "has no map of the repository's folders", "write one in a block of text")
        return
    for folder, line in entries.items():
        if folder not in tree.folders:
            yield PageFinding(path, line, "map", f"{folder}/ does not exist", tree.suggestion(folder))
    shown = {folder.rpartition("/")[0] for folder in entries}
    for folder in sorted(tree.folders - entries.keys()):
        parent, _, name = folder.rpartition("/")
        if parent in shown and name != "__pycache__":
            line = entries.get(parent, min(entries.values()))
            yield PageFinding(path, line, "map", f"{folder}/ is not on the map", "add its line, with what it is for")


def _entries(text: str) -> dict[str, int]:
    """Return the folders of the first block that holds any, with their lines."""
    found: dict[str, int] = {}
    open_folders: list[tuple[int, str]] = []
    last = 0
    for mention in mentions(text, 1):
        entry = _ENTRY.fullmatch(mention.text) if mention.kind == "code" and mention.language in {"", "text"} else None
        if entry is None:
            continue
        if found and mention.line > last + 5:
            break  # another block
        last, indent = mention.line, len(entry["indent"])
        open_folders = [(depth, folder) for depth, folder in open_folders if depth < indent]
        parent = f"{open_folders[-1][1]}/" if open_folders else ""
        open_folders.append((indent, f"{parent}{entry['name']}"))
        found.setdefault(open_folders[-1][1], mention.line)
    return found


AGENTS = "AGENTS.md"
_POINTER, _POINTER_TEXT = "CLAUDE.md", "@AGENTS.md"
_NOT_CODE = ("templates/", "tests/")
"""Templates are no Python yet; tests are read only when a name is found nowhere else."""


@contextmanager
def judge_of(root: Path, files: Sequence[str], policy: HarnessSettings, *, run: bool) -> Iterator[MentionJudge]:
    """Provide what mentions are held against. run: ask commands for their help."""
    manifest: Mapping[str, Any] = {}
    with suppress(OSError, *TOMLError):
        manifest = parse_toml((root / "pyproject.toml").read_bytes())
    project = manifest.get("project", {})
    required = [*project.get("dependencies", ())]
    for extra in project.get("optional-dependencies", {}).values():
        required += extra
    # Import names, as far as they follow from the names of distributions
    packages = frozenset(
        re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0].lower().replace("-", "_") for line in required
    )
    words = set(_keys(manifest))
    for path in files:
        if path.endswith((".sh", "Makefile")):  # variables of the environment that only they set
            words |= set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", (root / path).read_text(encoding="utf-8")))
    tree = FileTree(files)
    python = [path for path in files if path.endswith(".py")]
    index = read_definitions(root, [path for path in python if not path.startswith(_NOT_CODE)])
    pages = HelpPages(root, project.get("scripts", {})) if run else None
    tests = [path for path in python if path.startswith("tests/")]

    def in_tests(name: str) -> bool:
        holding = [path for path in tests if name in (root / path).read_text(encoding="utf-8", errors="replace")]
        return name in read_definitions(root, holding).names

    symbols = Symbols(index, packages, words, in_tests)
    promised = frozenset(folder.rstrip("/") for folder in policy.local_folders)
    try:
        yield MentionJudge(tree, Commands(root, tree, pages), symbols, frozenset(index.values), promised)
    finally:
        if pages is not None:
            pages.close()


def page_findings(
    root: Path, files: Sequence[str], sources: Sources, policy: HarnessSettings, judge: MentionJudge
) -> Iterator[PageFinding]:
    """Check all skills, all experts and AGENTS.md."""
    yield from size_findings(sources, policy)
    yield from evaluation_findings(root, [skill.name for skill in sources.skills], files)
    for page in [skill.page for skill in sources.skills] + [expert.page for expert in sources.experts]:
        written = without_block(page.body)
        yield from judge.page(page.path, written, page.body_line)
        yield from absence_findings(page.path, f"{page.head}\n{written}", 2)
    for skill in sources.skills:
        for path in skill.resources:
            if path.endswith(".md"):
                text = (root / skill.folder / path).read_text(encoding="utf-8")
                yield from judge.page(f"{skill.folder}/{path}", text, 1)
    for expert in sources.experts:
        for glob in expert.owns:
            if not judge.tree.has(glob):
                yield PageFinding(
                    expert.page.path, 1, "path", f"owns {glob}, which is not a file", judge.tree.suggestion(glob)
                )
    if AGENTS not in files:
        yield PageFinding(
            AGENTS, 0, "map", "does not exist", "write it: what every agent has to know of this repository"
        )
        return
    text = (root / AGENTS).read_text(encoding="utf-8")
    yield from too_long(AGENTS, len(text.splitlines()), policy.agents_lines)
    yield from map_findings(AGENTS, text, judge.tree)
    yield from judge.page(AGENTS, text, 1)
    if _POINTER in files and (root / _POINTER).read_text(encoding="utf-8").strip() != _POINTER_TEXT:
        yield PageFinding(
            _POINTER, 1, "size", f"says more than {_POINTER_TEXT}", f"move it to {AGENTS}: one text, one place"
        )


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of pyproject.toml, at every depth: settings that pages speak of."""
    for key, value in table.items():
        yield key
        if isinstance(value, dict):
            yield from _keys(value)
