"""Runs the analysis of an architecture as a child process, and says what is wrong when it cannot be run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.kit.errors import UsageError
from tooling.kit.output import progress
from tooling.new.generators.model_fields import ROTARY_FIELDS, shared_fields
from tooling.new.generators.model_names import class_name, malformed, model_type_name

if TYPE_CHECKING:
    from tooling.kit.kind import PrepareRequest

TIMEOUT_SECONDS: Final = 900.0
_STATUSES: Final = ("proven", "unsupported", "static", "unproven")
_NEEDED: Final = ("status", "model_type", "architecture")
_PROVEN: Final = ("tiny_config", "slots", "fields", "layout", "variants")


def analyse(request: PrepareRequest) -> dict[str, Any]:
    """The report about the source of a request. Raises UsageError with what the analysis said when it failed."""
    options = request.options
    if "like" in options:
        return _like(request)
    source = options.get("from", request.names.raw)
    where = "--from" if "from" in options else "NAME"
    arguments = [_absolute(source)]
    if "source" in options:
        arguments += ["--modeling", _absolute(options["source"])]
    if "trust-source" in options:
        arguments.append("--trust-source")
    elif "analyze-only" in options:
        arguments.append("--static")
    return _report(request, arguments, source, where)


def _like(request: PrepareRequest) -> dict[str, Any]:
    """The report of a family, said to be that of another type, about which nothing is known but maybe its config."""
    options = request.options
    for name in ("source", "trust-source"):
        if name in options:
            raise UsageError(
                "modeling code makes a proof possible, so there is nothing to guess",
                where=f"--{name}",
                fix=f"leave out --like, or --{name}",
            )
    config = _read_config(options["from"]) if "from" in options else {"model_type": request.names.raw}
    report = _report(request, [options["like"]], options["like"], "--like")
    if report["status"] != "proven":
        raise UsageError(
            f"{options['like']!r} itself cannot be expressed", where="--like", fix="name a family that is proven"
        )
    model_type = model_type_name(config.get("model_type"))
    if model_type == report["model_type"]:
        raise UsageError(f"this is a {model_type!r} config", where="--like", fix="leave out --like: it can be proven")
    architectures = config.get("architectures") or [report["architecture"]]
    return {
        **report,
        "status": "unproven",
        "like": report["model_type"],
        "model_type": model_type,
        "architecture": class_name(architectures[0]),
        "tiny_config": {**report["tiny_config"], "model_type": model_type, "architectures": architectures[:1]},
        "nearest": [{"model_type": report["model_type"], "differences": _differences(config, report, request.root)}],
    }


def _read_config(name: str) -> dict[str, Any]:
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no config.json: {error}", where="--from", fix="name a folder or a file") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"{path} names no model_type", where="--from", fix="write the model_type into it")
    return config


def _differences(config: dict[str, Any], report: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    """Fields of a config that the family does not know, or that are not at its defaults and change what it computes."""
    uses = {use["name"]: use for use in report["fields"]}
    known = shared_fields(root)
    found = []
    for name, value in sorted(config.items()):
        use = uses.get(name)
        if name in ("model_type", "architectures") or (use is not None and use["status"] == "ignored"):
            continue
        if name in ROTARY_FIELDS or name in known:
            continue
        if use is None or (use["status"] == "fixed" and value not in (use.get("allowed") or ())):
            found.append({"field": name, "theirs": value, "ours": "not known" if use is None else use.get("allowed")})
    return found


def _report(request: PrepareRequest, arguments: list[str], source: str, where: str) -> dict[str, Any]:
    command = [str(request.python), "-m", "areal.models.analysis", *arguments, "--json"]
    with progress(f"analysing {source}"):
        answer, said = _run(command, request.root, where)
    if answer.get("ok") is False:
        raise UsageError(str(answer.get("error")), where=where, fix=_advice(answer))
    if not answer:
        raise UsageError(
            f"the analysis failed: {said or 'it said nothing'}", where=where, fix="is `areal[train]` installed?"
        )
    return checked(answer)


def _advice(answer: dict[str, Any]) -> str:
    """What to do about a source that could not be analysed, where the message does not say it."""
    nearest = answer.get("nearest") or []
    if answer.get("kind") == "UnknownConfigError" and nearest:
        name = str(nearest[0].get("model_type"))
        return f"give its code with --source modeling.py, or write an unproven scaffold with --like {name}"
    return ""


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
