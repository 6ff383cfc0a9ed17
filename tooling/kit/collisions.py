"""Whether a unit's name is free in a repository: registry keys, files, and names defined in source code.

    check_free(names, keys={"gsm8k", "boxed"}, planned_paths=["areal/reward/digits.py"], paths=repository.files())

Whatever is there exactly is a conflict; what differs only in case or separators ("Gsm8k", "qwen35" beside "qwen3_5") is
a name that people, case-insensitive disks and shells would mix up. A unit that was generated before is no collision with
itself: callers look at receipts first.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tooling.kit.errors import ConflictError, NameRefusedError, UsageError
from tooling.kit.names import fold, parse_name, suggest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tooling.kit.names import Names
    from tooling.kit.repository import Repository


def check_free(
    names: Names,
    *,
    kind: str = "unit",
    keys: Collection[str] = (),
    planned_keys: Collection[str] | None = None,
    paths: Collection[str] = (),
    planned_paths: Collection[str] = (),
    symbols: Collection[str] = (),
    repository: Repository | None = None,
    below: str = "",
    reserved: Collection[str] = (),
) -> None:
    """Raises ConflictError for a registry key, path or top-level name that exists, NameRefusedError for one that
    differs only in case or separators. Each has a suggestion that is free.

    keys: of the registries that the kind is entered in; planned_keys: what would be entered (the name's key when None).
    paths: files of the repository (`Repository.files()`). symbols: top-level names that the unit would define, looked
    up with git in Python files below the folder `below`; needs `repository`.
    """
    planned_keys = [names.key] if planned_keys is None else planned_keys
    folded_keys, folded_paths = {fold(key): key for key in keys}, _folded(paths)

    def is_free(candidate: str) -> bool:
        try:
            parse_name(candidate, reserved=reserved)
        except NameRefusedError:
            return False
        renamed = [path.replace(names.snake, candidate) for path in planned_paths]
        new_keys = [key.replace(names.key, candidate) for key in planned_keys]
        return not any(fold(key) in folded_keys for key in new_keys) and not any(
            _path_collision(path, candidate, folded_paths) for path in renamed
        )

    for key in planned_keys:
        if (found := folded_keys.get(fold(key))) is not None:
            found = key if key in keys else found
            raise _taken(names, kind, key, found, f"the registry has {found!r}", suggest(names.snake, is_free))
    for path in planned_paths:
        if (found := _path_collision(path, names.snake, folded_paths)) is not None:
            raise _taken(names, kind, path, found, f"{found} exists", suggest(names.snake, is_free), where=found)
    if symbols and repository is not None:
        for symbol, place in find_symbols(repository, symbols, below=below).items():
            reason = f"{symbol!r} is defined at {place}"
            raise _taken(names, kind, symbol, symbol, reason, suggest(names.snake, is_free), where=place)


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


def _taken(
    names: Names, kind: str, planned: str, found: str, reason: str, free: str, *, where: str = "name"
) -> ConflictError | NameRefusedError:
    advice = f"use e.g. {free!r}" if free else "choose another name"
    if planned == found:
        message = f"the name {names.raw!r} is taken: {reason}"
        return ConflictError(
            message, where=where, fix=f"{advice}; `areal-new list` and `update` know generated {kind}s"
        )
    message = f"the name {names.raw!r} differs only in case or separators from what exists: {reason}"
    return NameRefusedError(message, where=where, fix=advice)


def _folded(paths: Collection[str]) -> dict[str, str]:
    """Files and their folders by case-folded path and by a path whose last part is folded further; the exact spelling
    of a file wins."""
    table: dict[str, str] = {}
    for path in paths:
        table.setdefault(path.casefold(), path)
        table.setdefault(_loosely(path), path)
        for parent in PurePosixPath(path).parents:
            table.setdefault(f"{parent.as_posix()}/", path)
    return table


def _loosely(path: str) -> str:
    place = PurePosixPath(path.casefold())
    return f"{place.parent.as_posix()}//{fold(place.stem)}{place.suffix}"


def _path_collision(path: str, snake: str, folded: dict[str, str]) -> str | None:
    """The file that is in the way of `path`: the same, or one that cannot be told from it, or a package where the
    module would be. Separators count only in files that carry the unit's name."""
    found = folded.get(path.casefold())
    if found is None and snake in PurePosixPath(path).stem:
        found = folded.get(_loosely(path))
    if found is None and path.endswith(".py"):
        found = folded.get(f"{path.removesuffix('.py')}/__init__.py".casefold())
    return found


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
