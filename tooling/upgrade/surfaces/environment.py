"""Environment variables: those a release reads, and where a repository sets or reads them.

Looked up for the names that the repository uses, never listed: whether a release knows a variable is whether its name
stands in it as a string.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.surfaces.modules import Modules

_NAME = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_STRING = re.compile(r"(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=.*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Read:
    """Where a release reads a variable."""

    file: str
    line: int
    source: str


@dataclass(frozen=True, slots=True)
class Mention:
    """Where a repository sets or reads one."""

    name: str
    line: int
    column: int = 0


def belongs(name: str, roots: Iterable[str]) -> bool:
    """Whether a variable is named after a package: others (HOME, NCCL_DEBUG) are read by many."""
    parts = name.split("_")
    for root in roots:
        word = root.split(".")[-1 if root.startswith("megatron") else 0].upper().replace("_", "")
        if any(part == word or (len(part) >= 3 and word.startswith(part) and part == parts[0]) for part in parts[:2]):
            return True
        if parts[0].endswith(word):  # PYTORCH_
            return True
    return False


def find_read(modules: Modules, name: str) -> Read | None:
    """Where the release reads a variable: os.environ, os.getenv, a table of variables, or a descriptor with "Env" in
    its name. None if it only sets it, or has it nowhere."""
    word = name.encode()
    read = re.compile(
        rb"(?:environ\s*(?:\.\s*(?:get|pop|setdefault)\s*\(|\[)|getenv\s*\(|\w*[Ee][Nn][Vv]\w*\s*\()\s*(?:\w+\s*=\s*)?[\"']"
        + word
        + rb"[\"'](?!\s*\]\s*=[^=])|[\"']"
        + word
        + rb"[\"']\s*(?:not\s+)?(?:in\s+(?:os\.)?environ|:)"
    )
    for path in modules.holding(word):
        content = modules.content(path)
        hit = read.search(content)
        if hit is not None:
            line = content.count(b"\n", 0, hit.start()) + 1
            return Read(path, line, content.splitlines()[line - 1].decode(errors="replace").strip()[:160])
    return None


def mentions_it(modules: Modules, name: str) -> bool:
    """Whether the name stands anywhere in the release as a string, or could be put together there."""
    quoted = re.compile(rb"[\"']" + name.encode() + rb"[\"'=]")
    if any(quoted.search(modules.content(path)) for path in modules.holding(name.encode())):
        return True
    prefix = name.partition("_")[0].encode()
    made = re.compile(rb"f[\"']" + prefix + rb"_\{|[\"']" + prefix + rb"_[\"']\s*\+")
    return any(made.search(modules.content(path)) for path in modules.holding(prefix + b"_"))


def python_mentions(tree: ast.Module) -> list[Mention]:
    """Strings that are the name of a variable, or set it ("X=1")."""
    found = []
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            hit = _STRING.match(node.value)
            if hit is not None:
                found.append(Mention(hit["name"], node.lineno, node.col_offset))
        elif isinstance(node, ast.keyword) and node.arg and _STRING.fullmatch(node.arg):
            found.append(Mention(node.arg, node.value.lineno, node.col_offset))
    return found


def text_mentions(content: bytes) -> list[Mention]:
    """Names in shell, YAML and Dockerfiles, outside comments."""
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        code = re.split(rb"(?:^|\s)#", line, maxsplit=1)[0]
        for hit in _NAME.finditer(code):
            if not code[hit.end() : hit.end() + 1].isalnum():
                found.append(Mention(hit[0].decode(), number, hit.start()))
    return found
