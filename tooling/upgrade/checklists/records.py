"""A checklist as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """The head of a checklist, from the policy."""

    distribution: str
    imports: tuple[str, ...]
    github: str
    """Web address of the upstream repository."""
    branch_template: str
    """Tag or branch of a version, e.g. "v{version}"."""
    version: str
    """Version that the signatures are of; "" when its source could not be had."""


@dataclass(frozen=True, slots=True)
class AffectedFile:
    """A file of the repository that uses the package."""

    path: str
    tier: str
    """"primary": the product's own code that runs it; "secondary": tests, benchmarks, examples and scripts;
    "tertiary": names it in types, strings or checks only."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A symbol of the package, and everything this repository does with it."""

    symbol: str
    """Dotted path where it is defined."""
    source: str
    """File inside the package that defines it."""
    signature: str
    """One line; "" for modules and values."""
    deprecated: str
    sites: tuple[str, ...]
    """"path (function)", sorted."""
    snippet: str
    """The first use as it is written."""
    verify: tuple[str, ...]
    """What must still hold, from how it is used."""


@dataclass(frozen=True, slots=True)
class GuardedPlace:
    """Code that runs only for some versions."""

    path: str
    function: str
    condition: str


@dataclass(frozen=True, slots=True)
class Checklist:
    """All of it, sorted."""

    subject: Subject
    files: tuple[AffectedFile, ...]
    entries: tuple[Entry, ...]
    guarded: tuple[GuardedPlace, ...]
    upstream_paths: tuple[str, ...]
    """Files of the package that define what is used."""
