"""Addresses of remotes: which repository of which service they name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@]+@)?(?P<host>[^/:]+)(?::\d+)?/|(?:[^/@:]+@)?(?P<short>[^/:@]{2,}):(?!/))"
    r"(?P<path>[^\s?#]+?)(?:\.git)?/?"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A repository on a service. Example: Place("github.com", "owner", "name")."""

    host: str
    owner: str
    """With all groups: "group/subgroup"."""
    name: str

    def __str__(self) -> str:
        """As `gh --repo` takes it."""
        return f"{self.host}/{self.owner}/{self.name}"


def place_of(url: str) -> Place | None:
    """The repository that an address names; None for folders and unknown forms."""
    found = _ADDRESS.fullmatch(url)
    owner, _, name = (found["path"] if found else "").strip("/").rpartition("/")
    return Place((found["host"] or found["short"]).lower(), owner, name) if found and owner and name else None
