"""Makes a table of scopes out of history, for a repository that has none. Prints it; --write adds it to pyproject.toml.

Each folder goes to the scope that most commits of it had. Folders that say the same as the folder above them are left
out, so that the table stays as short as the habit is plain.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.git import Git, find_repository
from tooling.cli.parser import add_changing
from tooling.cli.report import Report, say
from tooling.commit.changes import commits, shares
from tooling.commit.message import parse
from tooling.commit.settings import SECTION, TYPES, folded, read_commit_settings
from tooling.kit.change.plan import Plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from tooling.cli.parser import Parser
    from tooling.commit.changes import Commit


CLEAR: Final = 0.4
"""Share of a folder's commits that a scope must have to own it, twice that of the next one."""
HALF_LIFE: Final = 80
"""Commits after which one counts half."""
OMIT: Final = 0.5
"""Factor on leaving the scope out: a wrong scope is seen and corrected, a missing one is not."""
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
    """Learn a table of scopes. commits: newest first; later ones count more. files: those of the repository now; what
    is gone gets no row."""
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
    existing = {folder for path in files for folder in _ancestors(path)}
    owners = _owners(seen, frequent, existing)
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
    """Return the TOML of what was learnt."""
    lines = ["[tool.areal.commit]"]
    if learnt.none:
        lines += ["# Paths that have no scope on purpose.", f"none = {_list(learnt.none)}"]
    lines += ["", "[tool.areal.commit.scopes]"]
    for name, paths in learnt.paths.items():
        aliases = f", aliases = {_list(learnt.aliases[name])}" if name in learnt.aliases else ""
        bare = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        lines.append(f"{name if bare else _text(name)} = {{ paths = {_list(paths)}{aliases} }}")
    return "\n".join(lines) + "\n"


def _owners(seen: dict[str, dict[str, float]], frequent: set[str], existing: set[str]) -> dict[str, str]:
    """Return the scope of every folder and file that has a clear one, where the folder above it has another."""
    owners: dict[str, str] = {}
    for path in sorted(seen.keys() & existing, key=lambda path: (path.count("/"), path)):
        counts = {name: value for name, value in seen[path].items() if name in frequent or name == ""}
        total = sum(seen[path].values())
        if not counts or total < SUPPORT:
            continue
        name, value = max(counts.items(), key=lambda item: (item[1], item[0]))
        parts = path.split("/")
        folders = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        above = next((owners[folder] for folder in folders if folder in owners), None)
        second = max((other for scope, other in counts.items() if scope not in {name, ""}), default=0.0)
        if value / total > CLEAR and value > 2 * second and name != (above or ""):
            owners[path] = name
    return owners


def _by_scope(owners: dict[str, str], files: Sequence[str]) -> dict[str, list[str]]:
    plain = set(files)
    found: dict[str, list[str]] = {}
    for path, name in sorted(owners.items()):
        found.setdefault(name, []).append(path if path in plain else f"{path}/**")
    return found


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _list(items: Sequence[str]) -> str:
    return "[" + ", ".join(_text(item) for item in items) + "]"


def _text(value: str) -> str:
    """Return a TOML string: paths may hold anything."""
    import json

    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--range", default="HEAD", metavar="BASE..HEAD", help="history to learn from (default: all)")
    parser.add_argument("--min-commits", type=int, default=3, metavar="N", help="leave out rarer scopes (default: 3)")
    parser.add_argument("--write", action="store_true", help="add the table to pyproject.toml")
    add_changing(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Print the table, or add it to pyproject.toml."""
    repository = find_repository(arguments.repo)
    if arguments.min_commits < 1:
        raise UsageError("is not a number of commits", where="--min-commits", fix="write --min-commits 3")
    writing = arguments.write or arguments.dry_run or arguments.diff
    if ".." not in arguments.range and Git(repository.root).commit(arguments.range) is None:
        raise UsageError("there is no history to learn from", where=arguments.range, fix="name a range with commits")
    found = commits(repository.root, arguments.range, files=True)
    learnt = learn(found, repository.files(untracked=False), min_commits=arguments.min_commits)
    if not learnt.paths:
        fix = "lower --min-commits, or write [tool.areal.commit.scopes] by hand"
        raise UsageError(f"no scope is used often enough in {learnt.commits} commits", where=arguments.range, fix=fix)
    plan = Plan(repository.root)
    if writing:
        if read_commit_settings(repository.root).scopes:
            raise ConflictError(
                "there is a table of scopes already; it was kept",
                where=f"{SECTION[:-1]}.scopes]",
                fix="run `areal-commit learn` without --write and take over what is new",
            )
        if arguments.write and not arguments.dry_run:
            from tooling.kit.change.transaction import apply_plan, transaction

            with transaction(repository, wait_seconds=arguments.wait, note=lambda line: say(f"rolled back: {line}")):
                _extend(plan, table(learnt))
                apply_plan(repository, plan)
        else:
            _extend(plan, table(learnt))
    return Report(
        command="areal-commit learn",
        dry_run=writing and not (arguments.write and not arguments.dry_run),
        changes=plan.changes,
        show_diff=arguments.diff,
        changing=writing,
        text=""
        if writing
        else f"# Learnt from {learnt.commits} commits, {learnt.scoped} of them with a scope.\n" + table(learnt),
        data={
            "commits": learnt.commits,
            "scoped": learnt.scoped,
            "scopes": {name: list(paths) for name, paths in learnt.paths.items()},
            "aliases": {name: list(words) for name, words in learnt.aliases.items()},
            "none": list(learnt.none),
            "table": table(learnt),
        },
    )


def _extend(plan: Plan, text: str) -> None:
    """Add the tables at the end; where [tool.areal.commit] is there already, only what it lacks."""
    path = "pyproject.toml"
    present = (plan.read(path) or b"").decode("utf-8")
    if "[tool.areal.commit]" in present:
        text = text[text.index("[tool.areal.commit.scopes]") :]
    gap = "" if not present else "\n" if present.endswith("\n") else "\n\n"
    content = f"{present}{gap}{text}".encode(errors="surrogateescape" if sys.platform != "win32" else "strict")
    plan.write(path, content, reason="the scopes that people chose so far")
