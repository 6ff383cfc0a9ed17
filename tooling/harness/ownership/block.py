"""The block of an expert's page that the code writes: what it owns, and what that does and refuses.

It stands between two comments; what is between them is never written by hand. Generated units (`areal-new list`) are
left out: they come and go with one command, and every such command would make pages stale.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tooling.harness.ownership.code import (
    ConfigSection,
    Runnable,
    programs,
    public_classes,
    refusals,
    registries,
    sections,
)
from tooling.harness.ownership.code import summary as summary_of
from tooling.harness.ownership.owners import owners_of
from tooling.harness.sources import PageFinding
from tooling.kit.receipts import read_receipts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tooling.harness.sources import Expert, Sources

BEGIN: Final = "<!-- owned: written by `areal-harness sync` from `owns` and the code -->"
END: Final = "<!-- end of owned -->"
_BLOCK: Final = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n?", re.DOTALL)
_DEEPEST: Final = 3
_MOST_ROWS: Final = 20
_TESTS: Final = "tests/"
_NOT_CODE: Final = ("templates/", _TESTS)
"""Folders whose files are not read."""


def without_block(body: str) -> str:
    """Return what of a page's body is written by hand; the block's lines are left empty, so that lines keep their
    numbers."""
    return _BLOCK.sub(lambda found: "\n" * found[0].count("\n"), body)


def block_lines(body: str) -> int:
    """Return how many lines the block takes."""
    return sum(found[0].count("\n") for found in _BLOCK.finditer(body))


@dataclass(frozen=True, slots=True)
class Code:
    """What blocks are written from, read once for all experts."""

    root: Path
    files: tuple[str, ...]
    generated: frozenset[str]
    """Files of generated units; they are not among `files`."""
    owned: dict[str, tuple[str, ...]]
    """Files by the name of their expert."""
    programs: list[Runnable]
    sections: dict[str, ConfigSection]

    def is_generated(self, target: str) -> bool:
        """Return whether `module:object` is in a file of a generated unit."""
        place = target.partition(":")[0].replace(".", "/")
        return not self.generated.isdisjoint((f"{place}.py", f"{place}/__init__.py"))


def read_code(root: Path, files: Sequence[str], experts: Sequence[Expert]) -> Code:
    """Read what the experts' blocks say. Raises UsageError for a damaged receipt of a unit."""
    owners = owners_of(experts)
    generated = frozenset(path for receipt in read_receipts(root) for path in receipt.files)
    files = [path for path in files if path not in generated]
    owned: dict[str, list[str]] = {expert.name: [] for expert in experts}
    for path in files:
        for name in owners.of(path):
            owned[name].append(path)
    python = {path for paths in owned.values() for path in paths if path.endswith(".py")}
    python = {path for path in python if not path.startswith(_NOT_CODE)}
    configured = [path for path in python if b"Config)" in (root / path).read_bytes()]
    return Code(
        root,
        tuple(files),
        generated,
        {name: tuple(paths) for name, paths in owned.items()},
        programs(root, files),
        sections(root, sorted(configured)),
    )


def with_blocks(root: Path, files: Sequence[str], sources: Sources) -> Sources:
    """Return the sources with every owner's block as the code is now."""
    if not any(expert.owns for expert in sources.experts):
        return sources
    code = read_code(root, files, sources.experts)
    experts = tuple(_with_block(code, expert) if expert.owns else expert for expert in sources.experts)
    return replace(sources, experts=experts)


def _with_block(code: Code, expert: Expert) -> Expert:
    block, body = f"{BEGIN}\n{block_text(code, expert.name)}{END}\n", expert.page.body
    body = _BLOCK.sub(lambda _: block, body) if _BLOCK.search(body) else f"{body.rstrip()}\n\n{block}"
    return replace(expert, page=replace(expert.page, body=body))


def block_findings(current: Sources, wanted: Sources) -> Iterator[PageFinding]:
    """Find pages whose block is not what the code says, each at the first line that differs."""
    for expert, other in zip(current.experts, wanted.experts, strict=True):
        if expert.page.body == other.page.body:
            continue
        if not _BLOCK.search(expert.page.body):
            message = "has no block about what it owns"
            yield PageFinding(expert.page.path, 0, "block", message, "run `areal-harness sync`")
            continue
        ours, theirs = expert.page.body.split("\n"), other.page.body.split("\n")
        at = next((number for number, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
        message = f"the code says {_shortened(theirs[at])!r}, the page {_shortened(ours[at])!r}"
        yield PageFinding(expert.page.path, expert.page.body_line + at, "block", message, "run `areal-harness sync`")


def _shortened(line: str, most: int = 90) -> str:
    return line if len(line) <= most else f"{line[:most]}..."


def block_text(code: Code, name: str) -> str:
    """Return what stands between the two comments on an expert's page."""
    paths = code.owned[name]
    python = [path for path in paths if path.endswith(".py") and not path.startswith(_NOT_CODE)]
    parts = [
        ("Files", _file_rows(code, [path for path in paths if not path.startswith(_TESTS)])),
        ("Commands", [f"`{one.line}`: {one.about}" for one in code.programs if one.path in paths]),
        ("Configuration", _section_rows(code, paths)),
        ("Tables of names", _table_rows(code, python)),
        ("Engines", [f"`{kind}` in `{path}`" for path, kind in public_classes(code.root, python, "Engine")]),
        ("Refused", [f"{message} (`{path}`)" for path, message in refusals(code.root, python)]),
    ]
    return "".join(f"\n## {title}\n\n" + "".join(f"- {row}\n" for row in rows) for title, rows in parts if rows) + "\n"


def _table_rows(code: Code, paths: Sequence[str]) -> list[str]:
    """Return a row per table, with the names that lead to nothing generated."""
    rows = []
    for path, table, entries in registries(code.root, paths):
        names = [name for name, targets in entries.items() if not any(map(code.is_generated, targets))]
        rows.append(f"`{table}` in `{path}`" + (f": {', '.join(names)}" if names else ""))
    return rows


def _file_rows(code: Code, paths: Sequence[str]) -> list[str]:
    """Return a row per folder, as deep as few rows allow."""
    for depth in range(_DEEPEST, 0, -1):
        folders = {"/".join(path.split("/")[:-1][:depth]) for path in paths}
        if len(folders) <= _MOST_ROWS or depth == 1:
            break
    return [_file_row(code, folder, paths) for folder in sorted(folders)]


def _file_row(code: Code, folder: str, paths: Sequence[str]) -> str:
    """Return one folder; of a folder that is mostly another expert's, the files are named."""
    below = [path for path in code.files if path.startswith(f"{folder}/")]
    mine = [path for path in paths if path.startswith(f"{folder}/")]
    about = summary_of(code.root, f"{folder}/__init__.py")
    if len(below) > 2 * len(mine) and len(mine) <= 8:
        names = ", ".join(path.removeprefix(f"{folder}/") for path in mine)
        return f"`{folder}/`, of it {names}"
    return f"`{folder}/`" + (f": {about}" if about else "")


def _section_rows(code: Code, paths: Sequence[str]) -> list[str]:
    """Return a row per section of a configuration file, with its fields."""
    rows = []
    for one in code.sections.values():
        if one.path not in paths:
            continue
        keys = ", ".join(f"`{key}`" if key else "every kind" for key in one.keys)
        fields = [f"{name} ({', '.join(values)})" if values else name for name, values in one.fields.items()]
        rows.append(f"{keys}: `{one.name}` in `{one.path}`: {', '.join(fields)}")
    return sorted(rows)
