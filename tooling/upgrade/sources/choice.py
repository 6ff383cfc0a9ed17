"""Which file of a version is read. Sources differ between the wheels of one version in generated files only, so what
counts is to choose the same one each time, and one that this user could install."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.tags import Tag

    from tooling.upgrade.sources.links import FileLink


def choose(links: Iterable[FileLink], python: str) -> FileLink | None:
    """Of one version's files: a wheel before an sdist, and of the wheels a pure one, one for this machine, one for
    Linux on x86-64 and this Python, any. Files that are yanked or need another Python come after those that do not.

    python: as in "3.11"."""
    return min(links, key=lambda link: _rank(link, python), default=None)


def _rank(link: FileLink, python: str) -> tuple[object, ...]:
    fits = _accepts(link.requires_python, python)
    # Later builds of one wheel first
    number, text = parse_wheel_filename(link.filename)[2] or (0, "") if link.is_wheel else (0, "")
    return (
        not link.is_wheel,
        link.yanked is not None,
        not fits,
        _tag_rank(link, python),
        (-number, text),
        link.filename,
    )


def _accepts(requires_python: str, python: str) -> bool:
    try:
        return SpecifierSet(requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True


def _tag_rank(link: FileLink, python: str) -> int:
    if not link.is_wheel:
        return 0
    tags = parse_wheel_filename(link.filename)[3]
    if any(tag.platform == "any" and tag.abi == "none" for tag in tags):
        return 0
    if tags & _own_tags():
        return 1
    wanted = "cp" + python.replace(".", "")
    linux = [tag for tag in tags if "linux" in tag.platform and tag.platform.endswith("x86_64")]
    if any(tag.interpreter == wanted for tag in linux):
        return 2
    if any(tag.abi == "abi3" for tag in linux):
        return 3
    return 4 if linux else 5


@cache
def _own_tags() -> frozenset[Tag]:
    return frozenset(sys_tags())
