"""All checks of a repository's pages, put together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tooling.cli.toml import TOMLError, parse_toml
from tooling.harness.checks.commands import Commands
from tooling.harness.checks.definitions import read_definitions
from tooling.harness.checks.help_pages import HelpPages
from tooling.harness.checks.map import map_findings
from tooling.harness.checks.paths import FileTree
from tooling.harness.checks.references import Judge
from tooling.harness.checks.sizes import size_findings, too_long
from tooling.harness.checks.symbols import Symbols
from tooling.harness.evaluation.read import evaluation_findings
from tooling.harness.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tooling.harness.policy import Policy
    from tooling.harness.sources.records import Sources

AGENTS = "AGENTS.md"
_POINTER, _POINTER_TEXT = "CLAUDE.md", "@AGENTS.md"
_NOT_CODE = ("templates/", "tests/")
"""Templates are no Python yet; tests are read only when a name is found nowhere else."""


def judge_of(root: Path, files: Sequence[str], policy: Policy, *, run: bool) -> Judge:
    """What mentions are held against. `run`: ask commands for their help."""
    manifest = _manifest(root)
    tree = FileTree(files)
    code = [path for path in files if path.endswith(".py") and not path.startswith(_NOT_CODE)]
    index = read_definitions(root, code)
    scripts = manifest.get("project", {}).get("scripts", {})
    pages = HelpPages(root, scripts) if run else None
    words = _shell_words(root, files) | frozenset(_keys(manifest))

    def names_of_tests() -> set[str]:
        return read_definitions(
            root, [path for path in files if path.endswith(".py") and path.startswith("tests/")]
        ).names

    symbols = Symbols(index, _packages(manifest), words, names_of_tests)
    promised = frozenset(folder.rstrip("/") for folder in policy.local_folders)
    return Judge(tree, Commands(root, tree, pages), symbols, frozenset(index.values), promised)


def page_findings(
    root: Path, files: Sequence[str], sources: Sources, policy: Policy, judge: Judge
) -> Iterator[Finding]:
    """Of all skills, all experts and AGENTS.md."""
    yield from size_findings(sources, policy)
    yield from evaluation_findings(root, [skill.name for skill in sources.skills], files)
    for page in [skill.page for skill in sources.skills] + [expert.page for expert in sources.experts]:
        yield from judge.page(page.path, page.body, page.body_line)
    for expert in sources.experts:
        for glob in expert.owns:
            if not judge.tree.has(glob):
                yield Finding(
                    expert.page.path, 1, "path", f"owns {glob}, which is no file", judge.tree.suggestion(glob)
                )
    if AGENTS not in files:
        yield Finding(AGENTS, 0, "map", "does not exist", "write it: what every agent has to know of this repository")
        return
    text = (root / AGENTS).read_text(encoding="utf-8")
    yield from too_long(AGENTS, len(text.splitlines()), policy.agents_lines)
    yield from map_findings(AGENTS, text, judge.tree)
    yield from judge.page(AGENTS, text, 1)
    if _POINTER in files and (root / _POINTER).read_text(encoding="utf-8").strip() != _POINTER_TEXT:
        yield Finding(
            _POINTER, 1, "size", f"says more than {_POINTER_TEXT}", f"move it to {AGENTS}: one text, one place"
        )


def _manifest(root: Path) -> Mapping[str, Any]:
    try:
        return parse_toml((root / "pyproject.toml").read_bytes())
    except (OSError, *TOMLError):
        return {}


def _packages(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Import names of what the project depends on, as far as they follow from the names of distributions."""
    project = manifest.get("project", {})
    lines = [*project.get("dependencies", ())]
    for extra in project.get("optional-dependencies", {}).values():
        lines += extra
    names = {re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0] for line in lines}
    return frozenset(name.lower().replace("-", "_") for name in names)


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    """Keys of pyproject.toml, at every depth: settings that pages speak of."""
    for key, value in table.items():
        yield key
        if isinstance(value, dict):
            yield from _keys(value)


def _shell_words(root: Path, files: Sequence[str]) -> frozenset[str]:
    """Words of scripts and of the Makefile: variables of the environment that only they set."""
    words: set[str] = set()
    for path in files:
        if path.endswith((".sh", "Makefile")):
            words |= set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", (root / path).read_text(encoding="utf-8")))
    return frozenset(words)
