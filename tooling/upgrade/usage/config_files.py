"""Names of packages in configuration files: classes that a loader makes, and functions that a script starts.

    engine:
      _target_: vllm.LLM          # Hydra: a use of vllm.LLM, called with ...
      enforce_eager: true         # ... this keyword

    model:
      class_path: vllm.LLM        # Lightning and jsonargparse
      init_args:
        enforce_eager: true

    [project.scripts]
    serve = "vllm.entrypoints.cli.main:main"

Files are read line by line: what stands at one indentation belongs together.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from tooling.python.access_paths import Name
from tooling.upgrade.uses import Action, Argument, FileUses, PassedArguments, SourcePlace, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_KINDS = (".yaml", ".yml", ".json", ".toml", ".cfg")
_MOST_BYTES = 1_000_000
_TARGET = re.compile(
    r"^(?P<indent>[ ]*(?:-[ ]+)?)[\"']?(?P<key>_target_|class_path)[\"']?\s*:\s*[\"']?(?P<dotted>[\w.]+)"
)
_KEY = re.compile(r"^(?P<indent>[ ]*(?:-[ ]+)?)[\"']?(?P<key>[A-Za-z_]\w*)[\"']?\s*:")
_SCRIPT = re.compile(r"^\s*[\"']?[\w.-]+[\"']?\s*=\s*[\"']?(?P<dotted>[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)")


def config_uses(root: Path, paths: Iterable[str], package_of: Callable[[str], str]) -> Iterator[FileUses]:
    """Uses in configuration files. package_of: the import name that a dotted path belongs to, "" for others."""
    for path in paths:
        if not path.endswith(_KINDS):
            continue
        try:
            if (root / path).is_symlink() or (root / path).stat().st_size > _MOST_BYTES:
                continue
            data = (root / path).read_bytes()
        except OSError:
            continue
        if b"_target_" not in data and b"class_path" not in data and not path.endswith((".toml", ".cfg")):
            continue
        lines = data.decode("utf-8", "replace").splitlines()
        read = _scripts if path.endswith((".toml", ".cfg")) else _targets
        uses = tuple(_use(path, *found, package_of) for found in read(lines) if package_of(found[0]))
        if uses:
            yield FileUses(path=path, digest=hashlib.sha256(data).hexdigest(), uses=uses)


Found = tuple[str, int, int, int, "tuple[str, int, int] | None"]
"""Dotted path, its line, column and length; a keyword with its line and column."""


def _use(
    path: str,
    dotted: str,
    line: int,
    column: int,
    length: int,
    keyword: tuple[str, int, int] | None,
    package_of: Callable[[str], str],
) -> Use:
    place = SourcePlace(path, line, column, line, column + length)
    package = package_of(dotted)
    if keyword is None:
        return Use(action=Action.STRING, place=place, target=Name(dotted), package=package, symbol_text=dotted)
    name, at, start = keyword
    argument = Argument(SourcePlace(path, at, start, at, start + len(name)), name, -1, from_mapping=True)
    arguments = PassedArguments((argument,), has_star=True, has_double_star=True, partial=True)
    return Use(
        action=Action.CALL, place=place, target=Name(dotted), package=package, arguments=arguments, symbol_text=dotted
    )


def _scripts(lines: Sequence[str]) -> Iterator[Found]:
    for number, line in enumerate(lines, 1):
        match = _SCRIPT.match(line)
        if match is not None:
            yield match["dotted"].replace(":", "."), number, match.start("dotted"), len(match["dotted"]), None


def _targets(lines: Sequence[str]) -> Iterator[Found]:
    for index, line in enumerate(lines):
        match = _TARGET.match(line)
        if match is None:
            continue
        whole = (match["dotted"], index + 1, match.start("dotted"), len(match["dotted"]))
        yield (*whole, None)
        siblings = list(_siblings(lines, index, len(match["indent"])))
        if match["key"] == "class_path":
            inside = next((at for name, at, _ in siblings if name == "init_args"), 0)
            siblings = list(_inside(lines, inside)) if inside else []
        yield from ((*whole, each) for each in siblings if not each[0].startswith("_"))


def _siblings(lines: Sequence[str], index: int, indent: int) -> Iterator[tuple[str, int, int]]:
    """Keys of the mapping that a line is in: (name, line, column). A mapping names one callable: where another one is
    named at the same depth, the file is wrong, and is still read in a time that grows with its length."""
    first = index
    while first and "-" not in lines[first][:indent] and _depth(lines[first - 1]) >= indent:
        if _names_callable(lines[first - 1], indent):
            break
        first -= 1
    for number in range(first, len(lines)):
        depth = _depth(lines[number])
        if depth < indent or (number > first and "-" in lines[number][:indent]):
            return
        if number > index and _names_callable(lines[number], indent):
            return
        match = _KEY.match(lines[number])
        if match is not None and depth == indent and number != index:
            yield match["key"], number + 1, match.start("key")


def _names_callable(line: str, indent: int) -> bool:
    match = _TARGET.match(line)
    return match is not None and len(match["indent"]) == indent


def _inside(lines: Sequence[str], line: int) -> Iterator[tuple[str, int, int]]:
    """Keys of the mapping that is the value of a key at a line."""
    outer = _depth(lines[line - 1])
    indent = _depth(lines[line]) if line < len(lines) else 0
    for number in range(line, len(lines)):
        depth = _depth(lines[number])
        match = _KEY.match(lines[number])
        if depth <= outer:
            return
        if match is not None and depth == indent:
            yield match["key"], number + 1, match.start("key")


def _depth(line: str) -> int:
    """Where the content of a line begins, behind the dash of a list; far right for empty lines and comments."""
    stripped = line.lstrip(" ")
    if not stripped or stripped.startswith("#"):
        return 1 << 20
    return (
        len(line) - len(stripped.removeprefix("-").lstrip(" "))
        if stripped.startswith("- ")
        else len(line) - len(stripped)
    )
