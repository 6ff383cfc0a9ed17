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
    from argparse import Action
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tooling.cli.parser import Parser
    from tooling.kit.template.kinds import KindSource
    from tooling.new.command_line import Invocation

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

    @property
    def offers_files(self) -> bool:
        """Whether a value follows that is not one of a list."""
        return self.takes_value and not self.values


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
    """Every command and kind with its options; a kind whose template is damaged has none."""
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
    return tuple(option for action in parser._actions for option in _flags(action))


def _flags(action: Action) -> Iterable[CompletedOption]:
    takes_value = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    listed = metavar[1:-1].split(",") if metavar.startswith("{") and metavar.endswith("}") else []
    text = (action.help or "").replace("%%", "%").replace("%(default)g", str(action.default))
    for flag in _harmless(name for name in action.option_strings if name.startswith("--")):
        yield CompletedOption(flag, text, takes_value, tuple(_harmless(listed)))


def _harmless(words: Iterable[str]) -> Iterable[str]:
    return (word for word in words if _HARMLESS.fullmatch(word))


def _quoted(text: str) -> str:
    """In single quotes, for bash, zsh and fish alike; control characters and line ends become spaces."""
    return "'" + "".join(c if c.isprintable() else " " for c in text).replace("\\", "/").replace("'", "`") + "'"


# ------------------------------------------------------------------------------------------------------------- bash


def _bash(words: Sequence[CompletedWord]) -> str:
    names = " ".join(word.name for word in words)
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
            *_bash_values(words),
            "    esac",
            "    if [[ -z $word ]]; then",
            f'        COMPREPLY=($(compgen -W "{names} --help --version --repo --json" -- "$current"))',
            "        return",
            "    fi",
            "    case $word in",
            *(line for word in words for line in _bash_word(word)),
            "    esac",
            "}",
            f"complete -F _areal_new {PROGRAM}",
            "",
        ]
    )


def _bash_values(words: Sequence[CompletedWord]) -> Iterable[str]:
    files = [f'"{word.name} {option.flag}"' for word in words for option in word.options if option.offers_files]
    for word in words:
        for option in word.options:
            if option.values:
                reply = f'COMPREPLY=($(compgen -W "{" ".join(option.values)}" -- "$current"))'
                yield f'    "{word.name} {option.flag}") {reply}; return ;;'
    yield "    " + " | \\\n        ".join(files) + ")"
    yield "        _areal_new_files; return ;;"


def _bash_word(word: CompletedWord) -> Iterable[str]:
    yield f"    {word.name})"
    yield "        if [[ $current == -* ]]; then"
    yield f'            COMPREPLY=($(compgen -W "{" ".join(option.flag for option in word.options)}" -- "$current"))'
    if word.arguments:
        yield "        elif ((position == 1)); then"
        yield f'            COMPREPLY=($(compgen -W "{" ".join(word.arguments)}" -- "$current"))'
    if word.files:
        yield "        else _areal_new_files"
    yield "        fi"
    yield "        ;;"


# -------------------------------------------------------------------------------------------------------------- zsh


def _zsh(words: Sequence[CompletedWord]) -> str:
    described = " ".join(_quoted(f"{word.name}:{word.summary.replace(':', ' -')}") for word in words)
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
            *(line for word in words for line in _zsh_word(word)),
            "    esac",
            "}",
            '_areal_new "$@"',
            "",
        ]
    )


def _zsh_word(word: CompletedWord) -> Iterable[str]:
    yield f"    {word.name})"
    specifications = [_zsh_option(option) for option in word.options]
    if word.arguments:
        specifications.append(f"'1:argument:({' '.join(word.arguments)})'")
    if word.files:
        specifications.append("'*:file:_files'")
    yield "        _arguments -s " + " \\\n            ".join(specifications)
    yield "        ;;"


def _zsh_option(option: CompletedOption) -> str:
    text = re.sub(r"[\[\]:]", " ", option.help)
    if not option.takes_value:
        return _quoted(f"{option.flag}[{text}]")
    values = f"({' '.join(option.values)})" if option.values else "_files"
    return _quoted(f"{option.flag}=[{text}]:value:{values}")


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
