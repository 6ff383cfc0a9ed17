"""`areal-upgrade-deps`: moves dependencies, or says what that would break (`python -m tooling.upgrade`)."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import exit_codes_help
from tooling.cli.parser import Parser, add_common, information, listed, split
from tooling.cli.run import run_cli
from tooling.upgrade.commands.common import UPGRADE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.report import Report

COMMANDS: Final = {
    "impact": "what would break, before anything is touched",
    "latest": "for each watched package: the newest version that resolves and audits clean, and the next",
}
"""Beside the upgrade itself, which has no word of its own: `areal-upgrade-deps PACKAGE==VERSION`."""
EXIT_CODES: Final = (0, 1, 2, 3, 9, 10, 11, 75, 130, 141)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.disable()  # one process, few cycles, very many small objects
    return run_cli(UPGRADE, words, lambda _: _called(words), machine=("--json", "--sarif"))


def make_parser(name: str = "") -> Parser:
    """Return the parser of a command; of the upgrade itself, which has no word of its own, by default."""
    module = import_module(f"tooling.upgrade.commands.{name or 'upgrade'}")
    usage = f"{UPGRADE} PACKAGE==VERSION[@VARIANT] ... [options]"
    usage += "".join(
        f"\n       {UPGRADE} {each} [options]" for each in ("impact PACKAGE==VERSION ...", "latest [PACKAGE ...]")
    )
    parser = Parser(
        f"{UPGRADE} {name}" if name else UPGRADE,
        module.__doc__ or "",
        usage=None if name else usage,
        epilog="\n\n".join([listed("commands", COMMANDS), exit_codes_help(EXIT_CODES)]),
    )
    module.configure(parser)
    add_common(parser)
    return parser


def _called(words: list[str]) -> Report:
    call = split(words, ("--repo", "--wait", "--cache", "--from", "--summary"))
    name = call.word if call.word in COMMANDS else None
    parser = make_parser(name or "")
    module = import_module(f"tooling.upgrade.commands.{name or 'upgrade'}")
    found: Report = information(UPGRADE, call, parser.format_help) or module.run(
        parser.read(call.rest if name else words)
    )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
