"""Prints a completion script: kinds, commands and options as they are now.

    bash   areal-new completion bash > ~/.local/share/bash-completion/completions/areal-new
    zsh    areal-new completion zsh > "${fpath[1]}/_areal-new"
    fish   areal-new completion fish > ~/.config/fish/completions/areal-new.fish

The script is static: run the command again when kinds or questions change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report
from tooling.new.cli.arguments import one_of
from tooling.new.cli.completion import SHELLS, script, vocabulary
from tooling.new.cli.lookup import find_kinds

if TYPE_CHECKING:
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "shell", metavar="{" + ",".join(SHELLS) + "}", type=one_of(*SHELLS), help="the shell to print it for"
    )


def run(invocation: Invocation) -> Report:
    """Print the script."""
    shell = invocation.arguments.shell
    text = script(shell, vocabulary(find_kinds(invocation.arguments.repo)))
    return Report(command="completion", changing=False, text=text, data={"shell": shell, "script": text})
