"""A scripted agent that knows the values of a task and the text of a skill, and nothing else.

It reads SKILL.md where a client finds it and works from its top to its bottom in a shell of its own:

- a line of a shell block is run, with the task's values in place of the text's examples and placeholders. Each block
  begins in the root of the repository; variables and what was activated stay, as in an agent's shell;
- a line with a word that the task has no value for is left out: the task has no such thing;
- where the text asks to write something, the task's content is written;
- a line may end with another code than 0 when its comment says "fails", or when the page's table explains the code and
  the task expects to meet it.

No command stands in a task. What the text does not say is not done, so a text without a needed step fails here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.harness.checks.commands import SHELLS, is_placeholder, joined
from tooling.harness.evaluation.workspace import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.harness.evaluation.workspace import TaskWorkspace

GATES = "Verify"
"""The section whose commands say whether it is done."""
NO_PLACEHOLDERS = frozenset({"HEAD"})
SECONDS = 1800.0
KEEP = 'code=$?; { export -p; printf "cd %q\\n" "$PWD"; } > "$AGENT_STATE"; exit $code'


class StuckError(Exception):
    """The text does not lead on: a placeholder without a value, a step that fails, nothing that asks for a writing."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What only the task can know. `asked` are the words of the text that ask for it."""

    asked: str
    path: str
    content: str = ""
    """The whole file; or `before` becomes `after` in the one that is there."""
    before: str = ""
    after: str = ""
    undone: bool = False
    """The code is broken on purpose: the latest run of tests has to fail, and the file is put back."""


@dataclass(frozen=True, slots=True)
class SkillTask:
    """What an agent is given besides the text."""

    evaluation: str
    """Its workspace and what judges the result, e.g. "add-reward/1"."""
    values: Mapping[str, str | None] = field(default_factory=dict)
    """A word of the text -> the task's; None: the task has no such thing."""
    writings: tuple[Writing, ...] = ()
    meets: frozenset[int] = frozenset()
    """Exit codes besides 0 that the task leads to; the page has to explain each."""
    settings: tuple[Mapping[str, object], ...] = ()
    """Steps that prepare the workspace before those of the evaluation."""


@dataclass(frozen=True, slots=True)
class Step:
    """A line of a shell block."""

    line: int
    command: str
    section: str
    first: bool
    """Of its block."""


@dataclass(frozen=True, slots=True)
class Played:
    """A step that was done."""

    step: Step
    command: str
    code: int
    seconds: float


def steps_of(text: str) -> Iterator[Step]:
    """Yield the lines of all shell blocks, in order."""
    section, language, block = "", None, []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence and language is None:
            language, block = fence[1], []
        elif fence:
            for position, (begin, command) in enumerate(joined(block) if language in SHELLS else ()):
                yield Step(begin, command, section, position == 0)
            language = None
        elif language is not None:
            block.append((number, line))
        elif line.startswith("## "):
            section = line.removeprefix("## ").strip()


def explained_codes(text: str) -> set[int]:
    """Return the exit codes that the page's tables explain."""
    return {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def asked_at(text: str, words: str) -> int:
    """Return the line on which the text asks for something. Raises StuckError when it does not."""
    found = re.search(r"\s+".join(map(re.escape, words.split())), text)
    if found is None:
        raise StuckError(f"the text does not say {words!r}")
    return text.count("\n", 0, found.start()) + 1


def filled(command: str, values: Mapping[str, str | None]) -> str | None:
    """Return the command with the task's values; None when it has something that the task does not have.

    Raises StuckError for a placeholder that the task has no value for.
    """
    names = sorted(values, key=len, reverse=True)
    whole = "|".join(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)" for name in names)
    used = set(re.findall(whole, command)) if names else set()
    if any(values[name] is None for name in used):
        return None
    text = re.sub(whole, lambda found: values[found[0]] or "", command) if names else command
    for word in shlex.split(text, comments=True):
        name = word.rpartition("/")[2]
        if word not in NO_PLACEHOLDERS and (is_placeholder(word) or re.fullmatch(r"[A-Z]+\.[a-z]+", name)):
            raise StuckError(f"nobody says what {word} is in `{text}`")
    return text


class SkillPlayer:
    """Works through one page in a workspace."""

    def __init__(self, workspace: TaskWorkspace, text: str, task: SkillTask) -> None:
        self.workspace = workspace
        self.text = text
        self.task = task
        self.played: list[Played] = []
        self.left_out: list[Step] = []
        self._variables = self._fresh_shell()

    def play(self) -> list[Played]:
        """Do everything that the text says. Raises StuckError where it does not lead on."""
        steps = list(steps_of(self.text))
        if not any(step.section == GATES for step in steps):
            raise StuckError(f"no command below `## {GATES}`: nobody can say whether it is done")
        asked = [(asked_at(self.text, writing.asked), writing) for writing in self.task.writings]
        things: list[tuple[int, Step | Writing]] = [*((step.line, step) for step in steps), *asked]
        breaks: list[Writing] = []
        for _, thing in sorted(things, key=lambda one: one[0]):
            if isinstance(thing, Step):
                tested = self._take(thing) and "pytest" in thing.command
                while tested and breaks:
                    self._break(breaks.pop(0))
            elif thing.undone:
                breaks.append(thing)
            else:
                self._write(thing)
        if breaks:
            raise StuckError(f"no test is run after the text says {breaks[0].asked!r}")
        return self.played

    def gates(self) -> list[Played]:
        """Return the steps that said whether it is done."""
        return [one for one in self.played if one.step.section == GATES]

    def _take(self, step: Step) -> bool:
        """Run a step; return whether the task has what it takes."""
        command = filled(step.command, self.task.values)
        if command is None:
            self.left_out.append(step)
            return False
        done, seconds = self._shell(command, fresh=step.first)
        self.played.append(Played(step, command, done.returncode, seconds))
        fails = re.search(r"#.*\bfails\b", step.command) is not None
        allowed = {0} | (self.task.meets & explained_codes(self.text))
        if (done.returncode == 0) if fails else (done.returncode not in allowed):
            raise StuckError(f"line {step.line}: `{command}` ends with {done.returncode}:\n{done.stdout[-3000:]}")
        return True

    def _write(self, writing: Writing) -> None:
        target, content = self.workspace.path(writing.path), writing.content
        if writing.before:
            text = target.read_text(encoding="utf-8")
            if text.count(writing.before) != 1:
                raise StuckError(f"{writing.path} does not hold {writing.before!r} once")
            content = text.replace(writing.before, writing.after)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")

    def _break(self, writing: Writing) -> None:
        """Run the latest command on code that was broken on purpose: it has to fail."""
        target, latest = self.workspace.path(writing.path), self.played[-1].command
        kept = target.read_bytes()
        self._write(writing)
        try:
            done, _ = self._shell(latest, fresh=False)
        finally:
            target.write_bytes(kept)
        if done.returncode == 0:
            raise StuckError(f"`{latest}` passes although {writing.before!r} became {writing.after!r}")

    def _fresh_shell(self) -> dict[str, str]:
        """Return what a shell has that was just opened in a clone: nothing of the project is on PATH."""
        variables = environment(self.workspace.root)
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        foreign = [folder for folder in folders if not os.path.exists(os.path.join(folder, "areal-new"))]
        state = self.workspace.root / ".git" / "evaluation" / "agent-shell"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text("")
        for name in ("PYTHONPATH", "VIRTUAL_ENV"):
            variables.pop(name, None)
        return variables | {"PATH": os.pathsep.join(foreign), "AGENT_STATE": os.fspath(state)}

    def _shell(self, command: str, *, fresh: bool) -> tuple[subprocess.CompletedProcess[str], float]:
        back = f"cd {shlex.quote(os.fspath(self.workspace.root))}\n" if fresh else ""
        script = f'. "$AGENT_STATE"\n{back}{command}\n{KEEP}'
        started = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.workspace.root,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
        return done, time.monotonic() - started
