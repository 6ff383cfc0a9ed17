"""The page of the kind "template": refuses a folder whose units could not be imported, before a kind is made for it.

A folder inside a package that is not a package itself fails the gates of most projects, with every unit of the kind.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.new.change import Change

_PACKAGE: Final = "__init__.py"


def prepare(change: Change) -> Mapping[str, str]:
    """Add nothing. Raises UsageError naming the `__init__.py` that the folder of the units lacks."""
    missing = _missing(change.root, str(change.request.answers.get("folder", "")))
    if missing:
        raise UsageError(
            f"{missing} does not exist, so units in that folder would be part of no package",
            where="folder",
            fix=f"write {missing} with a docstring first, or name another folder",
        )
    return {}


def _missing(root: Path, folder: str) -> str:
    """The first `__init__.py` that is missing below a package; "" when there is none."""
    place = PurePosixPath(folder)
    if place.is_absolute() or ".." in place.parts:
        return ""  # the question's own validator refuses it
    inside = False
    for part in (*reversed(place.parents), place):
        is_package = (root / part / _PACKAGE).is_file()
        if inside and not is_package:
            return (part / _PACKAGE).as_posix()
        inside = inside or is_package
    return ""
