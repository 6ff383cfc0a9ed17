"""Reads the keys of settings with their lines: YAML, TOML, and what commands in scripts and pages override.

[root] = read_settings("run.yaml", "actor:\n  path: m\n")
root.entries["actor"][1].entries["path"][0]     # 2, the line
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS: Final = (".yaml", ".yml", ".toml", ".sh", ".md")
"""Endings of files that hold settings, or commands that override them."""
_SECTION: Final = re.compile(r"^\s*\[([\w.]+)\]\s*(?:#.*)?$")
_KEY: Final = re.compile(r"^\s*([\w.]+)\s*=")
_OVERRIDE: Final = re.compile(r"(?<!\S)(--)?([a-z]\w*(?:\.[a-z]\w*)+)(?(1)(?=[=\s]|$)|=)")


@dataclass(slots=True)
class SettingKeys:
    """The keys of a mapping, each with its line and what is in it."""

    entries: dict[str, tuple[int, SettingKeys | None]] = field(default_factory=dict)

    def names(self) -> frozenset[str]:
        """Return the keys."""
        return frozenset(self.entries)

    def everywhere(self) -> Iterator[tuple[str, int]]:
        """Yield all keys with their lines, inner ones included."""
        for key, (line, inner) in self.entries.items():
            yield key, line
            yield from inner.everywhere() if inner is not None else ()

    def put(self, path: list[str], line: int) -> None:
        """Add a key of a key."""
        there = self.entries.setdefault(path[0], (line, None))
        if len(path) > 1:
            inner = there[1] or SettingKeys()
            self.entries[path[0]] = (there[0], inner)
            inner.put(path[1:], line)


def read_settings(path: str, text: str) -> Iterator[SettingKeys]:
    """Yield the mappings at the top of a file and in its lists; none where it is not plain."""
    if path.endswith((".yaml", ".yml")):
        yield from read_yaml(text)
    elif path.endswith(".toml"):
        yield from read_toml(text)
    else:
        yield from read_commands(text)


def read_yaml(text: str) -> Iterator[SettingKeys]:
    """Yield the mappings of YAML documents and of their lists."""
    import yaml

    try:
        waiting: list[yaml.Node | None] = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    seen: set[int] = set()

    def read(node: yaml.Node | None) -> SettingKeys | None:
        """Return the keys of a mapping. What is in a list, or under keys that are not names, waits for its own turn."""
        if node is None or id(node) in seen:  # an alias may lead back
            return None
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        if not isinstance(node, yaml.MappingNode):
            return None
        named = [(key.value if isinstance(key, yaml.ScalarNode) else "", key, value) for key, value in node.value]
        named = [each for each in named if each[0] != "<<" and not each[0].startswith("_")]
        if not all(name.isidentifier() for name, _, _ in named):
            waiting.extend(value for _, _, value in named)
            return None
        return SettingKeys({name: (key.start_mark.line + 1, read(value)) for name, key, value in named})

    for node in waiting:  # grows while it is read
        found = read(node)
        if found is not None:
            yield found


def read_toml(text: str) -> Iterator[SettingKeys]:
    """Yield the tables of a document as one tree, without those of lists."""
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    root, section = SettingKeys(), ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("[["):
            section = "[]"  # a table of a list
        elif (said := _SECTION.match(line)) is not None:
            section = said[1]
        elif (said := _KEY.match(line)) is not None and section != "[]":
            path = [each for each in f"{section}.{said[1]}".split(".") if each]
            there: Any = document
            for each in path:
                there = there.get(each, {}) if isinstance(there, dict) else {}
            if there != {}:
                root.put(path, number)
    yield root


def read_commands(text: str) -> Iterator[SettingKeys]:
    """Read `python train.py actor.path=m \\` with the lines that go on."""
    root, goes_on = SettingKeys(), False
    for number, line in enumerate(text.split("\n"), 1):
        if not goes_on and root.entries:
            yield root
            root = SettingKeys()
        if not line.lstrip().startswith("#"):
            for _, said in _OVERRIDE.findall(line):
                root.put(said.split("."), number)
            goes_on = line.rstrip().endswith("\\")
    yield root
