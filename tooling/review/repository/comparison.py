"""The change itself: which files, which lines, which symbols differ between two sides."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.python.module import Function, Module
from tooling.review.repository.git import EMPTY_TREE
from tooling.review.repository.side import INDEX, WORK_TREE, Side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.review.repository.git import ReviewedClone

_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--ignore-submodules=dirty")
_RAW = ("--raw", "--no-abbrev", "-z")
_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file of the change. Lines are 1-based; `added` of the new side, `removed` of the old one."""

    path: str
    old_path: str
    status: str
    """ "A" added, "D" deleted, "M" modified, "R" renamed, "T" type changed."""
    added: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()


@dataclass
class Comparison:
    """Both sides and what differs."""

    base: Side
    head: Side
    files: tuple[ChangedFile, ...]
    title: str
    """ "main..topic", for people."""
    absent: tuple[str, ...] = ()
    """Changed files whose content this repository does not hold: a partial clone."""

    @cached_property
    def by_path(self) -> dict[str, ChangedFile]:
        """New path -> file."""
        return {each.path: each for each in self.files}

    @property
    def added(self) -> int:
        """Number of added lines."""
        return sum(len(each.added) for each in self.files)

    @property
    def removed(self) -> int:
        """Number of removed lines."""
        return sum(len(each.removed) for each in self.files)

    @cached_property
    def symbols(self) -> dict[str, tuple[str, ...]]:
        """Path -> functions and classes with changed lines, innermost names only."""
        found = {}
        for file in self.files:
            seen: set[str] = set()
            for side, path, lines in ((self.head, file.path, file.added), (self.base, file.old_path, file.removed)):
                module = side.module(path) if lines and file.path.endswith(".py") else None
                if module is not None:
                    seen |= {module.symbol_at(line) for line in lines}
            if file.path.endswith(".py"):
                found[file.path] = tuple(sorted(seen - {""}))
        return found

    @cached_property
    def gone(self) -> dict[str, tuple[str, ChangedFile]]:
        """Public top-level names that modules no longer bind: {"areal.api.load": ("load", file)}."""
        found: dict[str, tuple[str, ChangedFile]] = {}
        for file in self.files:
            before = self.base.module(file.old_path) if file.status != "A" else None
            if before is None:
                continue
            after = self.head.module(file.path) if file.status != "D" else None
            if after is None and file.status != "D":
                continue  # unreadable now: nothing is known
            kept = set(after.top_level) if after is not None and file.path == file.old_path else set()
            for name in set(before.top_level) - kept:
                if not name.startswith("_"):
                    found[f"{before.package}.{name}"] = (name, file)
        return found

    @cached_property
    def affected(self) -> tuple[str, ...]:
        """Files outside the change that name something it removed or gave another signature."""
        wanted: dict[str, set[str]] = {}
        for name, path in [*((name, file.old_path) for name, file in self.gone.values()), *self._resigned()]:
            if len(name) > 2:
                # "engine" of "areal/api/engine.py", "api" of "areal/api/__init__.py"
                *folders, stem = path.removesuffix(".py").split("/")
                wanted.setdefault(name, set()).add(folders[-1] if stem == "__init__" and folders else stem)
        paths = [path for path in self.head.grep(wanted, "*.py") if path not in self.by_path] if wanted else []
        self.head.load(paths)
        # A name like `main` is everywhere: who does not name the module either means another one, unless the name is
        # handed on by a package.
        handed_on = self.head.mentioned(wanted, "*__init__.py") if paths else set()
        found = []
        for path in paths:
            text = self.head.text(path) or ""
            mentioned = (name for name in wanted if name in text)
            if any(name in handed_on or any(stem in text for stem in wanted[name]) for name in mentioned):
                found.append(path)
        return tuple(found)

    def modified(self) -> Iterator[tuple[ChangedFile, Module, Module]]:
        """Yield the Python files that both sides have, with how they were and how they are."""
        for file in self.files:
            before = self.base.module(file.old_path) if file.status not in {"A", "D"} else None
            after = self.head.module(file.path) if before is not None else None
            if before is not None and after is not None:
                yield file, before, after

    def _resigned(self) -> Iterator[tuple[str, str]]:
        for file, before, after in self.modified():
            old = _signatures(before)
            now = _signatures(after)
            yield from ((name, file.path) for name, shape in now.items() if old.get(name, shape) != shape)
            yield from ((name, file.path) for name in old if name not in now)


def _signatures(module: Module) -> dict[str, str]:
    """Return what callers of each function, class and method depend on; methods of one name together."""
    found: dict[str, str] = {}
    for node in module.tree.body:
        if isinstance(node, Function):
            found[node.name] = ast.dump(node.args)
        elif isinstance(node, ast.ClassDef):
            made = (each for each in node.body if isinstance(each, Function) and each.name == "__init__")
            fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
            found[node.name] = " ".join([*(ast.dump(each.args) for each in made), *(ast.dump(each) for each in fields)])
            for each in node.body:
                if isinstance(each, Function) and not each.name.startswith("__"):
                    kind = " ".join(ast.unparse(decorator) for decorator in each.decorator_list)
                    found[each.name] = f"{found.get(each.name, '')} {kind} {ast.dump(each.args)}"
    return found


def between(git: ReviewedClone, base: str, head: str) -> Comparison:
    """Compare `head` with where it left `base`."""
    tip = git.require(head, "--head")
    onto = git.require(base, "--base")
    start = git.merge_base(onto, tip)
    if start is None:
        raise UsageError(
            "base and head share no history", where=f"--base {base}", fix="name an ancestor, or fetch more"
        )
    return _compared(git, start, tip, [start, tip], f"{base}..{head}")


def commit_alone(git: ReviewedClone, revision: str) -> Comparison:
    """Compare one commit with its first parent."""
    tip = git.require(revision, "--head")
    start = git.commit(f"{tip}^") or EMPTY_TREE
    return _compared(git, start, tip, [start, tip], revision)


def staged(git: ReviewedClone) -> Comparison:
    """Compare the index with the last commit."""
    start = git.commit("HEAD") or EMPTY_TREE
    return _compared(git, start, INDEX, ["--cached", start], "staged")


def work_tree(git: ReviewedClone) -> Comparison:
    """Compare the work tree with the last commit, new files included."""
    start = git.commit("HEAD") or EMPTY_TREE
    found = _compared(git, start, WORK_TREE, [start], "work tree")
    known = found.by_path
    new = [path for path in git.listed("ls-files", "-z", "--others", "--exclude-standard") if path not in known]
    files = [*found.files]
    for path in sorted(new):
        text = found.head.text(path) or ""
        files.append(ChangedFile(path, path, "A", frozenset(range(1, len(text.splitlines()) + 1))))
    return Comparison(found.base, found.head, tuple(files), found.title)


def _compared(git: ReviewedClone, start: str, tip: str, arguments: list[str], title: str) -> Comparison:
    raw, patch, absent = _diff(git, arguments)
    sections = _sections(patch)
    files: list[ChangedFile] = []
    entries = iter(raw)
    for entry in entries:
        status = entry.rpartition(" ")[2][:1]
        old = next(entries)
        new = next(entries) if status in "RC" else old
        added, removed = next(sections, (frozenset(), frozenset()))
        if status == "T":  # git shows a deletion and an addition
            added = next(sections, (frozenset(), frozenset()))[0]
        files.append(ChangedFile(new, old, status, added, removed))
    base = Side(git, start)
    comparison = Comparison(base, Side(git, tip, _parsed=base._parsed), tuple(files), title, absent)
    comparison.base.load(each.old_path for each in files if each.status != "A")
    comparison.head.load(each.path for each in files if each.status != "D")
    return comparison


def _diff(git: ReviewedClone, arguments: list[str]) -> tuple[list[str], bytes, tuple[str, ...]]:
    """Return the changed files as git lists them, the patch, and the files that neither can be about."""
    try:
        raw = git.listed(*_DIFF, *_RAW, *arguments, "--")
        return raw, git.run(*_DIFF, "-U0", *arguments, "--"), ()
    except UsageError:
        # Renames cannot be told without the contents, nor patches written: leave out what is not here.
        plain = [each for each in _DIFF if each != "--find-renames"] + ["--no-renames"]
        raw = git.listed(*plain, *_RAW, *arguments, "--")
        entries = list(zip(raw[::2], raw[1::2], strict=True))
        absent = git.missing([name for entry, _ in entries for name in entry.split(" ")[2:4]])
        missing = tuple(path for entry, path in entries if absent & set(entry.split(" ")[2:4]))
        if not missing:
            raise
        without = [":(top)", *(f":(top,literal,exclude){path}" for path in missing)]
        kept = [part for entry, path in entries if path not in missing for part in (entry, path)]
        return kept, git.run(*plain, "-U0", *arguments, "--", *without), missing


def _sections(patch: bytes) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    added: set[int] = set()
    removed: set[int] = set()
    started = False
    for line in patch.split(b"\n"):
        if line.startswith(b"diff --git "):
            if started:
                yield frozenset(added), frozenset(removed)
            started, added, removed = True, set(), set()
        elif (match := _HUNK.match(line)) is not None:
            old, old_count, new, new_count = (int(part) if part is not None else 1 for part in match.groups())
            removed |= set(range(old, old + old_count))
            added |= set(range(new, new + new_count))
    if started:
        yield frozenset(added), frozenset(removed)
