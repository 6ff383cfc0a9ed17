"""Runs the analysis of an architecture as a child process, and says what is wrong when it cannot be run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.kit.errors import UsageError
from tooling.kit.output import progress
from tooling.new.generators.model_names import malformed

if TYPE_CHECKING:
    from tooling.kit.kind import PrepareRequest

TIMEOUT_SECONDS: Final = 900.0
_STATUSES: Final = ("proven", "unsupported", "static", "unproven")
_NEEDED: Final = ("status", "model_type", "architecture")
_PROVEN: Final = ("tiny_config", "slots", "fields", "layout", "variants")


def analyse(request: PrepareRequest) -> dict[str, Any]:
    """The report about the source of a request. Raises UsageError with what the analysis said when it failed."""
    options = request.options
    source = options.get("from", request.names.raw)
    command = [str(request.python), "-m", "areal.models.analysis", _absolute(source), "--json"]
    if "source" in options:
        command += ["--modeling", _absolute(options["source"])]
    if "trust-source" in options:
        command.append("--trust-source")
    elif "from" in options or "source" in options:
        command.append("--static")
    if "like" in options:
        command += ["--like", options["like"]]
    where = "--from" if "from" in options else "NAME"
    with progress(f"analysing {source}"):
        answer, said = _run(command, request.root, where)
    if answer.get("error"):
        raise UsageError(
            str(answer["error"]), where=str(answer.get("where") or where), fix=str(answer.get("fix") or "")
        )
    if not answer:
        raise UsageError(
            f"the analysis failed: {said or 'it said nothing'}", where=where, fix="is `areal[train]` installed?"
        )
    return checked(answer)


def read_report(name: str) -> dict[str, Any]:
    """A report that was saved with `--analyze-only --json`, or the object of `areal.models.analysis` itself."""
    try:
        loaded = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{name} is no report: {error}", where="--report", fix="save one with --analyze-only"
        ) from error
    report = loaded.get("report", loaded) if isinstance(loaded, dict) else None
    if not isinstance(report, dict):
        raise UsageError(f"{name} is no report", where="--report", fix="save one with --analyze-only --json")
    return checked(report)


def checked(report: dict[str, Any]) -> dict[str, Any]:
    """The report, if it has the parts that its status promises."""
    missing = [name for name in _NEEDED if not isinstance(report.get(name), str)]
    if not missing and report["status"] in ("proven", "unproven"):
        missing = [name for name in _PROVEN if not isinstance(report.get(name), list | dict)]
    if missing or report["status"] not in _STATUSES:
        raise malformed(f"no {', '.join(missing) or 'known status'}")
    return report


def _run(command: list[str], root: Path, where: str) -> tuple[dict[str, Any], str]:
    """The JSON object of a child process ({} when there is none), and the last line of what else it said."""
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the analysis could not run: {error}", where=where) from error
    said = (done.stderr.strip().splitlines() or [""])[-1]
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {}, said
    return (answer if isinstance(answer, dict) else {}), said


def _absolute(source: str) -> str:
    """A path as the child sees it, which runs in the repository; a model_type as it is."""
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source
