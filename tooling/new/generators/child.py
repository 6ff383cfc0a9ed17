"""Asks a module of the repository for an answer, in a process of the repository's own interpreter; JSON both ways.

What a process that gives no answer really ran into is said: a missing package, a signal, too little memory, an error of
the module with its place.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.new.change import Change

_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_MAX_SAID: Final = 300


def ask(
    change: Change,
    module: Sequence[str],
    *,
    what: str,
    where: str,
    seconds: float,
    text: str = "",
    failed: type[ToolError] = UsageError,
    environment: Mapping[str, str] | None = None,
    light: bool = False,
) -> dict[str, Any]:
    """Return the object that `python -m MODULE ARGUMENTS` answers to a text.

    what: the errand, for messages ("the analysis"); where: the option that it is about. environment: of the process,
    where it is not that of this one. light: whether it needs no imports of the change's warm process, if that has one.
    Raises UsageError where the module cannot run here at all, and `failed` with the
    reason when the answer is not one object of JSON, or took longer than `seconds`.
    """
    command = [str(change.python), "-m", *module]
    try:
        if change.warm is not None:
            done = change.warm.run(
                module[0], module[1:], seconds=seconds, text=text, environment=environment, light=light
            )
        else:
            done = subprocess.run(
                command,
                cwd=change.root,
                input=text,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
                env=environment,
            )
    except subprocess.TimeoutExpired as error:
        raise failed(f"{what} took longer than {seconds:.0f} s and was ended", where=where) from error
    except OSError as error:
        raise UsageError(
            f"{what} could not run: {change.python}: {error.strerror or error}",
            where=where,
            fix="set the repository up with `make setup`",
        ) from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and answer:
        return answer
    reason, fix, is_setup = _reason(change, done, module[0])
    shown = "" if text else f"`{shlex.join(['python', *command[1:]])}` shows all of it"
    raise (UsageError if is_setup else failed)(
        f"{what} failed: {reason}", where=where, fix="; ".join(filter(None, [fix, shown]))
    )


def _reason(change: Change, done: subprocess.CompletedProcess[str], module: str) -> tuple[str, str, bool]:
    """Return why a process gave no answer, what to do about it, and whether it could not run at all."""
    said = (done.stderr.strip().splitlines() or [""])[-1].strip()[:_MAX_SAID]
    missing = _MISSING.search(said)
    if done.returncode < 0:
        names = {each.value: each.name for each in signal.Signals}
        name = names.get(-done.returncode, f"signal {-done.returncode}")
        return (
            f"its process was ended by {name}",
            "see that the machine has memory left" if name == "SIGKILL" else "",
            False,
        )
    if said.startswith("MemoryError"):
        return "its process ran out of memory", "give it less data, or more memory", False
    if f"No module named {module}" in said or (missing and module.startswith(missing[1])):
        return (
            f"{change.python} does not find {module}",
            "run it in a repository that has areal, set up by `make setup`",
            True,
        )
    if missing:
        package = missing[1].partition(".")[0]
        return f"{change.python} has no {package}", "install areal[train] for it, e.g. with `make setup`", True
    if done.returncode == 0:
        return f"it answered something else than JSON: {done.stdout.strip()[:_MAX_SAID]!r}", "", False
    frames = _FRAME.findall(done.stderr)
    place = f" ({frames[-1][0]}:{frames[-1][1]})" if frames else ""
    return f"{said or f'exit code {done.returncode} and no output'}{place}", "", False
