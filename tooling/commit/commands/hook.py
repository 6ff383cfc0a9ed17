"""Installs the commit-msg hook, or removes it. It needs no other tool, and is found where core.hooksPath says.

A hook that is there already is kept beside ours as `commit-msg.before-areal` and runs first; `uninstall` puts it back.
Every step leaves a state in which one of the two is in place, also when the process is killed.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.git import Git, find_repository
from tooling.cli.parser import add_changing
from tooling.cli.report import Report
from tooling.kit.change.lock import repository_lock
from tooling.kit.change.plan import PathChange

if TYPE_CHECKING:
    import argparse

    from tooling.cli.git import Repository
    from tooling.cli.parser import Parser


NAME: Final = "commit-msg"
KEPT: Final = "commit-msg.before-areal"
_MARK: Final = "# areal-commit hook"
_SCRIPT: Final = """\
#!/bin/sh
{mark}: checks the message of each commit. `areal-commit hook uninstall` takes it out again.
kept="$(dirname -- "$0")/{kept}"
if [ -x "$kept" ]; then
    "$kept" "$@" || exit
fi
if [ -x {python} ]; then
    exec {python} -P -m tooling.commit check -- "$1"
elif command -v areal-commit >/dev/null 2>&1; then
    exec areal-commit check -- "$1"
fi
echo "areal-commit was not found: the message was not checked (areal-commit hook install)" >&2
"""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The folder of a repository's hooks."""

    folder: Path
    inside: bool
    """Whether it belongs to this repository alone."""

    @property
    def file(self) -> Path:
        """Our hook, or the one that is there."""
        return self.folder / NAME

    @property
    def kept(self) -> Path:
        """Where a foreign hook waits."""
        return self.folder / KEPT


@dataclass(frozen=True, slots=True)
class HookPlan:
    """What is to be done, and what to tell."""

    changes: tuple[PathChange, ...]
    notes: tuple[str, ...] = ()


def script() -> bytes:
    """Return the hook. `-P` keeps Python from importing a folder named `tooling` of the repository that is committed
    to."""
    return _SCRIPT.format(mark=_MARK, kept=KEPT, python=shlex.quote(sys.executable)).encode()


def hooks_of(repository: Repository, *, shared: bool) -> Hooks:
    """Where git looks for hooks. Raises UsageError where hooks are switched off, ConflictError where the folder serves
    other repositories too, unless `shared`."""
    said = Git(repository.root).setting("core.hooksPath", path=True)
    if said == os.devnull:
        fix = "run `git config --unset core.hooksPath` first"
        raise UsageError("hooks are switched off here", where="core.hooksPath", fix=fix)
    folder = repository.common_dir / "hooks"
    if said:  # a relative path counts from the root of the work tree, where git runs hooks
        folder = Path(os.path.normpath(repository.root / said))
    inside = folder.is_relative_to(repository.common_dir) or folder.is_relative_to(repository.root)
    if not inside and not shared:
        raise ConflictError(
            "core.hooksPath serves other repositories too; nothing was changed",
            where=os.fspath(folder),
            fix="add --shared, or `git config core.hooksPath .git/hooks` for this repository alone",
        )
    return Hooks(folder, inside)


def plan_install(repository: Repository, hooks: Hooks) -> HookPlan:
    """Plan an installation; nothing when it is in place. Raises ConflictError when a foreign hook cannot be
    kept."""
    present, wanted = _content(hooks.file), script()
    if present == wanted and os.access(hooks.file, os.X_OK):
        return HookPlan(())
    notes: list[str] = []
    changes = [_change(repository, hooks.file, present, wanted, "checks each message")]
    if present is not None and not is_ours(present):
        kept = _content(hooks.kept)
        if kept is not None and kept != present:
            fix = f"remove {KEPT}, or join the two, and run it again"
            raise ConflictError("two hooks are there already; both were kept", where=os.fspath(hooks.kept), fix=fix)
        changes.append(_change(repository, hooks.kept, kept, present, "the hook that was there; it runs first"))
        if not os.access(hooks.file, os.X_OK):
            notes.append("the hook that was there is not executable: git did not run it, and it will not run now")
    if hooks.folder.is_relative_to(repository.root) and not hooks.folder.is_relative_to(repository.git_dir):
        notes.append(f"{os.fspath(hooks.folder)} is part of the work tree: the hook holds a path of this machine")
    return HookPlan(tuple(changes), tuple(notes))


def plan_uninstall(repository: Repository, hooks: Hooks) -> HookPlan:
    """Plan a removal; nothing when our hook is not there. A foreign hook comes back."""
    present, kept = _content(hooks.file), _content(hooks.kept)
    if present is None or not is_ours(present):
        return HookPlan((), ("the hook that is there is not ours; it was kept",) if present is not None else ())
    if kept is None:
        return HookPlan((_change(repository, hooks.file, present, None, "no message is checked any more"),))
    back = _change(repository, hooks.file, present, kept, "the hook that was there before")
    return HookPlan((back, _change(repository, hooks.kept, kept, None, "put back")))


def install(hooks: Hooks) -> None:
    """Put our hook in place; the caller has planned it."""
    hooks.folder.mkdir(parents=True, exist_ok=True)
    present = _content(hooks.file)
    if present is not None and not is_ours(present) and not os.path.lexists(hooks.kept):
        os.link(hooks.file, hooks.kept, follow_symlinks=False)  # a second name: the hook stays in place meanwhile
    fresh = hooks.folder / f".{NAME}.{os.getpid()}"
    try:
        fresh.write_bytes(script())
        fresh.chmod(0o755)
        os.replace(fresh, hooks.file)
    finally:
        fresh.unlink(missing_ok=True)


def uninstall(hooks: Hooks) -> None:
    """Take our hook out; the caller has planned it."""
    if os.path.lexists(hooks.kept):
        os.replace(hooks.kept, hooks.file)
    else:
        hooks.file.unlink(missing_ok=True)


def is_ours(content: bytes) -> bool:
    """Whether a hook was written by `install`, by whatever version."""
    return any(line.startswith(_MARK.encode()) for line in content.split(b"\n")[:3])


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b"" if path.is_symlink() else None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise ConflictError("is not a file", where=os.fspath(path), fix="move it away and run it again") from error


def _change(repository: Repository, path: Path, before: bytes | None, after: bytes | None, reason: str) -> PathChange:
    shown = path.relative_to(repository.root) if path.is_relative_to(repository.root) else path
    return PathChange(shown.as_posix(), before, after, reason)


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("action", choices=["install", "uninstall"])
    parser.add_argument("--shared", action="store_true", help="also where core.hooksPath serves other repositories")
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Install or uninstall the hook."""
    repository = find_repository(arguments.repo)
    hooks = hooks_of(repository, shared=arguments.shared)
    plan, apply = (plan_install, install) if arguments.action == "install" else (plan_uninstall, uninstall)
    if arguments.dry_run:
        planned = plan(repository, hooks)
    else:
        with repository_lock(repository, wait_seconds=arguments.wait):
            planned = plan(repository, hooks)
            if planned.changes:
                apply(hooks)
    return Report(
        command=f"areal-commit hook {arguments.action}",
        dry_run=arguments.dry_run,
        changes=planned.changes,
        show_diff=arguments.diff,
        warnings=planned.notes,
        data={"hook": str(hooks.file)},
    )
