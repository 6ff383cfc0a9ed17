"""Where else a repository names a unit that is renamed, and the rewriting of what cannot mean anything else.

Symbols, dotted modules and paths of the unit are unmistakable as whole words: in Python, YAML, TOML and Markdown they
can be rewritten. The bare registry key ("digits") may mean many things; it is only reported, where it is a value.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.receipts import RECEIPTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tooling.cli.git import Repository
    from tooling.kit.change.plan import Plan
    from tooling.kit.receipts import Receipt

REWRITABLE = (".md", ".py", ".pyi", ".toml", ".yaml", ".yml")
_LONGEST_TEXT = 160
"""Characters of a line that a report shows."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Old words and their new ones. Example: {"digits_reward": "numbers_reward", "areal.reward.digits":
    "areal.reward.numbers"}, key "digits"."""

    words: Mapping[str, str]
    key: str

    def apply(self, text: str) -> str:
        """The text with every whole-word occurrence replaced, all at once."""
        if not self.words:
            return text
        return self._pattern().sub(lambda found: self.words[found.group()], text)

    def apply_bytes(self, content: bytes) -> bytes:
        """The same for a file's content; what is not UTF-8 stays as it is."""
        try:
            return self.apply(content.decode("utf-8")).encode("utf-8")
        except UnicodeDecodeError:
            return content

    def mentioned(self, line: str) -> bool:
        """Whether a line still names the unit: by a word, or by its key as a value."""
        if self.words and self._pattern().search(line):
            return True
        key = re.escape(self.key)
        return bool(re.search(rf"""["'`]{key}["'`]|[=:][ \t]*{key}(?![\w.(])|\bimport[ \t]+{key}\b""", line))

    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.words, key=lambda word: (-len(word), word))
        return re.compile(r"(?<![\w/])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w])")


def rewriting(receipt: Receipt, symbols: Iterable[str], paths: Mapping[str, str]) -> Rewriting:
    """What changes its name with a unit: symbols (in the receipt's order), files (old path -> new) and modules."""
    words = {old: new for old, new in zip(receipt.symbols, symbols, strict=False) if old != new}
    for old, new in paths.items():
        if old == new:
            continue
        words[old] = new
        if old.endswith(".py") and new.endswith(".py"):
            words[_module(old)] = _module(new)
    return Rewriting(words, receipt.names.key)


def rewrite_references(
    plan: Plan, repository: Repository, change: Rewriting, own: Iterable[str], *, skipped: Iterable[str] = ()
) -> None:
    """Put the rewriting of every other file into the plan; `own` files are the caller's, `skipped` folders stay."""
    folders = tuple(f"{folder}/" for folder in skipped)
    for path in _candidates(repository, change, own):
        if PurePosixPath(path).suffix not in REWRITABLE or path.startswith(folders):
            continue
        content = _read(plan, path)
        if content is not None and (rewritten := change.apply_bytes(content)) != content:
            plan.write(path, rewritten, reason="names the renamed unit")


def find_references(plan: Plan, repository: Repository, change: Rewriting, own: Iterable[str]) -> tuple[str, ...]:
    """Lines that still name the unit after the plan, "path:line: text", by path."""
    found: list[str] = []
    for path in _candidates(repository, change, own):
        content = _read(plan, path)
        if content is None:
            continue
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
            if change.mentioned(line):
                found.append(f"{path}:{number}: {line.strip()[:_LONGEST_TEXT]}")
    return tuple(found)


def _module(path: str) -> str:
    """Dotted name of a Python file: "areal/reward/digits.py" -> "areal.reward.digits"."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _candidates(repository: Repository, change: Rewriting, own: Iterable[str]) -> list[str]:
    """Text files of the repository that hold one of the words; receipts belong to their units."""
    skipped = {*own}
    listed = _grep(repository, sorted({*change.words, change.key}))
    return [path for path in listed if path not in skipped and not path.startswith(f"{RECEIPTS}/")]


def _grep(repository: Repository, words: list[str]) -> list[str]:
    """Files, new ones included, that hold any of the words somewhere; binary files are left out."""
    patterns = [part for word in words for part in ("-e", word)]
    command = ["git", "grep", "--untracked", "-l", "-z", "-I", "--fixed-strings", *patterns, "--", "."]
    with repository.git() as repo:
        status, output, complaint = repo.git.execute(
            command, with_extended_output=True, with_exceptions=False, stdout_as_string=False
        )
    if status not in (0, 1):
        raise UsageError(f"`git grep` failed: {complaint}", where=os.fspath(repository.root))
    listed = output if isinstance(output, bytes) else os.fsencode(output)
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


def _read(plan: Plan, path: str) -> bytes | None:
    try:
        return plan.read(path)
    except ConflictError:
        return None  # a link or a folder is not text of ours
