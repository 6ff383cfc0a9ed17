"""Fenced blocks of documentation pages: found, checked without running anything, and run as they stand.

A block of bash, python, yaml or json is checked and, where it says something to do, run. All blocks of a page share one
empty folder, in the order of the page. An HTML comment in the line before a block says what is special about it:

    <!-- file: my_rewards.py -->      the block is the content of this file in the folder
    <!-- exit: 10 -->                 the commands end with this code (the last one; all others with 0)
    <!-- not run: needs a GPU -->     it is checked, and not run, for this reason
    <!-- not checked: a template -->  it is neither checked nor run

Blocks of other languages (text, or none) are output.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from areal.cli.main import parse
from areal.trainer.configuration.source import load_config
from tooling.new.command_line import COMMANDS, command_parser, find_kinds, kind_parser

ROOT = Path(__file__).parents[2]
LANGUAGES = ("bash", "python", "yaml", "json")
OTHER_PROGRAMS = frozenset({"bash", "cat", "cd", "cp", "head", "mkdir", "pip", "python", "source"})
"""First words of commands that are not ours."""
LINKED = ("examples", "scripts")
"""Folders of the repository that the folder of a page has too."""
_BLOCK = re.compile(
    r"(?:^<!-- (?P<word>file|exit|not run|not checked): (?P<value>.+?) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?\n.*?^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block and what its comment says."""

    page: str
    line: int
    """Line of the page where the block begins, from 1."""
    language: str
    text: str
    word: str = ""
    """Which comment stands before it, or nothing."""
    value: str = ""

    @property
    def place(self) -> str:
        """Where to look for it."""
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether there is something to do: fragments of configurations and files are only checked."""
        return self.language in {"bash", "python"} and self.word not in {"file", "not run", "not checked"}


def blocks_of(page: str) -> list[Block]:
    """Blocks of a page, a path below the repository, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            text=found["text"],
            word=found["word"] or "",
            value=found["value"] or "",
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in LANGUAGES
    ]


def prepare(blocks: list[Block], folder: Path) -> None:
    """Put into the folder what a page may use: examples, scripts, and the files that the page shows."""
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for block in blocks:
        if block.word == "file":
            path = folder / block.value
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def check(block: Block, folder: Path) -> None:
    """Check what can be known without running it. The folder is prepared, current, and first in sys.path.

    Raises AssertionError or the error of the part that refuses it.
    """
    if block.word == "not checked":
        return
    if block.language == "bash":
        for words in commands(block.text):
            check_command(words, folder)
    elif block.language == "python":
        _check_python(block)
    elif block.language == "json":
        lines = block.text.splitlines() if block.text.startswith("{") and block.text.count("\n{") else [block.text]
        for line in lines:
            json.loads(line)
    elif block.word == "file":
        load_config(folder / block.value)
    else:
        fragment = folder / "fragment.yaml"
        fragment.write_text(block.text, encoding="utf-8")
        load_config(fragment)


def commands(script: str) -> list[list[str]]:
    """Words of each command of a script: comments, assignments before it and redirections are left out."""
    script = _HEREDOC.sub("", script).replace("\\\n", " ")
    found = []
    for line in script.splitlines():
        for part in re.split(r"&&|\|\||(?<!\|)\|(?!\|)", line):
            words = shlex.split(re.sub(r"\s\d?>{1,2}\s*\S+", "", part), comments=True)
            while words and re.fullmatch(r"\w+=\S*", words[0]):
                words = words[1:]
            if words:
                found.append(words)
    return found


def check_command(words: list[str], folder: Path) -> None:
    """Check that a command exists and that its parser and the schema of configurations accept its arguments."""
    if words[0] == "areal-new":
        check_new(words[1:])
        return
    if words[0] != "areal":
        assert words[0] in OTHER_PROGRAMS, f"{words[0]!r} is neither a command of ours nor in OTHER_PROGRAMS"
        assert words[0] != "bash" or (ROOT / words[1]).is_file(), f"there is no {words[1]}"
        return
    arguments = parse(words[1:])
    assert arguments.command == words[1]
    if "--" in words:
        check_command(words[words.index("--") + 1 :], folder)
    config = getattr(arguments, "config", None)
    if isinstance(config, Path) and (folder / config).is_file():
        load_config(folder / config, list(getattr(arguments, "overrides", [])))


def check_new(words: list[str]) -> None:
    """Check that `areal-new` has the command or kind, and that its parser accepts the arguments."""
    kind = find_kinds(None).get(words[0])
    assert kind or words[0] in COMMANDS, f"areal-new has no {words[0]!r}"
    parser = kind_parser(kind) if kind else command_parser(words[0], find_kinds(None).get(words[1]))
    parser.read(words[1:])


def _check_python(block: Block) -> None:
    """Check that the code compiles and that what it imports of areal exists."""
    tree = ast.parse(block.text, block.place)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "areal":
            module = import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block.place}: {node.module} has no {alias.name}"


def run(block: Block, folder: Path) -> str:
    """Run a block in the folder, with the commands of this environment and a home of its own; return what is wrong."""
    expected = int(block.value) if block.word == "exit" else 0
    program = ["bash", "-ec", block.text] if block.language == "bash" else [sys.executable, "-c", block.text]
    home = folder / ".home"
    home.mkdir(exist_ok=True)
    paths = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": "."}
    done = subprocess.run(
        program, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode == expected:
        return ""
    return (
        f"{block.place} ended with {done.returncode}, expected {expected}\n{block.text}\n"
        f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    )
