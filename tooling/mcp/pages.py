"""Serves skills, experts and AGENTS.md as a client reads them: resources by address, and a prompt per skill.

Everything is read anew for each question, so that what an agent gets is what is on disk. Only addresses that are listed
can be read; an address is never made into a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.cli.git import find_repository
from tooling.cli.suggest import did_you_mean
from tooling.harness.sources import read_harness_settings, read_sources

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.harness.sources import Skill


TASK: Final = "task"
"""The argument of every prompt."""
_LARGEST: Final = 1 << 20
_INSTRUCTIONS: Final = "AGENTS.md"
_TYPES: Final = {".md": "text/markdown", ".json": "application/json", ".py": "text/x-python", ".sh": "text/x-sh"}


@dataclass(frozen=True, slots=True)
class PageResource:
    """A page that can be read."""

    address: str
    name: str
    description: str
    path: str
    """Relative to the repository."""

    @property
    def media_type(self) -> str:
        """Return the type of its content, by the end of its name."""
        return next((kind for end, kind in _TYPES.items() if self.path.endswith(end)), "text/plain")


def resources(root: Path) -> dict[str, PageResource]:
    """Return all pages by address: "skill://add-reward", "skill://add-reward/references/x.md", "page://AGENTS.md"."""
    files = find_repository(root).files()
    sources = read_sources(root, files, read_harness_settings(root))
    found = list[PageResource]()
    if _INSTRUCTIONS in files:
        about = "How to work in this repository: map, commands, invariants, pitfalls."
        found.append(PageResource(f"page://{_INSTRUCTIONS}", _INSTRUCTIONS, about, _INSTRUCTIONS))
    for skill in sources.skills:
        found.append(PageResource(f"skill://{skill.name}", skill.name, skill.description, skill.page.path))
        for path in skill.resources:
            name, about = f"{skill.name}/{path}", f"Goes with the skill {skill.name}."
            found.append(PageResource(f"skill://{name}", name, about, f"{skill.folder}/{path}"))
    for expert in sources.experts:
        found.append(PageResource(f"expert://{expert.name}", expert.name, expert.description, expert.page.path))
    return {one.address: one for one in found}


def skills(root: Path) -> dict[str, Skill]:
    """Return the skills by name. Raises UsageError for settings that mean nothing."""
    files = find_repository(root).files()
    return {skill.name: skill for skill in read_sources(root, files, read_harness_settings(root)).skills}


def read(root: Path, address: str) -> tuple[PageResource, str]:
    """Return a page and its text. Raises UsageError for an address that is not listed, and an unreadable file."""
    known = resources(root)
    found = known.get(address)
    if found is None:
        fix = did_you_mean(address, known) or "list the resources"
        raise UsageError(f"there is no page {address[:200]!r}", where="uri", fix=fix)
    place = (root / found.path).resolve()
    if not place.is_relative_to(root):
        raise UsageError("leads out of the repository", where=found.path, fix="replace the link by a file")
    if place.stat().st_size > _LARGEST:
        raise UsageError(f"is larger than {_LARGEST} bytes", where=found.path, fix="read the file itself")
    return found, place.read_text(encoding="utf-8", errors="replace")


def prompt(root: Path, name: str, arguments: Mapping[str, str]) -> str:
    """Return what a skill says, and the task it is needed for. Raises UsageError for a name that no skill has."""
    known = skills(root)
    skill = known.get(name)
    if skill is None:
        fix = did_you_mean(name, known) or f"known: {', '.join(known)}"
        raise UsageError(f"there is no skill {name[:200]!r}", where="name", fix=fix)
    unknown = sorted(set(arguments) - {TASK})
    if unknown:
        raise UsageError(f"takes no argument {unknown[0][:200]!r}", where=name, fix=f"its argument is {TASK}")
    task = arguments.get(TASK, "").strip()
    text = f"Follow these instructions of the repository ({skill.page.path}).\n\n{skill.page.body.strip()}\n"
    return f"{text}\nThe task: {task}\n" if task else text
