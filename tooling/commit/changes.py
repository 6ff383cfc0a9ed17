"""Reads from git what commits change, and what the next one would: files, their kind and share, and Python symbols.

commits(root, "main..HEAD", files=True)
staged = read_staged(root)                 # the index against HEAD
"""

from __future__ import annotations

import ast
import functools
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tooling.cli.errors import UsageError
from tooling.cli.git import Git
from tooling.python.source import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """One file of a commit or of the index. Example: CommittedFile("a/b.py", "M", 3, 1)."""

    path: str
    status: str
    """"A" added, "M" modified, "D" deleted, "R" renamed, "C" copied, "T" of another type."""
    added: int
    """Lines; 0 for binary files."""
    deleted: int
    before: str = ""
    """The old path of a renamed file."""

    @property
    def churn(self) -> int:
        """Lines added and deleted."""
        return self.added + self.deleted


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: two commits by their hashes, or the index with HEAD."""

    before: str = "HEAD"
    after: str = ""
    """"" for the index."""

    @property
    def named(self) -> tuple[str, ...]:
        """The sides as `git diff` wants them."""
        return (self.before, self.after) if self.after else ("--cached",)


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a range; `files` only where they were asked for."""

    hash: str
    parents: tuple[str, ...]
    date: str
    message: str
    files: tuple[CommittedFile, ...] = ()
    author: str = ""
    """Address; only where it was asked for."""


def _git(root: Path) -> Git:
    """Return git with the index that `git commit --only` prepared for its hooks, if there is one."""
    index = os.environ.get("GIT_INDEX_FILE")
    return Git(root, {"GIT_INDEX_FILE": index} if index else {})


def commits(
    root: Path,
    revisions: str,
    *,
    limit: int = 0,
    files: bool = False,
    lines: bool = True,
    authors: bool = False,
    since: str = "",
) -> list[Commit]:
    """Return the commits of a range ("main..HEAD", "HEAD"), newest first, without those that `since` leads to. Without
    `lines` files come without their numbers of lines: ten times as fast, and contents need not be there. Raises
    UsageError for what git does not know."""
    if revisions.startswith("-"):
        raise UsageError("is not a revision", where=revisions, fix="write BASE..HEAD")
    options = [f"--max-count={limit}"] if limit else []
    counted = ["--numstat", "-M", "-l0"] if lines else ["--no-renames"]
    options += ["--raw", *counted, "--diff-merges=off", *DIFF] if files else []
    # Commits hold any character but NUL. An empty field begins each of them, and no field of its files is empty.
    asked = ("%H", "%P", "%cs", "%B", *(["%ae"] if authors else []))
    shape = "--format=" + "".join(f"%x00{each}" for each in asked)
    excluded = [f"^{since}"] if since else []
    output = Git(root).run("log", "-z", shape, *options, "--end-of-options", revisions, *excluded, "--")
    found: list[Commit] = []
    fields, at = output.decode(errors="replace").split("\0"), 1
    while at + len(asked) <= len(fields):
        name, parents, date, message, *author = fields[at : at + len(asked)]
        start = at + len(asked)
        end = fields.index("", start)
        listed = tuple(_files(fields[start:end]))
        found.append(Commit(name, tuple(parents.split()), date, message, listed, "".join(author)))
        at = end + 1
    return found


def changed_files(root: Path, sides: Sides) -> list[CommittedFile]:
    """Return what differs between two sides (in a new repository, between nothing and the index)."""
    output = _git(root).run("diff", "--raw", "--numstat", "-z", "-M", *DIFF, *sides.named, "--")
    return list(_files(output.decode(errors="surrogateescape").split("\0")))


def hunks(root: Path, sides: Sides) -> bytes:
    """Return the unified diff of two sides without context."""
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    return _git(root).run("diff", "-U0", "-M", *prefixes, *DIFF, *sides.named, "--")


def _files(fields: list[str]) -> Iterator[CommittedFile]:
    """Read records of `--raw --numstat -z`: first the states of all files, then their lines."""
    states: dict[str, tuple[str, str]] = {}
    counted = False
    waiting = iter(part.lstrip("\n") for part in fields)
    for part in waiting:
        if part.startswith(":"):
            status, old = part.rsplit(" ", 1)[1][:1], next(waiting)
            new = next(waiting) if status in "RC" else old
            states[new] = (status, old if status in "RC" else "")
        elif part.count("\t") >= 2:
            added, deleted, path = part.split("\t", 2)
            if not path:
                _, path = next(waiting), next(waiting)
            status, old = states.get(path, ("M", ""))
            counted = True
            yield CommittedFile(path, status, _number(added), _number(deleted), old)
    if not counted:  # nobody asked for lines
        yield from (CommittedFile(path, status, 0, 0, old) for path, (status, old) in states.items())


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


Role = Literal["code", "test", "docs", "ci", "build", "agents", "example"]

_CI_FOLDERS: Final = frozenset({".buildkite", ".ci", ".circleci", ".github", ".gitlab"})
_CI_FILES: Final = frozenset({".gitlab-ci.yml", ".pre-commit-config.yaml", "azure-pipelines.yml", "jenkinsfile"})
_AGENTS: Final = frozenset({".agents", ".claude", ".codex", ".cursor", ".opencode"})
_BUILD: Final = frozenset(
    {
        "cargo.toml",
        "cmakelists.txt",
        "constraints.txt",
        "dockerfile",
        "makefile",
        "manifest.in",
        "package.json",
        "pyproject.toml",
        "requirements.txt",
        "setup.cfg",
        "setup.py",
    }
)
_DOCS: Final = (".gif", ".ipynb", ".jpg", ".md", ".png", ".rst", ".svg")
_WEIGHT: Final[dict[Role, float]] = {
    "code": 1.0,
    "example": 1.0,
    "ci": 1.0,
    "build": 0.6,
    "test": 0.35,
    "docs": 0.3,
    "agents": 0.25,
}
"""A commit is named after its code: tests and documents come along with it."""


@functools.cache  # histories name the same paths again and again
def role_of(path: str) -> Role:
    """Return the role of a file. Example: role_of("tests/api/test_x.py") -> "test"."""
    parts = path.lower().split("/")
    name, folders = parts[-1], parts[:-1]
    rules: tuple[tuple[Role, bool], ...] = (
        ("ci", parts[0] in _CI_FOLDERS or name in _CI_FILES),
        ("agents", parts[0] in _AGENTS),
        ("test", name.startswith("test_") or name == "conftest.py" or bool({"tests", "test"} & set(folders))),
        ("docs", name.endswith(_DOCS) or parts[0] in {"blog", "doc", "docs"}),
        ("build", name in _BUILD or name.endswith(".lock") or name.startswith("requirements")),
        ("example", parts[0] == "examples"),
    )
    return next((role for role, holds in rules if holds), "code")


def shares(files: Sequence[CommittedFile]) -> list[tuple[str, float]]:
    """Return each path with its share of the commit; they add up to 1. A long file counts more, but not by as much."""
    weights = [_WEIGHT[role_of(each.path)] * (1 + math.log1p(each.churn)) for each in files]
    total = sum(weights)
    return [(each.path, weight / total) for each, weight in zip(files, weights, strict=True)]


_INDEX: Final = Sides()
MAX_FILES: Final = 60
"""Python files that are parsed, longest changes first: more say nothing new about a commit."""
MAX_BYTES: Final = 2_000_000
_HUNK: Final = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_FILE: Final = re.compile(rb"^diff --git .*$", re.MULTILINE)
_TARGET: Final = re.compile(rb'^\+\+\+ (?:"?)b/(.*?)(?:"?)\t?$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ChangedSymbol:
    """A class or function. Example: ChangedSymbol("areal/api/model.py", "ModelSpec.build", "changed", 12)."""

    path: str
    name: str
    """Qualified inside of its module."""
    what: Literal["added", "removed", "changed", "renamed"]
    lines: int
    """Changed lines in it."""
    before: str = ""
    """The old name of what was renamed."""

    @property
    def public(self) -> bool:
        """Whether users can see it."""
        return not any(part.startswith("_") for part in self.name.split("."))


@dataclass(frozen=True, slots=True)
class Staged:
    """What `git commit` would record."""

    files: tuple[CommittedFile, ...]
    symbols: tuple[ChangedSymbol, ...] = field(default=())


def read_staged(root: Path, sides: Sides = _INDEX) -> Staged:
    """Compare the index with HEAD, unless other sides are named. Files that do not parse have no symbols."""
    files = changed_files(root, sides)
    python = [each for each in files if each.path.endswith(".py") and each.status in "AMDR"]
    python = sorted(python, key=lambda each: (-each.churn, each.path))[:MAX_FILES]
    lines = _hunks(hunks(root, sides)) if python else {}
    # One process for all of them: it takes longer to start than to read a file.
    names = [f"{sides.before}:{each.before or each.path}" for each in python]
    contents = _git(root).blobs([*names, *(f"{sides.after}:{each.path}" for each in python)])
    pairs = zip(python, contents[: len(python)], contents[len(python) :], strict=True)
    found = (_symbols(each, before, after, lines.get(each.path, [])) for each, before, after in pairs)
    symbols = [symbol for of_file in found for symbol in of_file]
    return Staged(tuple(files), tuple(symbols))


def _symbols(
    changed: CommittedFile, before: bytes | None, after: bytes | None, hunks: list[tuple[range, range]]
) -> Iterator[ChangedSymbol]:
    old = _definitions(before) if changed.status != "A" else {}
    new = _definitions(after) if changed.status != "D" else {}
    if old is None or new is None:
        return  # nothing is known about a file that cannot be parsed
    renamed: dict[str, str] = {}
    come, gone = new.keys() - old.keys(), old.keys() - new.keys()
    bodies = Counter(new[name].body for name in come)
    for name in come:
        same = [each for each in gone if old[each].body == new[name].body]
        if len(same) == 1 and bodies[new[name].body] == 1 and name.rpartition(".")[0] == same[0].rpartition(".")[0]:
            renamed[name] = same[0]
    for name, definition in new.items():
        lines = definition.lines
        touched = sum(
            max(0, min(lines.stop, come.stop) - max(lines.start, come.start))
            or (len(gone) if not come and come.start in lines and come.start + 1 in lines else 0)
            for gone, come in hunks
        )
        if name in renamed:
            yield ChangedSymbol(changed.path, name, "renamed", max(1, touched), renamed[name])
        elif name not in old:
            yield ChangedSymbol(changed.path, name, "added", len(lines))
        elif touched:
            yield ChangedSymbol(changed.path, name, "changed", touched)
    for name, definition in old.items():
        if name not in new and name not in renamed.values():
            yield ChangedSymbol(changed.path, name, "removed", len(definition.lines))


@dataclass(frozen=True, slots=True)
class _Definition:
    lines: range
    body: str
    """What it does, whatever it is called."""


def _definitions(content: bytes | None) -> dict[str, _Definition] | None:
    """Return the lines of every class and function of a module, by qualified name."""
    tree = None if content is None or len(content) > MAX_BYTES else parsed(content)
    if content is None or tree is None:
        return None
    found: dict[str, _Definition] = {}
    text = content.decode(errors="replace").split("\n")
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                lines = range(child.lineno, (child.end_lineno or child.lineno) + 1)
                found[name] = _Definition(lines, "\n".join(text[child.body[0].lineno - 1 : lines.stop - 1]))
                if isinstance(child, ast.ClassDef):
                    waiting.append((child, f"{name}."))
            elif isinstance(child, ast.If | ast.Try):
                waiting.append((child, prefix))
    return dict(sorted(found.items(), key=lambda item: item[1].lines.start))


def _hunks(diff: bytes) -> dict[str, list[tuple[range, range]]]:
    """Return the changed lines before and after, by path."""
    found: dict[str, list[tuple[range, range]]] = {}
    starts = [match.start() for match in _FILE.finditer(diff)]
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=True):
        part = diff[start:end]
        target = _TARGET.search(part)
        if target is None:
            continue
        path = target[1].decode(errors="surrogateescape")
        found[path] = [(_lines(hunk[1], hunk[2]), _lines(hunk[3], hunk[4])) for hunk in _HUNK.finditer(part)]
    return found


def _lines(start: bytes, count: bytes | None) -> range:
    first = int(start)
    return range(first, first + (1 if count is None else int(count)))
