"""Where names are defined at the top level of a repository's Python files.

    find_symbols(repository, ["digits_reward"], below="areal")      # {"digits_reward": "areal/reward/digits.py:12"}

Git finds the files that mention a name, `ast` tells a definition from a mention; nothing is imported.
"""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tooling.cli.git import Repository


def find_symbols(repository: Repository, symbols: Iterable[str], *, below: str = "") -> dict[str, str]:
    """Where top-level names are defined in the repository's Python files, new ones included: {"digits_reward":
    "areal/reward/digits.py:12"}. Only those that are found. Raises UsageError when git cannot search."""
    wanted = sorted(set(symbols))
    found: dict[str, str] = {}
    for path in _mentioning(repository, wanted, below) if wanted else ():
        for name, line in _definitions(repository.root / path):
            if name in wanted:
                found.setdefault(name, f"{path}:{line}")
    return dict(sorted(found.items()))


def _mentioning(repository: Repository, words: list[str], below: str) -> list[str]:
    """Python files that hold one of the words, tracked or new."""
    from git.exc import GitError

    patterns = [part for word in words for part in ("-e", word)]
    place = f":(top,glob){below.strip('/') + '/' if below else ''}**/*.py"
    command = ["git", "grep", "--untracked", "-l", "-z", "-w", "-F", *patterns, "--", place]
    try:
        with repository.git() as repo:
            status, output, complaint = repo.git.execute(
                command, with_extended_output=True, with_exceptions=False, stdout_as_string=False
            )
    except GitError as error:
        raise UsageError(f"git cannot search: {error}", where=os.fspath(repository.root)) from error
    if status not in {0, 1}:
        said = complaint.decode(errors="replace") if isinstance(complaint, bytes) else str(complaint)
        raise UsageError(f"git cannot search: {said.strip()}", where=os.fspath(repository.root))
    listed = output if isinstance(output, bytes) else os.fsencode(str(output))
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


def _definitions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, line) of what a module defines at its top level; nothing for a file that is no valid Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Assign):
            yield from ((name.id, node.lineno) for target in node.targets for name in _names(target))
        elif isinstance(node, ast.AnnAssign):
            yield from ((name.id, node.lineno) for name in _names(node.target))


def _names(target: ast.expr) -> Iterator[ast.Name]:
    yield from (node for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
