"""The page of the kind "template": refuses a folder whose units could not be imported, before a kind is made for it.

A folder inside a package that is not a package itself fails the gates of most projects, with every unit of the kind.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.new.change import Change


def prepare(change: Change) -> Mapping[str, str]:
    """Add nothing. Raises UsageError naming the first `__init__.py` that is missing below a package."""
    place = PurePosixPath(str(change.request.answers.get("folder", "")))
    if place.is_absolute() or ".." in place.parts:
        return {}  # the question's own validator refuses it
    inside = False
    for part in (*reversed(place.parents), place):
        is_package = (change.root / part / "__init__.py").is_file()
        if inside and not is_package:
            missing = (part / "__init__.py").as_posix()
            raise UsageError(
                f"{missing} does not exist, so units in that folder would be part of no package",
                where="folder",
                fix=f"write {missing} with a docstring first, or name another folder",
            )
        inside = inside or is_package
    return {}
