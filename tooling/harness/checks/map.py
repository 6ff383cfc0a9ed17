"""The map of AGENTS.md: a code block that begins with a folder, one line per folder with what it is for.

Every folder it names exists, and of each level that it shows all folders are shown: a reader takes what is not on a map
for not being there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.harness.checks.mentions import mentions
from tooling.harness.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.harness.checks.paths import FileTree

_ENTRY = re.compile(r"(?P<indent> *)(?P<name>[\w.-]+)/(?: +\S.*)?")


def map_findings(path: str, text: str, tree: FileTree) -> Iterator[Finding]:
    """What the map says that is not so, and what it leaves out. No map is a finding too."""
    entries = _entries(text)
    if not entries:
        yield Finding(path, 0, "map", "has no map of the repository's folders", "write one in a block of text")
        return
    for folder, line in entries.items():
        if folder not in tree.folders:
            yield Finding(path, line, "map", f"{folder}/ does not exist", tree.suggestion(folder))
    shown = {folder.rpartition("/")[0] for folder in entries}
    for folder in sorted(tree.folders - entries.keys()):
        parent, _, name = folder.rpartition("/")
        if parent in shown and name != "__pycache__":
            line = entries.get(parent, min(entries.values()))
            yield Finding(path, line, "map", f"{folder}/ is not on the map", "add its line, with what it is for")


def _entries(text: str) -> dict[str, int]:
    """Folders of the first block that holds any, with their lines."""
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
