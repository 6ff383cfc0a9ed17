"""What the sources become: every file of every platform, as bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.harness.compile.stamp import stamped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.harness.platforms.records import Platform
    from tooling.harness.sources.records import Skill, Sources


@dataclass(frozen=True, slots=True)
class Artifact:
    """One generated file."""

    path: str
    content: bytes
    source: str
    """The file it comes from."""
    platform: str


def compiled(root: Path, sources: Sources, platforms: Sequence[Platform]) -> dict[str, Artifact]:
    """All files by their paths. Raises OSError when a file that travels with a skill cannot be read."""
    found: dict[str, Artifact] = {}
    for platform in platforms:
        for skill in sources.skills if platform.skills else ():
            for artifact in _skill(root, skill, platform):
                found[artifact.path] = artifact
        for expert in sources.experts if platform.render else ():
            assert platform.render is not None
            path = platform.expert_path(expert)
            content = stamped(platform.render(expert), expert.page.path)
            found[path] = Artifact(path, content, expert.page.path, platform.name)
    return dict(sorted(found.items()))


def _skill(root: Path, skill: Skill, platform: Platform) -> list[Artifact]:
    """The same bytes on every platform: a client that finds a skill twice cannot take the wrong one."""
    folder = f"{platform.skills}/{skill.name}"
    carried = {path: (root / skill.folder / path).read_bytes() for path in skill.resources}
    text = f"---\n{skill.page.head}---\n{_rooted(skill)}"
    entry = Artifact(f"{folder}/SKILL.md", stamped(text, skill.page.path, carried), skill.page.path, platform.name)
    copies = [
        Artifact(f"{folder}/{path}", content, f"{skill.folder}/{path}", platform.name)
        for path, content in carried.items()
    ]
    return [entry, *copies]


def _rooted(skill: Skill) -> str:
    """The body, with paths into folders that stay behind written from the repository's root."""
    body = skill.page.body
    for folder in skill.local:
        body = re.sub(rf"(?<=`){re.escape(folder)}/", f"{skill.folder}/{folder}/", body)
        body = re.sub(rf"(?<=\]\(){re.escape(folder)}/", f"../../../{skill.folder}/{folder}/", body)
    return body
