"""Running `uv` as a child process: never in the repository's own folder, never building what it downloads.

pip's index settings are handed over as uv's, since uv does not read them. `uv` is that beside this interpreter, else
the first on PATH; a repository's own `.venv` is not trusted with it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.upgrade.errors import OfflineError, ResolutionError, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PIP_NAMES: Final = {
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "cert": "SSL_CERT_FILE",
}
_SECTIONS: Final = ("global", "install", ":env:")
_OFFLINE = re.compile(r"network (?:was|is) disabled|not found in the cache", re.IGNORECASE)
_NETWORK = re.compile(r"error sending request|dns error|failed to (?:fetch|download|connect)|timed out", re.IGNORECASE)
_CONFLICT = re.compile(r"No solution found|requirements are unsatisfiable|cannot be used together", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CREDENTIALS = re.compile(r"(https?://)[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What uv said. `solved` is False for a conflict; any other failure raises."""

    solved: bool
    output: str
    complaint: str


def find_uv() -> str:
    """Path of the program. Raises UsageError when there is none."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise UsageError("the `uv` program was not found", fix="`pip install uv`, or leave locks alone with --no-lock")
    return found


def pip_environment() -> dict[str, str]:
    """pip's index settings as uv's variables. Not those that the environment sets for uv already."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if name in _PIP_NAMES and section in _SECTIONS:
            rank = _SECTIONS.index(section)
            if rank >= found.get(name, (-1, ""))[0]:
                found[name] = (rank, _literal(value))
    variables = {
        _PIP_NAMES[name]: ("," if name == "find-links" else " ").join(value.split())
        for name, (_, value) in found.items()
    }
    if "UV_INDEX" in variables:
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's rule: the best version from any index
    return {name: value for name, value in variables.items() if value and name not in os.environ}


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return ""


def run_uv(
    arguments: Sequence[str],
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    offline: bool = False,
    seconds: float = 600,
) -> Outcome:
    """uv in a folder. Raises ResolutionError for failures that are no conflict, UpstreamError (OfflineError) when the
    index could not be reached, UsageError when there is no uv."""
    variables = {
        **os.environ,
        **(pip_environment() if environment is None else environment),
        "NO_COLOR": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    variables.pop("VIRTUAL_ENV", None)  # uv would warn that it is not the project's
    if offline:
        variables["UV_OFFLINE"] = "1"
    command = [find_uv(), *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise ResolutionError(f"uv did not finish within {seconds:.0f} s", fix="try again, or use --no-lock") from error
    complaint = _clean(done.stderr)
    if done.returncode == 0:
        return Outcome(True, done.stdout, complaint)
    if offline and _OFFLINE.search(complaint):
        message = "the resolver's cache lacks something, and the network may not be used"
        raise OfflineError(message, fix="run once without --offline, or use --no-lock")
    if _CONFLICT.search(complaint):
        return Outcome(False, "", complaint)
    if _NETWORK.search(complaint):
        raise UpstreamError(f"the index cannot be reached: {_first(complaint)}", fix="try again, or use --no-lock")
    message = f"uv failed: {_first(complaint)}"
    raise ResolutionError(message, fix="see `raw`, or use --no-lock", details={"raw": complaint})


def _first(complaint: str) -> str:
    marks = ("error", "  cause", "  \u00d7", "  \u2570")
    lines = [line for line in complaint.splitlines() if line.startswith(marks)]
    return " ".join(line.strip() for line in lines[:3])[:500] or complaint.strip()[:500] or "it said nothing"


def _clean(text: str) -> str:
    return _CREDENTIALS.sub(r"\1", _COLOUR.sub("", text))
