"""Find environment variables that a release and a repository use, and judge those that nobody reads any more."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from tooling.python.module import Module, last_name
from tooling.python.source import string_of
from tooling.upgrade.findings import AuditFinding, AuditSeverity, Evidence, FindingKind, InterfaceKind, Replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tooling.upgrade.interfaces.modules import ReleaseModules
    from tooling.upgrade.interfaces.pair import InterfacePair
    from tooling.upgrade.interfaces.repository import RepositoryFile


_NAME = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_STRING = re.compile(r"(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=.*)?$", re.DOTALL)


_VARIABLE_CALLS = frozenset({"delenv", "getenv", "putenv", "setenv", "unsetenv"})
_DESCRIPTOR = rb"\s*(?::[^=\n]*)?=\s*\w*Env\w*\("
"""After the name of a class attribute: `APP_DEPTH = EnvInt(3)` reads the variable of that name."""


@dataclass(frozen=True, slots=True)
class Read:
    """Where a release reads a variable."""

    file: str
    line: int
    source: str


@dataclass(frozen=True, slots=True)
class VariableMention:
    """Where a repository sets or reads one."""

    name: str
    line: int
    column: int = 0
    used: bool = True
    """Whether it is surely the name of a variable, not a string that looks like one."""


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


def find_read(modules: ReleaseModules, name: str) -> Read | None:
    """Where the release reads a variable: os.environ, os.getenv, a table of variables, or a descriptor with "Env" in
    its name that is given the variable's name, as an argument or by its attribute. None if it only sets it, or has it
    nowhere."""
    word = name.encode()
    read = re.compile(
        rb"(?:environ\s*(?:\.\s*(?:get|pop|setdefault)\s*\(|\[)|getenv\s*\(|\w*[Ee][Nn][Vv]\w*\s*\()\s*(?:\w+\s*=\s*)?[\"']"
        + word
        + rb"[\"'](?!\s*\]\s*=[^=])|[\"']"
        + word
        + rb"[\"']\s*(?:not\s+)?(?:in\s+(?:os\.)?environ|:)|(?m:^)[ \t]+"
        + word
        + _DESCRIPTOR
    )
    for path in modules.holding(word):
        content = modules.content(path)
        hit = read.search(content)
        if hit is not None:
            line = content.count(b"\n", 0, hit.start()) + 1
            return Read(path, line, content.splitlines()[line - 1].decode(errors="replace").strip()[:160])
    return None


def mentions_it(modules: ReleaseModules, name: str) -> bool:
    """Whether the name stands anywhere in the release as a string or descriptor, or could be put together there."""
    quoted = re.compile(rb"[\"']" + name.encode() + rb"[\"'=]|\b" + name.encode() + _DESCRIPTOR)
    if any(quoted.search(modules.content(path)) for path in modules.holding(name.encode())):
        return True
    prefix = name.partition("_")[0].encode()
    made = re.compile(rb"f[\"']" + prefix + rb"_\{|[\"']" + prefix + rb"_[\"']\s*\+")
    return any(made.search(modules.content(path)) for path in modules.holding(prefix + b"_"))


def python_mentions(module: Module) -> list[VariableMention]:
    """Strings that are the name of a variable, or set it ("X=1")."""
    documentation = {id(node.value) for node in module.nodes(ast.Expr)}
    used = {id(each) for node in module.parents for each in _keys_of_environment(node)}
    found = []
    for node in module.nodes(ast.Constant):
        hit = _STRING.match(string_of(node) or "") if id(node) not in documentation else None
        if hit is not None:
            found.append(VariableMention(hit["name"], node.lineno, node.col_offset, id(node) in used))
    for word in module.nodes(ast.keyword):
        if word.arg and _STRING.fullmatch(word.arg):
            found.append(VariableMention(word.arg, word.value.lineno, word.col_offset, used=False))
    return found


def _keys_of_environment(node: ast.AST) -> Sequence[ast.AST | None]:
    """What a node uses as names of variables: with os.environ or getenv, or as keys of `env={...}`."""
    if isinstance(node, ast.Subscript) and _is_environment(node.value):
        return [node.slice]
    if isinstance(node, ast.Compare) and _is_environment(node.comparators[0]):
        return [node.left]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = last_name(node.func)
        on_environment = isinstance(node.func, ast.Attribute) and _is_environment(node.func.value)
        if name in _VARIABLE_CALLS or (on_environment and name in {"get", "pop", "setdefault"}):
            return node.args[:1]
    if isinstance(node, ast.keyword) and node.arg == "env" and isinstance(node.value, ast.Dict):
        return node.value.keys
    if isinstance(node, ast.Dict) and any(
        key is None and _is_environment(value) for key, value in zip(node.keys, node.values, strict=True)
    ):
        return node.keys
    return []


def _is_environment(node: ast.expr) -> bool:
    return last_name(node) == "environ"


def text_mentions(content: bytes) -> list[VariableMention]:
    """Names in shell, YAML and Dockerfiles, outside comments."""
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        code = re.split(rb"(?:^|\s)#", line, maxsplit=1)[0]
        for hit in _NAME.finditer(code):
            if not code[hit.end() : hit.end() + 1].isalnum():
                found.append(VariableMention(hit[0].decode(), number, hit.start()))
    return found


def judge_environment(files: Sequence[RepositoryFile], pair: InterfacePair) -> Iterator[AuditFinding]:
    """Warnings for variables that the old release reads and the new one does not know; counts all that it reads.

    Names that the release does not read are the repository's own: AREAL_VLLM."""
    named = [(file, _own_names(file, pair)) for file in files]
    own = set[str]().union(*(names for _, names in named))
    found = _looked_up(pair, pair.old, "variables read", _READS, own, find_read)
    reads = {name: read for name, read in found.items() if read is not None}
    mentioned = _looked_up(pair, pair.new, "variables mentioned", _KNOWN, reads, mentions_it)
    version = pair.new.release.origin.version
    for file, names in named:
        for mention in _mentions(file, pair) if not reads.keys().isdisjoint(names) else ():
            read = reads.get(mention.name)
            if read is None:
                continue
            pair.look(InterfaceKind.VARIABLE, mention.name, file.path, mention.line)
            if not mentioned[mention.name] and pair.is_reached(file, mention.line):
                message = f"{pair.distribution} {version} does not read {mention.name}: it has no effect"
                old = Evidence(read.file, read.line, read.source)
                place = (mention.line, mention.column, mention.line)
                renamed = _renamed(mention.name, read, pair)
                if renamed is not None and not mention.used:
                    renamed = replace(renamed, certain=False)
                kind, severity = FindingKind.ENV_VAR, AuditSeverity.WARNING
                yield pair.finding(file, place, kind, severity, mention.name, message, old=old, replacement=renamed)


def _own_names(file: RepositoryFile, pair: InterfacePair) -> list[str]:
    """Names in a file's text that belong to the package."""
    roots = pair.roots

    def made() -> list[str]:
        return sorted(name for hit in set(_NAME.findall(file.content)) if belongs(name := hit.decode(), roots))

    return pair.files.answer(f"variables {roots} {file.digest}", made)


def _mentions(file: RepositoryFile, pair: InterfacePair) -> list[VariableMention]:
    def made() -> list[tuple[str, int, int, bool]]:
        if file.kind != "python":
            found = text_mentions(file.content)
        else:
            found = python_mentions(file.module) if file.module is not None else []
        return [(each.name, each.line, each.column, each.used) for each in found]

    return [VariableMention(*row) for row in pair.files.answer(f"mentions {file.kind} {file.digest}", made)]


_READS: TypeAdapter[dict[str, Read | None]] = TypeAdapter(dict[str, Read | None])
_KNOWN: TypeAdapter[dict[str, bool]] = TypeAdapter(dict[str, bool])
_Found = TypeVar("_Found")


def _looked_up(
    pair: InterfacePair,
    modules: ReleaseModules,
    what: str,
    adapter: TypeAdapter[dict[str, _Found]],
    names: Iterable[str],
    look: Callable[[ReleaseModules, str], _Found],
) -> dict[str, _Found]:
    """What is known of each name; all files of a release are searched once for each."""
    store = pair.store(modules)
    known = store.read(what, adapter) or {}
    new = {name: look(modules, name) for name in sorted(names) if name not in known}
    if new:
        store.write(what, adapter, known | new)
    return {name: (known | new)[name] for name in sorted(names)}


def _renamed(name: str, read: Read, pair: InterfacePair) -> Replacement | None:
    """The variable that the same line reads now; certain where the line keeps what it read under a
    name that shares a word with both, besides their first:

    CACHE = os.environ.get("UP_CACHE")     ->     CACHE = os.environ.get("UP_CACHE_DIR")
    """
    if read.file not in pair.new.paths.values():
        return None
    before = pair.old.content(read.file)
    wanted = read.source.encode().replace(name.encode(), b"?")
    found = set()
    for line in pair.new.content(read.file).splitlines():
        for hit in set(_NAME.findall(line)):
            if hit not in before and line.strip().replace(hit, b"?") == wanted:
                found.add(hit.decode())
    if len(found) != 1:
        return None
    kept = re.match(r"(\w+)\s*(?::[^=]*)?=[^=]", read.source)
    instead = found.pop()
    shared = set(name.split("_")[1:]) & set(instead.split("_")[1:])
    certain = kept is not None and kept[1] != name and not shared.isdisjoint(kept[1].upper().split("_"))
    return Replacement(instead, "the same line reads it now", certain=certain)
