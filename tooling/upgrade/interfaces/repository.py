"""List a repository's files that name interfaces, with the version guards of Python ones."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.python.condition_reader import read_condition
from tooling.python.conditions import CompareVersion, Condition, Not, answer_by_version, describe, evaluate
from tooling.python.guard_values import GuardDefinition, GuardSymbol
from tooling.python.module import Module
from tooling.python.source import dotted_name, module_name, parsed
from tooling.upgrade.declarations.find import repository_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tooling.python.conditions import Probe


Spans = list[tuple[int, int, Condition]]


class _Scope:
    """Names of a module: what is defined and assigned at its top level, and imports."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def find(self, name: str) -> object:
        """See `GuardScope`."""
        found = self._module.top_level.get(name)
        if isinstance(found, ast.FunctionDef):
            return GuardDefinition(found, self)
        if isinstance(found, ast.Assign) and name in map(dotted_name, found.targets):
            return GuardDefinition(found.value, self)
        imported = self._module.imported.get(name)
        return GuardSymbol(imported) if imported is not None else None

    def symbol(self, dotted: str, level: int = 0) -> object:
        """See `GuardScope`."""
        return None


class Guards:
    """The guarded lines of one file."""

    def __init__(self, module: Module) -> None:
        self._scope = _Scope(module)
        self._spans: Spans = []
        for node in ast.walk(module.tree):
            self._spans += self._of(node)

    def _of(self, node: ast.AST) -> Iterator[tuple[int, int, Condition]]:
        if isinstance(node, ast.If | ast.IfExp):
            test = read_condition(node.test, self._scope)
            body = node.body if isinstance(node.body, list) else [node.body]
            other = node.orelse if isinstance(node.orelse, list) else [node.orelse]
            for part, condition in ((body, test), (other, Not(test))):
                if part:
                    yield part[0].lineno, part[-1].end_lineno or part[-1].lineno, condition
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                yield from self._early(block)

    def _early(self, block: list[ast.stmt]) -> Iterator[tuple[int, int, Condition]]:
        """`if old: return` keeps the rest of its block from the old version."""
        for index, node in enumerate(block[:-1]):
            ends = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
            if ends and isinstance(node, ast.If):
                last = block[-1]
                condition = Not(read_condition(node.test, self._scope))
                yield block[index + 1].lineno, last.end_lineno or last.lineno, condition

    def skipped(self, versions: dict[str, str]) -> list[tuple[int, int]]:
        """First and last of the lines that are not reached with these versions (import names and distributions to
        version)."""
        answers = _answers(versions)
        return [(first, last) for first, last, condition in self._spans if evaluate(condition, answers) is False]

    def around(self, line: int) -> list[Condition]:
        """The conditions that a line stands under."""
        return [condition for first, last, condition in self._spans if first <= line <= last]

    def words(self, line: int, versions: dict[str, str]) -> str:
        """Those that have to do with the versions, for a report."""
        return " and ".join(
            describe(each) for each in self.around(line) if evaluate(each, _answers(versions)) is not None
        )


def _answers(versions: dict[str, str]) -> Callable[[Probe], bool | None]:
    def answer(probe: Probe) -> bool | None:
        if not isinstance(probe, CompareVersion) or probe.subject not in versions:
            return None
        return answer_by_version(versions[probe.subject], probe)

    return answer


_KINDS = (
    (re.compile(r"\.py$"), "python"),
    (
        re.compile(
            r"\.(sh|bash|zsh|slurm|sbatch|env|envrc|just|mk)$|(^|/)(Makefile|[Jj]ustfile|\.env\.[\w.]+)$|(^|/)\.ci/[^/.]+$"
        ),
        "shell",
    ),
    (
        re.compile(r"(^|/)[^/]*(Dockerfile|Containerfile)(?![^/]*\.(md|rst|txt|py|html)$)[^/]*$|\.dockerfile$", re.I),
        "docker",
    ),
    (re.compile(r"\.ya?ml$"), "yaml"),
    (re.compile(r"(^|/)(pyproject\.toml|tox\.ini|setup\.cfg|Procfile|supervisord[^/]*)$|\.service$"), "settings"),
    (re.compile(r"\.md$"), "page"),
)
_FENCE = re.compile(rb"(?ms)^[ \t]*```[ \t]*(?:bash|sh|shell|zsh)[ \t]*$(.*?)^[ \t]*```")
_LIMIT = 2_000_000


@dataclass(eq=False)
class RepositoryFile:
    """One file."""

    path: str
    kind: str
    content: bytes

    @cached_property
    def digest(self) -> str:
        """Of the content."""
        return hashlib.sha256(self.content).hexdigest()[:32]

    @cached_property
    def lines(self) -> list[bytes]:
        """Of the content, as `ast` counts them."""
        return self.content.splitlines()

    @cached_property
    def module(self) -> Module | None:
        """Of a Python file that can be parsed."""
        tree = parsed(self.content) if self.kind == "python" else None
        return Module(self.path, tree, module_name(self.path)[0]) if tree is not None else None

    @cached_property
    def guards(self) -> Guards | None:
        """Version guards of a Python file."""
        return Guards(self.module) if self.module is not None else None

    @cached_property
    def text(self) -> str:
        """Decoded; what is not UTF-8 is replaced."""
        return self.content.decode("utf-8", errors="replace")


def file_kind(path: str) -> str | None:
    """Return what a file is read as: "python", "shell", "docker", "yaml", "settings", or "page" for one whose commands
    people run; None for one that is not read."""
    return next((kind for pattern, kind in _KINDS if pattern.search(path)), None)


def source_files(root: Path, *, scope: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[RepositoryFile]:
    """All of a repository, by path. scope: folders or files to look at; all when empty."""
    found = []
    for path in repository_files(root):
        kind = file_kind(path)
        if kind is None or _inside(path, exclude) or (scope and not _inside(path, scope)):
            continue
        file = root / path
        try:
            if file.is_symlink() or not file.is_file() or file.stat().st_size > _LIMIT:
                continue
            content = file.read_bytes()
            found.append(RepositoryFile(path, kind, _blocks(content) if kind == "page" else content))
        except OSError:
            continue
    return found


def _blocks(content: bytes) -> bytes:
    """A page with nothing but its blocks of commands, each in its line."""
    kept = (
        bytearray(b"\n" * content.count(b"\n"))
        if b"```" not in content
        else bytearray(re.sub(rb"[^\n]", b" ", content))
    )
    for hit in _FENCE.finditer(content):
        kept[hit.start(1) : hit.end(1)] = hit[1]
    return bytes(kept)


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)
