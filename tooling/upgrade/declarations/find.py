"""Which files of a repository declare versions, and what they declare.

    find_declarations(Path(".")).of("vllm")

Links are not followed, files over 2 MB are left alone; a file that cannot be read becomes a line in `problems`.
"""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.cli.errors import ToolError
from tooling.cli.git import Git
from tooling.cli.toml import TOMLError, parse_toml, table_in
from tooling.upgrade.declarations import commands, python_projects
from tooling.upgrade.declarations.declaration import Declarations, ManifestText, read_requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declaration

    Reader = Callable[[ManifestText], Iterator[Declaration]]

_SKIPPED = frozenset(
    {".direnv", ".eggs", ".git", ".hg", ".nox", ".pixi", ".tox", ".venv", "__pycache__", "build", "dist"}
    | {"node_modules", "site-packages", "venv"}
)
_STRANGE = frozenset(
    {"test", "tests", "testing", "fixtures", "docs", "doc", "templates", "third_party", "vendor", "3rdparty", "assets"}
)
"""Folders whose manifests speak of other projects, or of samples."""
_LIMIT = 2_000_000


_DOCKER = re.compile(r"[^/]*(Dockerfile|Containerfile)(?!.*\.(md|rst|txt|html)$)|[^/]+\.dockerfile$", re.IGNORECASE)


_READERS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"pyproject([.-][\w-]+)?\.toml$"), python_projects.read_pyproject),
    (re.compile(r"[^/]*(requirements|constraints)[^/]*\.(txt|in)$"), read_requirements),
    (re.compile(r"setup\.cfg$"), python_projects.read_setup_cfg),
    (re.compile(r"setup\.py$"), python_projects.read_setup_py),
    (re.compile(r"(conda[-_.]?)?env(ironment)?[^/]*\.ya?ml$"), commands.read_environment),
    (re.compile(r"\.pre-commit-config\.ya?ml$"), commands.read_pre_commit),
    (_DOCKER, commands.read_commands),
    (re.compile(r"(docker-)?compose[^/]*\.ya?ml$|(\.gitlab-ci|azure-pipelines)\.ya?ml$"), commands.read_commands),
    (re.compile(r"[^/]+\.sh$|Makefile$|justfile$|tox\.ini$|noxfile\.py$"), commands.read_commands),
)
_CI = re.compile(r"(^|/)\.(github|ci|circleci|gitlab|buildkite|devcontainer)/(.*/)?([^/]+\.(ya?ml|sh|json)|[^./]+)$")


def manifest_table(folder: Path, *keys: str) -> dict[str, Any]:
    """Return the table below these keys of a folder's pyproject.toml; {} where there is none that can be read."""
    try:
        return table_in(parse_toml((folder / "pyproject.toml").read_bytes()), *keys)
    except (OSError, *TOMLError):
        return {}


def project_name(folder: Path) -> str:
    """Return the normalised name of the project in a folder; "" where its pyproject.toml says none."""
    return canonicalize_name(str(manifest_table(folder, "project").get("name", "")))


def find_declarations(root: Path) -> Declarations:
    """All declarations of the repository at `root`, by path and line."""
    found: list[Declaration] = []
    problems: list[str] = []
    files: list[str] = []
    for path in repository_files(root):
        reader = None if _STRANGE & set(path.split("/")[:-1]) else _reader(path)
        text = None if reader is None else _text(root / path, path, problems)
        if reader is None or text is None:
            continue
        try:
            declarations = list(reader(ManifestText(path, text)))
        except (SyntaxError, ValueError, tomllib.TOMLDecodeError, RecursionError) as error:
            problems.append(f"{path}: cannot be read: {error}")
            continue
        if declarations:
            files.append(path)
        found += declarations
    return Declarations(tuple(sorted(set(found))), tuple(files), tuple(problems))


def read_declarations(path: str, text: str) -> list[Declaration]:
    """Those of one text, read as a file of that name. Raises SyntaxError or ValueError for damaged ones."""
    reader = _reader(path)
    return [] if reader is None else list(reader(ManifestText(path, text)))


def _reader(path: str) -> Reader | None:
    name = path.rpartition("/")[2]
    reader = next((read for pattern, read in _READERS if pattern.match(name)), None)
    if reader is None and re.search(r"(^|/)requirements/[^/]+\.(txt|in)$", path):
        return read_requirements
    if reader is None and _CI.search(path):
        return commands.read_commands
    return reader


def _text(file: Path, path: str, problems: list[str]) -> str | None:
    try:
        if file.is_symlink() or not file.is_file():
            return None
        if file.stat().st_size > _LIMIT:
            problems.append(f"{path}: larger than {_LIMIT} bytes, not read")
            return None
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {error}")
        return None


def repository_files(root: Path) -> list[str]:
    """Paths of the files of a checkout, or of a folder in one, sorted: what git lists (ignored files excluded), or a
    walk without build folders where there is no git, or it ignores the whole folder."""
    listed: list[str] = []
    if any((folder / ".git").exists() for folder in (root, *root.parents)):
        with suppress(ToolError):  # no git program, or a folder it refuses: the walk sees the same files
            listed = Git(root).listed("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted(set(listed or _walk(root)))


def _walk(root: Path) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name
            for name in names
            if name not in _SKIPPED
            and not name.endswith(".egg-info")
            and not (name.startswith(".") and name.endswith("cache"))
            # A virtual environment may have any name, and `env` is mostly one of what agents act in.
            and not any(os.path.exists(os.path.join(folder, name, mark)) for mark in ("pyvenv.cfg", "conda-meta"))
        )
        base = os.path.relpath(folder, root)
        for name in files:
            yield name if base == "." else f"{base}/{name}".replace(os.sep, "/")
