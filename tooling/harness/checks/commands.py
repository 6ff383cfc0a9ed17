"""Checks the commands and options that pages mention against the help that the programs print.

Help is what a reader can ask for too; a command whose help fails is a finding, not a guess.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tooling.harness.checks.paths import FileTree


SHELLS = frozenset({"bash", "console", "sh", "shell", "zsh"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_CONNECTORS = frozenset({"&&", "||", "|", ";", "&"})
_REDIRECTIONS = frozenset({">", ">>", "<", "2>", "&>", "<<<"})


def joined(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join lines of a block that end in a backslash with the next; drop prompts."""
    begun: tuple[int, str] | None = None
    for number, line in lines:
        bare = re.sub(r"^\s*\$ ", "", line)
        first, text = (begun[0], begun[1] + bare) if begun else (number, bare)
        if text.endswith("\\"):
            begun = (first, text[:-1] + " ")
            continue
        begun = None
        if text.strip():
            yield first, text
    if begun:
        yield begun


def command_lines(text: str) -> list[list[str]]:
    """Return the simple commands of one line, each as its words, without variables set before it and redirections.

    Raises ValueError for quotes that are not closed.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if word in _CONNECTORS:
            commands.append([])
        elif word in _REDIRECTIONS:
            skip = True
        elif skip:
            skip = False
        elif commands[-1] or not _ASSIGNMENT.fullmatch(word):
            commands[-1].append(word)
    return [command for command in commands if command]


def is_placeholder(word: str) -> bool:
    """Say whether a word stands for something: NAME, KIND, <name>, [options], ..., PACKAGE==VERSION."""
    return bool(re.fullmatch(r"[A-Z][A-Z_]*(?:==.*|\[.*)?|<.*>|\[.*|.*\]|\.\.\.", word))


_SECONDS = 60
_WIDTH = "200"
_PRINTER = """
import contextlib, importlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
for line in sys.stdin:
    main, *sys.argv = json.loads(line)
    sys.argv.append("--help")
    code, output, said = 1, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(said):
        try:
            module, _, function = main.partition(":")
            code = getattr(importlib.import_module(module), function)()
        except SystemExit as ending:
            code = ending.code
        except BaseException:
            traceback.print_exc()
    answers.write(json.dumps([code or 0, output.getvalue(), said.getvalue()]) + "\\n")
    answers.flush()
"""
"""Reads a line of JSON per page, [main, program, word, ...], and answers with [exit code, stdout, stderr]."""
_OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*")
_COMMAND = re.compile(r" {2,8}(?P<name>[a-z][\w-]*)(?: {2,}\S.*)?")
_CHOICES = re.compile(r"\{([^{}\s]+)\}|(?<= )([a-z]\w*(?:\|[a-z]\w*)+)")


@dataclass(frozen=True, slots=True)
class HelpPage:
    """One page of help."""

    commands: frozenset[str] = frozenset()
    """Words that the page lists as commands below this one."""
    needs_command: bool = False
    """Whether the first word has to be one of them."""
    options: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Each with the values it is limited to; empty when it takes any, or none."""
    problem: str = ""
    """Why there is no page."""


class HelpPages:
    """Pages of a repository's console scripts, each asked for once. One process prints them all, one after another."""

    def __init__(self, root: Path, scripts: Mapping[str, str]) -> None:
        """scripts: `[project.scripts]`, name to "module:function"."""
        self._root = root
        self.scripts = dict(scripts)
        self._pages: dict[tuple[str, ...], HelpPage] = {}
        self._process: subprocess.Popen[str] | None = None

    def page(self, program: str, words: tuple[str, ...] = ()) -> HelpPage:
        """Return the help of a program, or of a command below it."""
        key = (program, *words)
        if key not in self._pages:
            self._pages[key] = self._ask(program, words)
        return self._pages[key]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, program: str, words: tuple[str, ...]) -> HelpPage:
        """Let the process print a page; a process that ends, or takes too long, is replaced for the next page."""
        if self._process is None:
            environment = {**os.environ, "COLUMNS": _WIDTH, "PYTHONPATH": os.fspath(self._root), "NO_COLOR": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PRINTER],
                cwd=self._root,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(_SECONDS, process.kill)
        clock.start()
        try:
            process.stdin.write(json.dumps([self.scripts[program], program, *words]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            clock.cancel()
        if not line:
            self.close()
            return HelpPage(problem=f"the process ended, or took more than {_SECONDS} s")
        code, output, said = json.loads(line)
        if code != 0:
            last = (said.strip().splitlines() or ["no message"])[-1]
            return HelpPage(problem=f"exit {code}: {last}")
        return parse_help(output)


def parse_help(text: str) -> HelpPage:
    """Read a page of argparse, or one laid out like it: definitions are on indented lines of their own."""
    options: dict[str, frozenset[str]] = {}
    commands: set[str] = set()
    usage = text.split("\n\n", 1)[0]
    for line in text.splitlines():
        if re.match(r"\s+-", line):
            definition = re.split(r"(?<=\S) {2,}", line.strip())[0]
            values = _CHOICES.search(definition)
            limited = frozenset(re.split(r"[,|]", values[1] or values[2])) if values else frozenset[str]()
            options |= dict.fromkeys(_OPTION.findall(definition.replace(":", "")), limited)
        elif found := _COMMAND.fullmatch(line):
            commands.add(found["name"])
        elif found := re.match(r" {2,8}\{([\w,-]+)\}", line):
            commands |= set(found[1].split(","))
    needed = re.search(r"usage: \S+(?: \[[^\]]*\])* (?:COMMAND|KIND|\{)", usage) is not None
    return HelpPage(frozenset(commands), needed, options)


Problem = tuple[str, str, str]
"""Rule, message, fix."""
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")


class Commands:
    """Judges command lines of one repository."""

    def __init__(self, root: Path, tree: FileTree, pages: HelpPages | None) -> None:
        """pages: None starts no process, and leaves commands and options of ours unjudged."""
        self._root = root
        self._tree = tree
        self._pages = pages
        self._scripts = pages.scripts if pages is not None else {}

    def is_command(self, words: Sequence[str]) -> bool:
        """Say whether a code span is a command line, rather than a name that happens to be a program."""
        program = _program(words[0])
        return program in self._scripts or (len(words) > 1 and (program in {"bash", "make"} or _is_python(program)))

    def problems(self, words: Sequence[str]) -> Iterator[Problem]:
        """Yield the problems of one simple command."""
        program, rest = _program(words[0]), list(words[1:])
        if program in self._scripts:
            yield from self._ours(program, rest)
        elif program == "make":
            makefile = self._root / "Makefile"
            text = makefile.read_text(encoding="utf-8") if makefile.is_file() else ""
            targets = re.findall(r"^([A-Za-z][\w-]*):", text, re.MULTILINE)
            for word in rest:
                if not word.startswith("-") and "=" not in word and word not in targets:
                    yield "command", f"make has no target {word!r}", did_you_mean(word, targets) or "see `make help`"
        elif program in {"bash", "sh"} or _is_python(program):
            yield from self._interpreter(program, rest)
        elif "/" in words[0] and not words[0].startswith((".venv", "/")) and not self._tree.has(words[0]):
            yield "command", f"{words[0]} does not exist", self._tree.suggestion(words[0])
        elif program.startswith("areal") and self._pages is not None:
            fix = did_you_mean(program, self._scripts) or f"there are {', '.join(sorted(self._scripts))}"
            yield "command", f"there is no command {program}", fix

    def _ours(self, program: str, rest: list[str]) -> Iterator[Problem]:
        assert self._pages is not None
        page, path = self._pages.page(program), [program]
        while not page.problem and rest and rest[0] in page.commands and len(path) < 3:
            path.append(rest.pop(0))
            page = self._pages.page(program, tuple(path[1:]))
        name = " ".join(path)
        if page.problem:
            yield "command", f"`{name} --help` fails: {page.problem}", "repair the command"
            return
        if page.needs_command and rest and not rest[0].startswith("-"):
            if not is_placeholder(rest[0]):
                fix = did_you_mean(rest[0], page.commands) or f"see `{name} --help`"
                yield "command", f"`{name}` has no command {rest[0]!r}", fix
                return
            # `areal-new KIND` may be followed by the options of any kind
            below = [self._pages.page(program, (*path[1:], each)) for each in sorted(page.commands)]
            page = HelpPage(options={option: frozenset[str]() for one in (page, *below) for option in one.options})
        for position, word in enumerate(rest):
            if word == "--":
                return
            if not re.match(r"--?[A-Za-z]", word):
                continue
            option, given, value = word.partition("=")
            if option not in page.options:
                fix = did_you_mean(option, page.options) or f"see `{name} --help`"
                yield "option", f"`{name}` has no option {option}", fix
                continue
            choices = page.options[option]
            value = value if given else (rest[position + 1] if position + 1 < len(rest) else "")
            if choices and value and not is_placeholder(value) and value not in choices:
                fix = did_you_mean(value, choices) or f"there are {', '.join(sorted(choices))}"
                yield "option", f"`{name} {option}` does not take {value!r}", fix

    def _interpreter(self, program: str, rest: list[str]) -> Iterator[Problem]:
        """Judge `bash scripts/x.sh --fast`, `python scripts/x.py`, `python -m package.module`."""
        if rest[:1] == ["-m"] and _is_python(program):
            path = self._module(rest[1]) if len(rest) > 1 else ""
            if path is None:
                yield "command", f"there is no module {rest[1]}", "name one of this repository"
            if not path:
                return
            rest = rest[2:]
        elif rest and not rest[0].startswith("-"):
            path = rest.pop(0)
            if is_placeholder(path) or path.startswith("/"):
                return
            if not self._tree.has(path):
                yield "command", f"{path} does not exist", self._tree.suggestion(path)
                return
        else:
            return
        for option in (word.split("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)):
            if option not in {"-h", "--help"} and not self._reads_option(path, option):
                yield "option", f"{path} does not read {option}", "see the file"

    def _module(self, name: str) -> str | None:
        """Return the file of a module; "" for one of another package, None for one that is gone."""
        base = name.replace(".", "/")
        for path in (f"{base}/__main__.py", f"{base}.py"):
            if path in self._tree.files:
                return path
        return None if name.split(".", maxsplit=1)[0] in self._tree.top else ""

    def _reads_option(self, path: str, option: str) -> bool:
        """Say whether a file, or another one of its package, holds the option as a text of its own."""
        text = (self._root / path).read_text(encoding="utf-8", errors="replace")
        if not path.endswith(".py"):
            return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) is not None
        folder = path.rpartition("/")[0]
        package = sorted(one for one in self._tree.files if one.rpartition("/")[0] == folder and one.endswith(".py"))
        mentioning = [text, *((self._root / one).read_text(encoding="utf-8", errors="replace") for one in package)]
        for source in mentioning:
            with contextlib.suppress(SyntaxError):
                nodes = ast.walk(ast.parse(source)) if option in source else ()
                if any(isinstance(node, ast.Constant) and node.value == option for node in nodes):
                    return True
        return False


def _program(word: str) -> str:
    """Return the name of a program, also of one in a virtual environment."""
    return word.rpartition("/")[2] if word.startswith((".venv/bin/", ".venv/Scripts/")) else word


def _is_python(program: str) -> bool:
    return _PYTHON.fullmatch(program) is not None
