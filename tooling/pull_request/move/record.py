"""The record of a move in progress: .git/areal-pr/move.json. While it exists, a move was begun and not ended."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError
from tooling.kit.change.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.cli.git import Repository

_FORMAT: Final = "areal-pr-move"
_VERSION: Final = 1
_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was to be done."""

    reference: str
    """Full name of the branch."""
    before: str
    after: str
    backup: str
    """Id of the backup that holds `before`."""


def state_folder(repository: Repository) -> Path:
    """What this command keeps for one work tree."""
    return repository.git_dir / "areal-pr"


def path_of(repository: Repository) -> Path:
    """Where the record lies."""
    return state_folder(repository) / "move.json"


def save(repository: Repository, record: Record) -> None:
    """Write it, on the medium when this returns."""
    disk, folder = Disk(), state_folder(repository)
    disk.make_folder(folder)
    draft = folder / "move.json.tmp"
    disk.remove(draft, missing_ok=True)
    disk.create(draft, json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(record)}).encode())
    disk.replace(draft, path_of(repository))
    disk.sync_folder(folder)
    disk.sync_folder(repository.git_dir)


def load(repository: Repository) -> Record | None:
    """The record; None without one. Raises ConflictError when it is damaged."""
    path = path_of(repository)
    try:
        data = json.loads(path.read_bytes())
        if (data.pop("format"), data.pop("version")) != (_FORMAT, _VERSION):
            raise ValueError("unknown format or version")
        record = Record(**data)
        if not _HASH.fullmatch(record.before) or not _HASH.fullmatch(record.after):
            raise ValueError("no hashes")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConflictError(
            f"the record of an interrupted run is damaged ({error})",
            where=os.fspath(path),
            fix="compare `git status` with `areal-pr backups`, then remove this file",
        ) from error
    return record


def remove(repository: Repository) -> None:
    """The move has ended."""
    disk = Disk()
    disk.remove(path_of(repository), missing_ok=True)
    disk.sync_folder(state_folder(repository))
