"""Find environments that a script makes for itself, and what it installs into each.

    VENV=.venv-engine
    case "$kind" in cpu) want="engine-cpu==1.0" ;; cuda) want="engine==1.0" ;; esac
    uv venv "$VENV"
    uv pip install --python "$VENV/bin/python" "$want"

is the environment `.venv-engine` with two installs, `engine-cpu==1.0` and `engine==1.0`: only one of them is made on a
machine, and each has to resolve on its own. Shell is read by pattern, not run: variables are followed through all their
assignments, and a command whose words depend on anything else is left out.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tooling.upgrade.declarations.declaration import read_requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_INSTALLS: Final = 16
"""Ways to expand one command that are followed."""
MOST_STEPS: Final = 8
"""Variables that name variables."""
_ASSIGNMENT = re.compile(
    r"(?:^|[;({\s])(?P<name>[A-Za-z_]\w*)=(?P<value>\([^()]*\)|\"[^\"$]*(?:\$\{?\w+\}?[^\"$]*)*\"|'[^']*'|[^\s;()\"']+)",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?:\[[@*]\])?\}|(?P<bare>\w+))")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_ENDS = re.compile(r"&&|\|\||[;|\n]|\d?>")
_INSTALL = re.compile(r"(?P<program>\S*\buv\"?\s+pip|\S*\bpip3?\"?)\s+install\b")
_MAKES = re.compile(r"\buv\"?\s+venv\b|-m\s+venv\b|\bvirtualenv\b")
_FOLDER = re.compile(r"(?P<folder>[\w./-]+?)/bin/\w[\w.]*$")
_TARGETS: Final = frozenset({"--python", "-p"})
_WITH_FILE: Final = {
    "-c": "constraints",
    "--constraint": "constraints",
    "--constraints": "constraints",
    "--override": "overrides",
    "--overrides": "overrides",
}
_WITH_VALUE: Final = frozenset(
    {"-i", "--index-url", "--default-index", "--index", "--extra-index-url", "-f", "--find-links", "--index-strategy"}
    | {"--torch-backend", "--python-version", "--python-platform", "--exclude-newer", "--only-binary", "--no-binary"}
)
_PROJECT: Final = frozenset({"-e", "--editable", "-r", "--requirement", "--requirements", "--group"})


@dataclass(frozen=True, slots=True)
class Install:
    """Packages that are installed together by one command of a script."""

    requirements: tuple[str, ...]
    """As written, variables replaced: ("engine==1.0", "triton==3.9.0")."""
    constraints: tuple[str, ...] = ()
    """Files, relative to the repository."""
    overrides: tuple[str, ...] = ()

    def __str__(self) -> str:
        """ "engine==1.0 triton==3.9.0"."""
        return " ".join(self.requirements)


@dataclass(frozen=True, slots=True)
class ScriptEnvironment:
    """An environment that a script makes for itself."""

    folder: str
    """Relative to the repository: ".venv-engine"."""
    installs: tuple[Install, ...] = field(default=())
    """Alternatives and steps; each resolves on its own."""

    @property
    def name(self) -> str:
        """ ".venv-engine" is "engine"."""
        last = self.folder.rstrip("/").rpartition("/")[2]
        return re.sub(r"^\.?v?env[-_.]?", "", last) or last.lstrip(".")


def script_environments(text: str) -> tuple[ScriptEnvironment, ...]:
    """Return the environments of a shell script, in the order of their commands.

    One into which the script installs the project itself is the project's, and left out."""
    text = _COMMENT.sub("", text.replace("\\\n", " "))
    values: dict[str, dict[str, None]] = {}
    for hit in _ASSIGNMENT.finditer(text):
        values.setdefault(hit["name"], {}).setdefault(hit["value"])
    made = {word for command in _commands(text, _MAKES) for words in _expanded(command[1], values) for word in words}
    found: dict[str, dict[Install, None]] = {}
    for program, rest in _commands(text, _INSTALL):
        for words in _expanded(f"{program} {rest}", values):
            read = _install(words)
            if read is None:
                continue
            folder, install = read
            if folder in made:
                found.setdefault(folder, {})
                if install is None:
                    found[folder][Install(())] = None
                elif install.requirements:
                    found[folder][install] = None
    return tuple(
        ScriptEnvironment(folder, tuple(installs))
        for folder, installs in found.items()
        if installs and Install(()) not in installs
    )


def _commands(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the matched beginning of each command, and the rest of it up to what ends it."""
    for hit in pattern.finditer(text):
        stop = _ENDS.search(text, hit.end())
        yield hit[0], text[hit.end() : stop.start() if stop else len(text)]


def _expanded(command: str, values: dict[str, dict[str, None]]) -> Iterator[list[str]]:
    """Yield the words of a command for each way to choose the values of its variables."""
    waiting = [(command, MOST_STEPS)]
    count = 0
    while waiting and count < MOST_INSTALLS:
        text, steps = waiting.pop(0)
        hit = _VARIABLE.search(text)
        if hit is None:
            if "$" in text:
                continue  # "$@", "$(...)": nobody knows
            try:
                yield shlex.split(text)
            except ValueError:
                continue
            count += 1
        elif steps:
            for value in values.get(hit["braced"] or hit["bare"], ()):
                bare = value[1:-1] if value[:1] in {"(", '"', "'"} else value
                start, end = hit.span()
                if value.startswith("(") and text[start - 1 : start] == '"' == text[end : end + 1]:
                    start, end = start - 1, end + 1  # "${words[@]}" is as many words as there are
                waiting.append((text[:start] + bare + text[end:], steps - 1))


def _install(words: Sequence[str]) -> tuple[str, Install | None] | None:
    """Return the folder that an install command fills, and what with; no install where the project itself is among it.

    None for a command that does not say which environment it is about."""
    program = list(itertools.takewhile(lambda word: word != "install", words))
    folder, is_project = _folder_of(program[0]) if program and program[0].endswith(("pip", "pip3")) else "", False
    requirements: list[str] = []
    files: dict[str, list[str]] = {"constraints": [], "overrides": []}
    rest = iter(words[len(program) + 1 :])
    for word in rest:
        option, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if option in _TARGETS:
            folder = _folder_of(value if has_value else next(rest, ""))
        elif option in _WITH_FILE:
            files[_WITH_FILE[option]].append(value if has_value else next(rest, ""))
        elif option in _PROJECT:
            is_project = True
            if not has_value:
                next(rest, "")
        elif option in _WITH_VALUE:
            if not has_value:
                next(rest, "")
        elif word.startswith("."):
            is_project = True
        elif not word.startswith("-"):
            # A quoted variable may hold several requirements: "griffe==2.4.1 basedpyright==1.40.2".
            requirements += [word] if ";" in word else word.split()
    if not folder or not all(read_requirement(each) for each in requirements):
        return None
    if is_project:
        return folder, None
    return folder, Install(tuple(requirements), tuple(files["constraints"]), tuple(files["overrides"]))


def _folder_of(program: str) -> str:
    """Return the environment whose interpreter or pip this is: ".venv-engine" of ".venv-engine/bin/python"."""
    hit = _FOLDER.match(program)
    if hit is not None:
        return hit["folder"]
    return program if "/" not in program and program.startswith(".") else ""
