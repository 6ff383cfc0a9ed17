"""A repository's files, as far as surfaces look into them: Python, shell, Make, Docker and YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.surfaces.guards import Guards
from tooling.upgrade.surfaces.modules import parse

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence
    from pathlib import Path

_KINDS = (
    (re.compile(r"\.py$"), "python"),
    (re.compile(r"\.(sh|bash|zsh|slurm|sbatch)$|(^|/)(Makefile|justfile)$|\.mk$|(^|/)\.ci/[^/.]+$"), "shell"),
    (
        re.compile(r"(^|/)[^/]*(Dockerfile|Containerfile)(?![^/]*\.(md|rst|txt|py|html)$)[^/]*$|\.dockerfile$", re.I),
        "docker",
    ),
    (re.compile(r"\.ya?ml$"), "yaml"),
)
_LIMIT = 2_000_000


@dataclass(slots=True, eq=False)
class _Slots:
    path: str
    kind: str
    content: bytes


class SourceFile(_Slots):
    """One file."""

    @cached_property
    def tree(self) -> ast.Module | None:
        """Of a Python file that can be parsed."""
        return parse(self.content) if self.kind == "python" else None

    @cached_property
    def guards(self) -> Guards | None:
        """Version guards of a Python file."""
        return Guards(self.tree) if self.tree is not None else None

    @cached_property
    def text(self) -> str:
        """Decoded; what is no UTF-8 is replaced."""
        return self.content.decode("utf-8", errors="replace")


def file_kind(path: str) -> str | None:
    """Return what a file is read as: "python", "shell", "docker" or "yaml"; None for one that is not read."""
    return next((kind for pattern, kind in _KINDS if pattern.search(path)), None)


def source_files(root: Path, *, scope: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[SourceFile]:
    """All of a repository, by path. scope: folders or files to look at; all when empty."""
    found = []
    for path in repository_files(root):
        kind = file_kind(path)
        if kind is None or _inside(path, exclude) or (scope and not _inside(path, scope)):
            continue
        file = root / path
        try:
            if file.is_symlink() or not file.is_file() or file.stat().st_size > _LIMIT:
                continue
            found.append(SourceFile(path, kind, file.read_bytes()))
        except OSError:
            continue
    return found


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)
