"""Starts an agent program with a prompt: without questions, in the workspace, allowed to edit it.

A further one is a line of the table; any other program is given as a command line that the prompt is put behind.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.harness.evaluation.workspace import environment

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENTS: Final[dict[str, tuple[str, ...]]] = {
    "claude": ("claude", "--output-format", "json", "--permission-mode", "acceptEdits", "--allowedTools", "Bash", "-p"),
    "codex": ("codex", "exec", "--sandbox", "workspace-write", "--add-dir", ".git", "--skip-git-repo-check"),
    "opencode": ("opencode", "run"),
}
"""Codex does not touch `.git` without that option, and some tasks are to commit."""
PLACE: Final = "{prompt}"


@dataclass(frozen=True, slots=True)
class AgentAttempt:
    """What an agent did besides changing the repository."""

    exit_code: int
    seconds: float
    output: str


def command_of(agent: str, folder: Path | None) -> tuple[str, ...]:
    """Return the command line of an agent. Raises UsageError when there is no such program."""
    try:
        words = AGENTS.get(agent) or tuple(shlex.split(agent))
    except ValueError as error:
        raise UsageError(f"no command line: {error}", where=f"--agent {agent}", fix="close the quote") from error
    program = shutil.which(words[0], path=os.fspath(folder)) if words and folder else None
    program = program or (shutil.which(words[0]) if words else None)
    if program is None:
        known = ", ".join(AGENTS)
        fix = f"name {known}, or a command line; --clients FOLDER says where the programs are"
        raise UsageError("no such program", where=f"--agent {agent}", fix=fix)
    return (os.fspath(Path(program).absolute()), *words[1:])


def attempt(words: Sequence[str], prompt: str, folder: Path, *, seconds: float) -> AgentAttempt:
    """Let an agent work. The prompt is one argument, in place of {prompt} or behind all others; the user's own settings
    and login are the agent's, everything else is the workspace's. What it prints is kept, and never run."""
    line = [word.replace(PLACE, prompt) for word in words] if any(PLACE in word for word in words) else [*words, prompt]
    mine = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    theirs = environment(folder)
    programs = os.pathsep.join([os.path.dirname(line[0]), theirs["PATH"]])
    own = {name: theirs[name] for name in ("PYTHONPATH", "GIT_TERMINAL_PROMPT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")}
    started = time.monotonic()
    try:
        done = subprocess.run(
            line,
            cwd=folder,
            env={**mine, **own, "PATH": programs, "PWD": os.fspath(folder)},  # some ask PWD where they are
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        code, output = 124, f"{said}\ntook longer than {seconds:g} s"
    except OSError as error:
        raise UsageError(f"cannot be started: {error.strerror}", where=line[0], fix="start it by hand") from error
    return AgentAttempt(code, time.monotonic() - started, output)
