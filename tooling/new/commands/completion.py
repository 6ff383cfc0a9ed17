"""Prints a completion script: kinds, commands and options as they are now.

    bash   areal-new completion bash > ~/.local/share/bash-completion/completions/areal-new
    zsh    areal-new completion zsh > "${fpath[1]}/_areal-new"
    fish   areal-new completion fish > ~/.config/fish/completions/areal-new.fish

The script is static: run the command again when kinds or questions change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ToolError
from tooling.cli.parser import one_of
from tooling.cli.report import Report
from tooling.new.command_line import COMMANDS, PROGRAM, VALUE_OPTIONS, command_parser, find_kinds, kind_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tooling.cli.parser import Parser
    from tooling.kit.template.kinds import KindSource
    from tooling.new.change import Invocation

# Kinds, choices and summaries come from templates that anybody may have written, and shells expand what they complete:
# a word with anything but harmless characters is left out, and prose is quoted.
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_.,+@%/-]+", re.ASCII)
"""Words that no shell expands or splits."""
_FIRST_IS_KIND: Final = frozenset({"explain", "list", "rename", "schema", "status", "undo", "update"})
_FILES: Final = frozenset({"apply"})


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "shell", metavar="{" + ",".join(SHELLS) + "}", type=one_of(*SHELLS), help="the shell to print it for"
    )


def run(invocation: Invocation) -> Report:
    """Print the script."""
    shell = invocation.arguments.shell
    text = _WRITERS[shell](vocabulary(find_kinds(invocation.repo)))
    return Report(command="completion", changing=False, text=text, data={"shell": shell, "script": text})


@dataclass(frozen=True, slots=True)
class CompletedOption:
    """One option of a command."""

    flag: str
    help: str
    takes_value: bool
    values: tuple[str, ...] = ()
    """What may follow; empty when anything may, then files are offered."""


@dataclass(frozen=True, slots=True)
class CompletedWord:
    """A command or kind, and what may follow it."""

    name: str
    summary: str
    options: tuple[CompletedOption, ...]
    arguments: tuple[str, ...] = ()
    """Words for its first position."""
    files: bool = False
    """Whether its positions are files."""


def vocabulary(kinds: Mapping[str, KindSource]) -> list[CompletedWord]:
    """Return every command and kind with its options; a kind whose template is damaged has none."""
    names = tuple(_harmless(kinds))
    words = []
    for name in names:
        try:
            options = _options(kind_parser(kinds[name]))
        except ToolError:
            options = ()
        words.append(CompletedWord(name, kinds[name].summary, options))
    for name, command in COMMANDS.items():
        parser = command_parser(name)
        arguments = names if name in _FIRST_IS_KIND else ()
        arguments += {"schema": ("output",), "completion": SHELLS}.get(name, ())
        words.append(CompletedWord(name, command.summary, _options(parser), arguments, files=name in _FILES))
    return words


def _options(parser: Parser) -> tuple[CompletedOption, ...]:
    found = []
    for action in parser._actions:
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        listed = metavar[1:-1].split(",") if metavar.startswith("{") and metavar.endswith("}") else []
        text = (action.help or "").replace("%%", "%").replace("%(default)g", str(action.default))
        flags = _harmless(name for name in action.option_strings if name.startswith("--"))
        found += [CompletedOption(flag, text, action.nargs != 0, tuple(_harmless(listed))) for flag in flags]
    return tuple(found)


def _harmless(words: Iterable[str]) -> Iterable[str]:
    return (word for word in words if _HARMLESS.fullmatch(word))


def _quoted(text: str) -> str:
    """Quote a text for bash, zsh and fish alike; control characters and line ends become spaces."""
    return "'" + "".join(c if c.isprintable() else " " for c in text).replace("\\", "/").replace("'", "`") + "'"


# ------------------------------------------------------------------------------------------------------------- bash


def _bash(words: Sequence[CompletedWord]) -> str:
    names = " ".join(word.name for word in words)
    values, files, branches = [], [], []
    for word in words:
        branches += [f"    {word.name})", "        if [[ $current == -* ]]; then"]
        branches.append(f"            {_compgen(option.flag for option in word.options)}")
        if word.arguments:
            branches += ["        elif ((position == 1)); then", f"            {_compgen(word.arguments)}"]
        if word.files:
            branches.append("        else _areal_new_files")
        branches += ["        fi", "        ;;"]
        for option in word.options:
            if option.values:
                values.append(f'    "{word.name} {option.flag}") {_compgen(option.values)}; return ;;')
            elif option.takes_value:
                files.append(f'"{word.name} {option.flag}"')
    return "\n".join(
        [
            f"# bash completion of {PROGRAM}; made by `{PROGRAM} completion bash`",
            "_areal_new_files() {",
            "    local IFS=$'\\n'",
            "    compopt -o filenames 2> /dev/null",
            '    COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))',
            "}",
            "_areal_new() {",
            "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} word= position=1",
            "    local index",
            "    for ((index = 1; index < COMP_CWORD; index++)); do",
            "        case ${COMP_WORDS[index]} in",
            f"        {'|'.join(VALUE_OPTIONS)}) ((index++)) ;;",
            "        -*) ;;",
            "        *)",
            "            if [[ -z $word ]]; then word=${COMP_WORDS[index]}; else ((position++)); fi",
            "            ;;",
            "        esac",
            "    done",
            "    COMPREPLY=()",
            '    case "$word $previous" in',
            *values,
            "    " + " | \\\n        ".join(files) + ")",
            "        _areal_new_files; return ;;",
            "    esac",
            "    if [[ -z $word ]]; then",
            f"        {_compgen([names, '--help', '--version', '--repo', '--json'])}",
            "        return",
            "    fi",
            "    case $word in",
            *branches,
            "    esac",
            "}",
            f"complete -F _areal_new {PROGRAM}",
            "",
        ]
    )


def _compgen(words: Iterable[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current"))'


# -------------------------------------------------------------------------------------------------------------- zsh


def _zsh(words: Sequence[CompletedWord]) -> str:
    described = " ".join(_quoted(f"{word.name}:{word.summary.replace(':', ' -')}") for word in words)
    branches = []
    for word in words:
        specifications = []
        for option in word.options:
            text = re.sub(r"[\[\]:]", " ", option.help)
            after = f":value:({' '.join(option.values)})" if option.values else ":value:_files"
            specifications.append(
                _quoted(f"{option.flag}=[{text}]{after}" if option.takes_value else f"{option.flag}[{text}]")
            )
        if word.arguments:
            specifications.append(f"'1:argument:({' '.join(word.arguments)})'")
        if word.files:
            specifications.append("'*:file:_files'")
        arguments = " \\\n            ".join(specifications)
        branches += [f"    {word.name})", f"        _arguments -s {arguments}", "        ;;"]
    return "\n".join(
        [
            f"#compdef {PROGRAM}",
            f"# zsh completion of {PROGRAM}; made by `{PROGRAM} completion zsh`",
            "_areal_new() {",
            "    local -a names",
            f"    names=({described})",
            "    if ((CURRENT == 2)); then",
            "        _describe 'kind or command' names",
            "        return",
            "    fi",
            "    local word=$words[2]",
            "    shift words",
            "    ((CURRENT--))",
            "    case $word in",
            *branches,
            "    esac",
            "}",
            '_areal_new "$@"',
            "",
        ]
    )


# ------------------------------------------------------------------------------------------------------------- fish


def _fish(words: Sequence[CompletedWord]) -> str:
    lines = [f"# fish completion of {PROGRAM}; made by `{PROGRAM} completion fish`", f"complete -c {PROGRAM} -f"]
    for word in words:
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -a {word.name} -d {_quoted(word.summary)}")
    for word in words:
        seen = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {word.name}'"
        if word.arguments:
            lines.append(f"{seen} -a '{' '.join(word.arguments)}'")
        if word.files:
            lines.append(f"{seen} -F")
        for option in word.options:
            value = f" -x -a '{' '.join(option.values)}'" if option.values else " -r -F" if option.takes_value else ""
            lines.append(f"{seen} -l {option.flag.removeprefix('--')}{value} -d {_quoted(option.help)}")
    return "\n".join([*lines, ""])


_WRITERS: Final[dict[str, Callable[[Sequence[CompletedWord]], str]]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
SHELLS: Final = tuple(_WRITERS)
