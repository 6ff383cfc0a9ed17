"""A declaration: one place in one file that names a distribution and what versions of it will do.

Spans count characters of the file's text, so that an edit can replace the version and leave every other byte alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a declaration is for."""

    REQUIREMENT = "requirement"
    """project.dependencies, extras, dependency groups, requirements files, setup.cfg, setup.py, environment.yml."""
    CONSTRAINT = "constraint"
    """Limits a version without asking for the package: constraints files, constraint-dependencies."""
    OVERRIDE = "override"
    """override-dependencies: replaces what other packages ask for."""
    BUILD = "build"
    """build-system.requires."""
    HOOK = "hook"
    """additional_dependencies of pre-commit."""
    COMMAND = "command"
    """`pip install x==1` in CI, scripts and Dockerfiles."""
    IMAGE = "image"
    """The tag of a container image."""
    VARIABLE = "variable"
    """X_VERSION=1.2 in a Dockerfile, a script or CI."""
    SOURCE = "source"
    """A git tag or revision, or the URL of an archive."""


class Style(StrEnum):
    """How the version is written."""

    PEP508 = "pep508"
    """">=1,<2", or "" for any."""
    PLAIN = "plain"
    """The bare version: "0.18.0"."""
    CONDA = "conda"
    """"=0.18" is a prefix."""
    POETRY = "poetry"
    """"^1.2", "~1.2" and "1.2" too."""
    OPAQUE = "opaque"
    """A commit, a branch or a URL: no version can be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Declaration:
    """One place."""

    path: str
    """Relative to the repository, with forward slashes."""
    line: int
    start: int
    """Span of `specifier` in the file's text; empty (where one would go) if there is none."""
    end: int
    distribution: str
    """Normalised name; of an image its last part ("vllm-openai")."""
    specifier: str
    """As written: ">=4.0", "0.5.10.post1"."""
    kind: Kind
    style: Style = Style.PEP508
    section: str = ""
    """The table or statement: "project.optional-dependencies", "RUN", "FROM"."""
    group: str = ""
    """Extra or dependency group."""
    extras: tuple[str, ...] = ()
    marker: str = ""
    text: str = ""
    """The whole entry as written: "vllm[audio]>=0.11; platform_system == 'Linux'"."""
    hashes: tuple[tuple[int, int], ...] = ()
    """Spans of `--hash=...` options that belong to it."""

    @property
    def where(self) -> str:
        """ "path:line"."""
        return f"{self.path}:{self.line}"

    @property
    def is_pinned(self) -> bool:
        """Whether it names exactly one version."""
        if self.style in (Style.PLAIN,):
            return True
        clause = self.specifier.strip()
        return clause.startswith("==") and "," not in clause and "*" not in clause


@dataclass(frozen=True, slots=True)
class Declarations:
    """All of a repository."""

    found: tuple[Declaration, ...]
    files: tuple[str, ...]
    """The files that declare something."""
    problems: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    referred: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Requirements files to those they name by -r or -c."""

    def of(self, distribution: str) -> tuple[Declaration, ...]:
        """Those of one distribution (normalised name); of an image, those whose name begins with it."""
        return tuple(each for each in self.found if concerns(each, distribution))


_IMAGE_NAMES = {"pytorch": "torch"}


def concerns(declaration: Declaration, distribution: str) -> bool:
    """Whether a declaration is about a distribution."""
    if declaration.distribution == distribution:
        return True
    if declaration.kind is not Kind.IMAGE:
        return False
    name = _IMAGE_NAMES.get(declaration.distribution, declaration.distribution)
    return name == distribution or name.startswith(f"{distribution}-")
