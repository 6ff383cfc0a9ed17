"""Asks Claude Code, Codex and OpenCode which skills and experts they list for a folder.

Each is started in the folder with a home of its own, so that a user's skills, settings and logins do not show, and is
read before it would ask a model. What it lists in an empty repository is its own and does not count.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_SECONDS: Final = 90
_CODEX_ROLES: Final = frozenset({"default", "explorer", "worker"})
"""Its own; listed only where a project has roles too."""


class ClientError(ToolError):
    """A client could not be asked, or answered something that is not understood."""

    exit_code = 13
    code = "client"


@dataclass(frozen=True, slots=True)
class Seen:
    """Names that a client lists."""

    skills: frozenset[str]
    experts: frozenset[str]

    def without(self, other: Seen) -> Seen:
        """Return what is listed here and not there."""
        return Seen(self.skills - other.skills, self.experts - other.experts)


def ask(client: str, program: Path, root: Path) -> Seen:
    """Return what a client sees in `root` beyond what it always has. Raises ClientError."""
    with tempfile.TemporaryDirectory(prefix="areal-harness-") as scratch:
        home, empty = Path(scratch) / "home", Path(scratch) / "empty"
        (home / ".codex").mkdir(parents=True)
        (empty / ".git").mkdir(parents=True)
        for name, text in (("HEAD", "ref: refs/heads/main\n"), ("config", "[core]\nrepositoryformatversion = 0\n")):
            (empty / ".git" / name).write_text(text, encoding="utf-8")
        (empty / ".git" / "objects").mkdir()
        (empty / ".git" / "refs").mkdir()
        # Codex shows roles of trusted projects only. JSON's quotes are TOML's too
        tables = [
            f'[projects.{json.dumps(os.fspath(folder))}]\ntrust_level = "trusted"\n' for folder in ((root, empty))
        ]
        (home / ".codex" / "config.toml").write_text("\n".join(tables), encoding="utf-8")
        question = QUESTIONS[client]
        return question(program, root, home).without(question(program, empty, home))


def _claude(program: Path, folder: Path, home: Path) -> Seen:
    """Read the first event of a session, which comes before the missing login is noticed."""
    command = ["-p", "hi", "--output-format", "stream-json", "--verbose"]
    for line in _output(program, command, folder, home, allow_failure=True).splitlines():
        try:
            event = json.loads(line)
        except ValueError as error:
            message = f"printed no JSON: {line[:80]!r}"
            raise ClientError(message, where=os.fspath(program), fix="see its version") from error
        if not isinstance(event, dict):
            continue
        if event.get("type") == "system" and event.get("subtype") == "init":
            return Seen(frozenset(event.get("skills", ())), frozenset(event.get("agents", ())))
    raise ClientError("did not list its skills", where=os.fspath(program), fix="see what it prints in this folder")


def _codex(program: Path, folder: Path, home: Path) -> Seen:
    """Read the whole prompt that a model would be shown: its skills, and the roles of its tool for subagents."""
    document = json.loads(_output(program, ["debug", "prompt-input", "hi"], folder, home))
    skills, experts = set[str](), set[str]()
    for text in _strings(document):
        if "SKILL.md" in text:
            skills |= set(re.findall(r"^- ([^\s:]+): .*SKILL\.md\)?$", text, re.MULTILINE))
        if "agent_type" in text or "Available roles" in text:
            experts |= set(re.findall(r"^([a-z0-9][\w-]*): \{$", text, re.MULTILINE))
    return Seen(frozenset(skills), frozenset(experts - _CODEX_ROLES))


def _opencode(program: Path, folder: Path, home: Path) -> Seen:
    skills = json.loads(_output(program, ["debug", "skill"], folder, home))
    listed = _output(program, ["agent", "list"], folder, home)
    experts = re.findall(r"^(\S+) \((?:subagent|primary|all)\)$", listed, re.MULTILINE)
    return Seen(frozenset(skill["name"] for skill in skills), frozenset(experts))


QUESTIONS: Final[dict[str, Callable[[Path, Path, Path], Seen]]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
}


def _output(program: Path, words: Sequence[str], folder: Path, home: Path, *, allow_failure: bool = False) -> str:
    """Return what a client prints. It prints to a file: one of them cuts its output short in a pipe."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT", "TEMP", "TMP") if name in os.environ}
    kept["PATH"] = os.pathsep.join([os.fspath(program.parent), kept.get("PATH", "")])  # its own node first
    places = {"HOME": home, "USERPROFILE": home, "CODEX_HOME": home / ".codex", "XDG_CONFIG_HOME": home / ".config"}
    environment = kept | {name: os.fspath(place) for name, place in places.items()} | {"NO_COLOR": "1"}
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [os.fspath(program), *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClientError(str(error), where=os.fspath(program), fix="start it by hand in this folder") from error
        output.seek(0)
        text = output.read().decode("utf-8", errors="replace")
    if done.returncode != 0 and not allow_failure:
        said = done.stderr.decode("utf-8", errors="replace").strip()[-500:]
        raise ClientError(f"exit {done.returncode}: {said}", where=os.fspath(program), fix="start it by hand here")
    return text


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for below in value.values():
            yield from _strings(below)
    elif isinstance(value, list):
        for below in value:
            yield from _strings(below)
