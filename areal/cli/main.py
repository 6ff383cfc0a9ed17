"""Entry point of `areal`: parse, run one command, turn errors into messages and exit codes.

Start-up is light: a command imports what it needs when it runs, so `areal --help` never loads torch. A command is a
module with HELP, `add_arguments(parser)` and `run(arguments) -> Result`, listed in COMMANDS.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import IO, TYPE_CHECKING, Final, NoReturn

import areal
from areal.api.errors import ArealError, UsageError
from areal.cli import config, demo, launch, listing, plan, report, serve, train, version
from areal.cli.output import discard, print_error, print_result, reserved_stdout
from areal.utils import logging
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

COMMANDS: Final[dict[str, ModuleType]] = {
    "config": config,
    "demo": demo,
    "launch": launch,
    "list": listing,
    "plan": plan,
    "report": report,
    "serve": serve,
    "train": train,
    "version": version,
}

EXIT_CODES: Final = """\
exit codes:
  0    success
  1    unexpected error (with traceback), or a broken engine
  2    wrong arguments, configuration, registry name or model
  3    rows of a dataset contradict its schema
  4    checkpoint damaged, missing or unwritable
  5    rollouts cannot make progress
  6    too many optimizer steps with non-finite gradients
  75   another process owns the run directory
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)
`areal launch` ends with the code of the rank that failed first, 124 when nothing got on.
"""

_UNEXPECTED, _INTERRUPTED = 1, 130


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting, so that `--json` callers get their object for wrong arguments too."""

    def error(self, message: str) -> NoReturn:
        """Raise the failure that argparse found; it calls this for every one."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. `argv` defaults to the arguments of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # What stands after -- belongs to the program that `areal launch` starts.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" not in own:
        return _run(arguments, as_json=False)
    with reserved_stdout() as stream:
        return _run(arguments, as_json=True, stream=stream)


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="areal",
        description="Asynchronous RL post-training for language models.",
        epilog=f"`areal demo` learns something in seconds on a laptop; start there.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"areal {areal.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, module in COMMANDS.items():
        child = commands.add_parser(
            name,
            help=module.HELP,
            description=(module.__doc__ or "").strip(),
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        child.add_argument(
            "--json", action="store_true", help="print one JSON object to stdout and everything else to stderr"
        )
        levels = ("debug", "info", "warning", "error")
        child.add_argument(
            "--log-level", choices=levels, default="info", help="least severe log lines to show on stderr"
        )
        module.add_arguments(child)
        child.set_defaults(run=module.run, parser=child)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises UsageError with the nearest command or option."""
    parser = build_parser()
    word = next((argument for argument in argv if not argument.startswith("-")), None)
    if word is not None and word not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise UsageError(f"no command {word!r}; {did_you_mean(word, COMMANDS) or f'commands are {known}'}")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command is None:
        raise UsageError(f"no command given; commands are {', '.join(COMMANDS)} (see `areal --help`)")
    if hasattr(arguments, "overrides"):
        # argparse ends a list of positionals at the first option; overrides may stand anywhere.
        arguments.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        options = [option for action in arguments.parser._actions for option in action.option_strings]
        hint = did_you_mean(rest[0].partition("=")[0], options)
        if not hint and "=" in rest[0] and hasattr(arguments, "overrides"):
            hint = f"configuration keys are written without dashes: {rest[0].lstrip('-')}"
        raise UsageError(f"unknown argument {rest[0]!r}; {hint or f'see `areal {arguments.command} --help`'}")
    return arguments


def _run(argv: list[str], *, as_json: bool, stream: IO[str] | None = None) -> int:
    out = stream or sys.stdout
    try:
        arguments = parse(argv)
        logging.configure(arguments.log_level)
        result = arguments.run(arguments)
        print_result(arguments.command, result, out, as_json=as_json)
        out.flush()
    except SystemExit as request:  # argparse: --help and --version
        return int(request.code or 0)
    except ArealError as error:
        print_error(error, error.exit_code, out, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        print_error(KeyboardInterrupt("interrupted"), _INTERRUPTED, out, as_json=as_json)
        return _INTERRUPTED
    except BrokenPipeError:
        discard(out)  # `areal list | head`: the reader has what it wants
        return 0
    except Exception as error:  # noqa: BLE001 -- the outermost frame: report, with traceback, instead of dying silently
        traceback.print_exc(file=sys.stderr)
        print_error(error, _UNEXPECTED, out, as_json=as_json)
        return _UNEXPECTED
    return int(result.exit_code)
