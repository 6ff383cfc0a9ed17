"""A table of scopes out of history: each folder goes to the scope that most commits of it had.

Folders that say the same as the folder above them are left out, so that the table stays as short as the habit is plain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.commit.files import shares
from tooling.commit.habits import HALF_LIFE, OMIT
from tooling.commit.message import parse
from tooling.commit.settings import TYPES, folded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.commit.git import Commit

CLEAR: Final = 0.4
"""Share of a folder's commits that a scope must have to own it, twice that of the next one."""
SUPPORT: Final = 0.7
"""Weight of commits that a folder must have seen; a commit of today about one folder only weighs 1."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What history says."""

    commits: int
    """Those with a conventional header."""
    scoped: int
    paths: dict[str, tuple[str, ...]]
    """Scope -> globs."""
    aliases: dict[str, tuple[str, ...]]
    """Scope -> other spellings that were found."""
    none: tuple[str, ...]
    """Globs of what people left without a scope."""


def learn(commits: Iterable[Commit], files: Sequence[str], *, min_commits: int) -> Learnt:
    """commits: newest first; later ones count more. files: those of the repository now; what is gone gets no row."""
    seen: dict[str, dict[str, float]] = {}
    uses: Counter[str] = Counter()
    spellings: dict[str, Counter[str]] = {}
    whole = 0
    for commit in commits:
        message = parse(commit.message, merge=len(commit.parents) > 1)
        if message.kind != "conventional" or message.type.lower() not in TYPES or not commit.files:
            continue
        whole += 1
        written = message.scopes[0] if message.scopes else ""
        name = folded(written)
        uses[name] += 1
        spellings.setdefault(name, Counter())[written] += 1
        weight = 2 ** (-whole / HALF_LIFE) * (1.0 if name else OMIT)
        for path, share in shares(commit.files):
            for folder in _ancestors(path):
                counts = seen.setdefault(folder, {})
                counts[name] = counts.get(name, 0.0) + weight * share
    frequent = {name for name, count in uses.items() if count >= min_commits and name}
    owners = _owners(seen, frequent, _existing(files))
    usual = {name: spellings[name].most_common(1)[0][0] for name in frequent}
    paths = {usual[name]: tuple(globs) for name, globs in _by_scope(owners, files).items() if name}
    aliases = {
        usual[name]: others
        for name in frequent
        if usual[name] in paths and (others := tuple(sorted(set(spellings[name]) - {usual[name]})))
    }
    none = tuple(_by_scope(owners, files).get("", ()))
    return Learnt(whole, whole - uses[""], dict(sorted(paths.items())), dict(sorted(aliases.items())), none)


def table(learnt: Learnt) -> str:
    """The TOML of what was learnt."""
    lines = ["[tool.areal.commit]"]
    if learnt.none:
        lines += ["# Paths that have no scope on purpose.", f"none = {_list(learnt.none)}"]
    lines += ["", "[tool.areal.commit.scopes]"]
    for name, paths in learnt.paths.items():
        aliases = f", aliases = {_list(learnt.aliases[name])}" if name in learnt.aliases else ""
        lines.append(f"{_key(name)} = {{ paths = {_list(paths)}{aliases} }}")
    return "\n".join(lines) + "\n"


def _owners(seen: dict[str, dict[str, float]], frequent: set[str], existing: set[str]) -> dict[str, str]:
    """The scope of every folder and file that has a clear one, where the folder above it has another."""
    owners: dict[str, str] = {}
    for path in sorted(seen.keys() & existing, key=lambda path: (path.count("/"), path)):
        counts = {name: value for name, value in seen[path].items() if name in frequent or name == ""}
        total = sum(seen[path].values())
        if not counts or total < SUPPORT:
            continue
        name, value = max(counts.items(), key=lambda item: (item[1], item[0]))
        above = _owner_above(owners, path)
        second = max((other for scope, other in counts.items() if scope not in {name, ""}), default=0.0)
        if value / total > CLEAR and value > 2 * second and name != (above or ""):
            owners[path] = name
    return owners


def _owner_above(owners: dict[str, str], path: str) -> str | None:
    parts = path.split("/")
    folders = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
    return next((owners[folder] for folder in folders if folder in owners), None)


def _by_scope(owners: dict[str, str], files: Sequence[str]) -> dict[str, list[str]]:
    plain = set(files)
    found: dict[str, list[str]] = {}
    for path, name in sorted(owners.items()):
        found.setdefault(name, []).append(path if path in plain else f"{path}/**")
    return found


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _existing(files: Sequence[str]) -> set[str]:
    return {folder for path in files for folder in _ancestors(path)}


def _list(items: Sequence[str]) -> str:
    return "[" + ", ".join(_text(item) for item in items) + "]"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else _text(name)


def _text(value: str) -> str:
    """A TOML string: paths may hold anything."""
    import json

    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
