"""Runs the analysis of an architecture as a child process, and says what is wrong when it cannot be run."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.report import progress
from tooling.new.generators.model_names import malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.kit.kind import PrepareRequest

TIMEOUT_SECONDS: Final = 900.0
_NEEDED: Final = ("status", "model_type", "architecture")
_PROVEN: Final = ("tiny_config", "slots", "fields", "layout", "variants")
_PARTS: Final = {
    "proven": _PROVEN,
    "unproven": (*_PROVEN, "nearest"),
    "unsupported": ("missing",),
    "static": (),
}
"""Status to the lists and objects that a report of it must have."""
_OBJECTS: Final = ("reference", "seconds", "slots", "tiny_config")
_ENTRIES: Final = {
    "evidence": ("feature", "value", "source", "detail"),
    "fields": ("name", "status"),
    "layout": ("kind", "ours", "on_disk"),
    "missing": ("feature", "where", "detail"),
    "nearest": ("model_type", "differences"),
    "variants": ("name", "overrides"),
}
"""Lists of a report to what each of their entries must say."""


def analyse(request: PrepareRequest) -> dict[str, Any]:
    """The report about the source of a request. Raises UsageError with what the analysis said when it failed."""
    options = request.options
    source = options.get("from", request.names.raw)
    where = "--from" if "from" in options else "NAME"
    arguments = [_absolute(source)]
    if "like" in options:
        _refuse_code(options)
        return _report(request, [*arguments, "--like", options["like"]], source, where)
    if "source" in options:
        if "from" not in options and not Path(source).is_dir():
            raise UsageError(
                "a modeling file says nothing without its config.json", where="--source", fix="add --from FOLDER"
            )
        arguments += ["--modeling", _absolute(options["source"])]
    if "trust-source" in options:
        arguments.append("--trust-source")
    elif "analyze-only" in options:
        arguments.append("--static")
    return _report(request, arguments, source, where)


def _refuse_code(options: Mapping[str, str]) -> None:
    for name in ("source", "trust-source"):
        if name in options:
            raise UsageError(
                "modeling code makes a proof possible, so there is nothing to guess",
                where=f"--{name}",
                fix=f"leave out --like, or --{name}",
            )


def _report(request: PrepareRequest, arguments: list[str], source: str, where: str) -> dict[str, Any]:
    command = [str(request.python), "-m", "areal.porting", *arguments, "--json"]
    with progress(f"analysing {source}"):
        answer, said = _run(command, request.root, where)
    if answer.get("ok") is False:
        at, fix = _advice(answer, where)
        raise UsageError(str(answer.get("error")).removesuffix("."), where=at, fix=fix)
    if not answer:
        alone = shlex.join(["python", *command[1:-1]])
        raise UsageError(
            f"the analysis failed: {said or 'it said nothing'}",
            where=where,
            fix=f"is `areal[train]` installed? `{alone}` shows where it failed",
        )
    return checked(answer)


def _advice(answer: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Which option an error is about, and what to do where its text does not say it."""
    kind, nearest = answer.get("kind"), answer.get("nearest") or []
    if kind == "UnknownConfigError" and nearest:
        like = str(nearest[0].get("model_type"))
        return where, f"give its code with --source modeling.py, or write an unproven scaffold with --like {like}"
    if kind == "UntrustedSourceError":
        return where, "if you trust it, add --trust-source; --analyze-only shows what reading it alone finds"
    if kind == "LikeError":
        return "--like", "leave out --like, or name a family that is proven"
    if kind == "ModelingError":
        return "--source", "name the modeling file"
    return where, ""


def read_report(name: str) -> dict[str, Any]:
    """A report that was saved with `--analyze-only --json`, or the object of `areal.porting` itself."""
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
    if not missing and report["status"] not in _PARTS:
        raise malformed("no known status")
    if not missing:
        missing = [name for name in _PARTS[report["status"]] if not isinstance(report.get(name), list | dict)]
    if missing:
        raise malformed(f"no {', '.join(missing)}")
    for name in _OBJECTS:
        if not isinstance(report.get(name, {}), dict):
            raise malformed(f"{name} that are no object")
    for name, keys in _ENTRIES.items():
        entries = report.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(each, dict) and {*keys} <= {*each} for each in entries):
            raise malformed(f"{name} without {', '.join(keys)}")
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
