"""Parse a command line, run its command, and turn errors into messages and exit codes.

Start-up is light: `areal --help` imports no command, `areal train --help` only its own module, and commands import
what they need when they run.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from importlib import import_module
from typing import IO, TYPE_CHECKING, Final, NoReturn

import areal
from areal.cli.output import discard, print_error, print_report, reserved_stdout

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

COMMANDS: Final[dict[str, str]] = {
    "config": "print a JSON schema or a reference of all configuration keys",
    "demo": "learn something by RL on this machine, from nothing, in about a minute",
    "doctor": "name causes of what went wrong in a run, with evidence",
    "env": "check that an environment keeps its contract, or serve it over HTTP",
    "eval": "evaluate a checkpoint or a run on named sets of rows",
    "export": "write a recovery checkpoint of a run as a Hugging Face folder",
    "gateway": "serve a model to agents over the APIs of OpenAI and Anthropic, and keep what they sampled",
    "init": "write a project of your own: configuration, reward, data, registries",
    "job": "show, follow and end jobs that `areal launch CONFIG` has started",
    "launch": "run a program as several ranks, or a configuration on a cluster, with restarts and no orphans",
    "list": "list the datasets, rewards, workflows, environments, models, objectives and losses that a run can name",
    "node": "run one role of a job on this node; schedulers start it",
    "plan": "say what training over many processes costs each of them",
    "report": "write an HTML page about a run, or print a summary with warning signs",
    "serve": "start one inference server for trainers elsewhere",
    "train": "train a model as a YAML configuration says",
    "version": "print the versions that a bug report needs",
}
"""Names of the modules in `areal.cli.commands`, with the line about each in `areal --help`."""

EXIT_CODES: Final = """\
exit codes:
  0    success
  1    unexpected error (with traceback), or a broken engine
  2    wrong arguments, configuration, registry name or model
  10   `areal doctor` found causes, or `areal env check` a broken promise
  20   rows of a dataset contradict its schema
  21   checkpoint damaged or missing, or a disk that is full or cannot be written
  22   rollouts cannot make progress
  23   too many optimizer steps with non-finite gradients
  24   `areal train`: the run is finished already, nothing was trained
  25   the hub refused, or was out of reach; `areal train`: the run is finished, its model is not published
  69   a node of a job, or its first runner, was lost
  75   another process owns the run directory, or the job's
  78   nodes of a job do not fit each other: version, plan or shared folder
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)
`areal launch` ends with the code of the rank that failed first, 124 when nothing got on.
"""

_UNEXPECTED, _INTERRUPTED = 1, 130
_REFUSALS: Final = frozenset({errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EPERM, errno.EROFS})
"""What a disk says that is full, read-only or another's: no error of the program."""


class CommandParser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting, so that `--json` callers get their object for wrong arguments too."""

    def error(self, message: str) -> NoReturn:
        """Report a parse failure; argparse calls this."""
        from areal.api.errors import UsageError

        raise UsageError(f"{message} (see `{self.prog} --help`)", fix=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. `argv` defaults to the arguments of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # What stands after -- belongs to the program that `areal launch` starts.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" not in own:
        if sys.stdout is None:  # closed by the caller: `areal list >&-`
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                return _run(arguments, nowhere, as_json=False)
        return _run(arguments, sys.stdout, as_json=False)
    with reserved_stdout() as stream:
        return _run(arguments, stream, as_json=True)


def build_parser(loaded: Collection[str] = tuple(COMMANDS)) -> CommandParser:
    """Build the parser of the command line. loaded: the commands whose modules are imported for their arguments."""
    parser = CommandParser(
        prog="areal",
        description="Asynchronous RL post-training for language models.",
        epilog=f"`areal demo` learns something in seconds on a laptop; start there.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"areal {areal.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        if name not in loaded:
            commands.add_parser(name, help=summary)
            continue
        module = import_module(f"areal.cli.commands.{name}")
        child = commands.add_parser(
            name,
            help=summary,
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
        module.configure(child)
        child.set_defaults(run=module.run, parser=child)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises UsageError with the nearest command or option."""
    word = next((argument for argument in argv if not argument.startswith("-")), None)
    if word is not None and word not in COMMANDS:
        raise _usage_error(f"no command {word!r}", word, COMMANDS, f"commands are {', '.join(COMMANDS)}")
    arguments, rest = build_parser([word] if word else []).parse_known_args(argv)
    if arguments.command is None:
        unknown = next((option for option in rest if option != "--json"), "")
        problem = f"unknown option {unknown!r} and no command given" if unknown else "no command given"
        near = ("--help", "--version") if unknown else ()
        raise _usage_error(problem, unknown, near, f"commands are {', '.join(COMMANDS)} (see `areal --help`)")
    if hasattr(arguments, "overrides"):
        # argparse ends a list of positionals at the first option; overrides may stand anywhere.
        arguments.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        options = [option for action in arguments.parser._actions for option in action.option_strings]
        hint = f"see `areal {arguments.command} --help`"
        if "=" in rest[0] and hasattr(arguments, "overrides"):
            hint = f"configuration keys are written without dashes: {rest[0].lstrip('-')}"
        raise _usage_error(f"unknown argument {rest[0]!r}", rest[0].partition("=")[0], options, hint)
    return arguments


def _usage_error(message: str, word: str, known: Collection[str], hint: str) -> Exception:
    """Return the error that suggests the known word nearest to `word`; the hint when none is near."""
    from areal.api.errors import UsageError
    from areal.utils.suggest import did_you_mean

    fix = did_you_mean(word, known) or hint
    return UsageError(f"{message}; {fix}", fix=fix)


def _check_current_folder() -> None:
    """Raise UsageError when the current folder has been removed: no relative path means anything then."""
    try:
        os.getcwd()
    except FileNotFoundError:
        from areal.api.errors import UsageError

        raise UsageError(
            "the current folder does not exist any more", fix="change to a folder that does (cd), and repeat"
        ) from None


def _refused(error: Exception) -> Exception:
    """Return what a disk refused as an error with a way out, everything else as it is."""
    if not isinstance(error, OSError) or error.errno not in _REFUSALS:
        return error
    from areal.api.errors import CheckpointError

    place = f"{error.filename}: " if error.filename else ""
    return CheckpointError(
        f"{place}{error.strerror}",
        where=str(error.filename or ""),
        fix="free space, or name a place that can be written (output_dir=... or --output)",
    )


def _run(argv: list[str], stream: IO[str], *, as_json: bool) -> int:
    command = next((word for word in argv if word in COMMANDS), "areal")
    try:
        arguments = parse(argv)
        _check_current_folder()
        from areal.utils import logging

        logging.configure(arguments.log_level)
        report = arguments.run(arguments)
        print_report(command, report, stream, as_json=as_json)
        stream.flush()
    except SystemExit as request:  # argparse: --help and --version
        return int(request.code or 0)
    except BrokenPipeError:
        discard(stream)  # `areal list | head`: the reader has what it wants
        return 0
    except KeyboardInterrupt:
        print_error(command, KeyboardInterrupt("interrupted"), _INTERRUPTED, stream, as_json=as_json)
        return _INTERRUPTED
    except Exception as caught:  # noqa: BLE001 -- the outermost frame: report it instead of dying silently
        from areal.api.errors import ArealError
        from areal.cli.extras import missing_package

        error = _refused(missing_package(caught))
        code = error.exit_code if isinstance(error, ArealError) else _UNEXPECTED
        if not isinstance(error, ArealError):
            import traceback

            traceback.print_exc(file=sys.stderr)
        print_error(command, error, code, stream, as_json=as_json)
        return code
    return int(report.exit_code)
