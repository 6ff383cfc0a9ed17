"""Makes a native model family: an architecture is analysed, and source written of the report, in child processes.

`areal.porting` runs with the repository's own interpreter and speaks JSON: this package never imports the framework,
torch or transformers. What the analysis cannot prove is refused here, before anything is rendered, and the pieces of
source that `areal.porting.write` returns hold checked names and literals only. Code of a stranger runs only with
`--trust-source`. `--analyze-only` prints the report as the checklist of an engineer who ports a model, each line with
its evidence.
"""

from __future__ import annotations

import json
import shlex
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import BugError, ConflictError, UnsupportedSourceError, UsageError
from tooling.cli.report import aligned, progress
from tooling.kit.kind import CheckResult
from tooling.kit.receipts import read_receipt
from tooling.new.change import Findings
from tooling.new.generators.child import ask
from tooling.new.generators.model_matrix import run_matrix
from tooling.new.generators.model_scaffold import SCAFFOLD, scaffold_pieces, scaffold_report
from tooling.new.warm import WarmPython

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.new.change import Change


_KEPT: Final = (
    "status",
    "model_type",
    "architecture",
    "tiny_config",
    "slots",
    "fields",
    "layout",
    "skipped",
    "variants",
    "reference",
    "code",
    "wrapper",
)
"""Parts of a report that the family is made of; times and measurements would differ from run to run."""


_LIBRARY: Final = "transformers "
"""Start of a report's `source` when the architecture was that of an installed transformers; its version follows."""


def prepare(change: Change) -> dict[str, Any]:
    """Return the report, and the pieces of source it stands for.

    Raises UsageError for a source that cannot be analysed, UnsupportedSourceError with the features that cannot be
    expressed.
    """
    request, names = change.request, change.names
    assert names is not None
    if "report" in request.answers and not request.options:
        # An update: the pieces are made again, by this version of the page.
        if request.answers["report"].get("status") == SCAFFOLD:
            return {"family": scaffold_pieces(request.answers["report"])}
        return {"family": write_family(change, request.answers["report"])}
    if "matrix" in request.options:
        change.findings = run_matrix(change.root, change.python, request.options["matrix"])
        return {}
    if "report" in request.options:
        others = [name for name in ("from", "source", "like", "trust-source") if name in request.options]
        if others:
            raise UsageError(
                "a finished report needs no analysis",
                where=f"--{others[0]}",
                fix=f"leave out --{others[0]} or --report",
            )
        report = read_report(request.options["report"])
    else:
        made = made_before(change)
        if made is not None:
            return made
        report = analyse(change)
    if "analyze-only" in request.options:
        change.cool()
        change.findings = Findings(checklist(report), {"report": dict(report)})
        return {}
    if report["status"] == SCAFFOLD:
        change.warnings.append(
            f"SCAFFOLD: {report['model_type']!r} was seen as a config only; nothing loads or trains it"
        )
        change.next_steps.append(
            f"with its code: areal-new update model {names.snake} --from FOLDER --trust-source, which proves it"
        )
        return {"report": report, "family": scaffold_pieces(report)}
    try:
        _refuse_unproven(report, names.raw)
    except BaseException:
        change.cool()
        raise
    kept: dict[str, Any] = {name: report[name] for name in _KEPT if name in report}
    if str(report.get("source")).startswith(_LIBRARY):  # anything else is a path of this machine
        kept["source"] = report["source"]
    kept["fields"] = [_without_nothing(use) for use in report["fields"]]
    kept["layout"] = [_without_nothing(entry) for entry in report["layout"]]
    if "wrapper" in kept:
        kept["wrapper"] = {name: value for name, value in kept["wrapper"].items() if name != "parity"}
    kept["variants"] = [
        {"name": variant["name"], "overrides": variant["overrides"]} for variant in report.get("variants", ())
    ]
    pieces = write_family(change, kept)
    if report["status"] == "unproven":
        _say_unproven(change, report)
    else:
        change.must_prove = "keep" not in request.options
        source = Path(request.options.get("from", "")).expanduser()
        if "from" in request.options and source.is_dir():
            change.further_proof = partial(loads_folder, change, source.resolve())
    return {"report": kept, "family": pieces}


def made_before(change: Change) -> dict[str, Any] | None:
    """Return the answers of the unit's receipt when the same architecture of transformers is asked for again; None when
    something else is, or there is no such unit. An analysis takes half a minute and would say what it said before.

    Another version of transformers is a matter of `areal-new update`, which analyses again: that is a warning.
    """
    request = change.request
    assert change.names is not None
    if request.answers or request.options.keys() - {"from", "keep"}:
        return None
    existing = read_receipt(change.root, request.kind, change.names.snake)
    if existing is None or not isinstance(existing.answers.get("report"), dict):
        return None
    report = existing.answers["report"]
    asked = request.options.get("from", change.names.raw)
    named = report.get("wrapper") or report
    names = {plain(str(named.get(name, ""))) for name in ("model_type", "architecture")}
    if report.get("status") != "proven" or report.get("reference") or plain(asked) not in names or Path(asked).exists():
        return None
    before, now = str(report.get("source", "")), f"{_LIBRARY}{installed_version(change.python, 'transformers')}"
    if before.startswith(_LIBRARY) and now not in (_LIBRARY, before):
        change.warnings.append(
            f"{existing.name} was made with {before}, and {now} is installed; "
            f"`areal-new update {request.kind} {existing.name} --from {named['model_type']}` analyses it again"
        )
    return {name: existing.answers[name] for name in ("report", "family")}


def plain(name: str) -> str:
    """Return the letters and digits of a name in lower case: how `Qwen3-MoE` and `qwen3_moe` are the same type."""
    return "".join(character for character in name.lower() if character.isalnum())


def installed_version(python: Path, distribution: str) -> str:
    """Return the version of a distribution beside an interpreter, "" where it is not found. Nothing is imported."""
    libraries = [str(path) for path in python.absolute().parent.parent.glob("lib*/python3*/site-packages")]
    found = next(iter(metadata.distributions(name=distribution, path=libraries)), None)
    return "" if found is None else found.version


def _without_nothing(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without what is not said; `default` tells null from absent, so it stays, and 0 is not False."""
    return {
        name: value
        for name, value in table.items()
        if name == "default" or not (value is None or value is False or value in ("", []))
    }


def _refuse_unproven(report: Mapping[str, Any], name: str) -> None:
    """Raise for a report that no family may be made of."""
    status = report["status"]
    if status == "unsupported":
        raise UnsupportedSourceError(
            f"{report['model_type']} needs what areal.models.blocks cannot express: "
            + ", ".join(dict.fromkeys(str(feature["feature"]) for feature in report["missing"])),
            where=", ".join(dict.fromkeys(str(feature["where"]) for feature in report["missing"][:3])),
            fix="add the feature to areal/models/blocks and areal/porting, then run this again",
            text=missing_features(report),
            details={"report": dict(report)},
        )
    if status == "static":
        raise UsageError(
            "the code of this model was read, not run, so nothing about it is proven",
            where=str(report.get("source", "")),
            fix=f"read it, then allow it to run: add --trust-source; `areal-new model {name} --analyze-only` shows "
            "what reading it has found",
        )
    if status not in ("proven", "unproven"):
        raise ConflictError(f"the analysis ended as {status!r}", fix="analyse again with this version of areal")


def _say_unproven(change: Change, report: Mapping[str, Any]) -> None:
    change.warnings += [
        f"UNPROVEN: nobody has compared {report['model_type']!r} with anything; the code is that of "
        f"{report['nearest'][0]['model_type']!r}, and it is not registered",
        *differences(report),
    ]
    change.next_steps += [
        f"compare the modeling code of {report['model_type']} with the family line by line; implement or refuse each "
        "field that differs",
        "get a reference: a transformers that has the type, or its modeling file; then prove it: areal-new undo, and "
        "areal-new model NAME --from FOLDER --source modeling.py --trust-source",
        "do not register it before its logits are equal",
    ]


ANALYSIS: Final = "areal.porting"
IMPORTS: Final = (
    *("torch", "safetensors.torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto"),
    *("pytest", "hypothesis", "anyio.pytest_plugin"),
)
"""What analysis and generated tests import, nothing of the repository: that changes between the two. The last two,
because pytest takes them for plugins, and would compile all of their modules anew to rewrite their assertions."""
WRITER: Final = "areal.porting.write"
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


def analyse(change: Change) -> dict[str, Any]:
    """Analyse the source of a request in a child process. Raises UsageError with what the analysis said when it
    failed."""
    assert change.names is not None
    options = change.request.options
    source = options.get("from", change.names.raw)
    where = "--from" if "from" in options else "NAME"
    module = [ANALYSIS, *_child_arguments(options, source), "--unit", change.names.snake, "--json"]
    if "trust-source" not in options:  # foreign code is confined before anything is imported
        change.warm = WarmPython(change.python, change.root, imports=IMPORTS)
    said = partial(ask, change, what="the analysis", where=where, seconds=TIMEOUT_SECONDS, failed=BugError)
    try:
        with progress(f"analysing {source}"):
            # What nothing can be made of is refused before the imports.
            answer = {} if change.warm is None else said([*module, "--look-up"], light=True)
            if answer.get("ok") is not False:
                answer = said(module)
    except BaseException:
        change.cool()
        raise
    if answer.get("ok") is False:
        change.cool()
    if answer.get("ok") is not False:
        return checked(answer)
    if answer.get("bug"):
        raise _bug(answer, where)
    error = str(answer.get("error")).removesuffix(".")
    if answer.get("kind") == "UnknownConfigError" and "analyze-only" not in options:
        return scaffold_report(answer)
    if answer.get("kind") in ("UnknownTypeError", "UnknownConfigError"):
        raise _unknown(change, answer, error, where)
    at, fix = _advice(answer, where)
    raise UsageError(error, where=at, fix=fix)


def _bug(answer: Mapping[str, Any], where: str) -> BugError:
    """Return the error of an analysis that failed by itself, with what it had found."""
    evidence = [each for each in answer.get("evidence") or () if isinstance(each, dict)]
    rows = [(f"  {each.get('feature')}", _short(each.get("value", ""))) for each in evidence]
    frames = [str(line).rstrip() for line in answer.get("traceback") or ()]
    return BugError(
        str(answer.get("error")),
        where=where,
        fix="report it with the files of the model and the traceback (--json has it whole); nothing was written",
        text="\n".join(["found before that:", aligned(rows)] if rows else []),
        details={name: answer.get(name) for name in ("phase", "evidence", "config")} | {"traceback": frames},
    )


FOLDER: Final = "areal.porting.folder"


def loads_folder(change: Change, folder: Path) -> CheckResult:
    """Return whether the family loads the folder that it was made from, with the logits of its code."""
    started, options = time.monotonic(), change.request.options
    module = [FOLDER, str(folder)]
    if "source" in options:
        module += ["--modeling", _absolute(options["source"])]
    module += ["--trust-source"] if "trust-source" in options else []
    answer = ask(change, module, what="loading the folder", where="--from", seconds=TIMEOUT_SECONDS, failed=BugError)
    detail = "" if answer.get("ok") else f"{folder} is not loaded by its family: {answer.get('error')}"
    return CheckResult("checkpoint", bool(answer.get("ok")), round(time.monotonic() - started, 3), detail)


def write_family(change: Change, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pieces of source that a report stands for, which a child process writes and checks. Raises UsageError
    for what cannot be written."""
    assert change.names is not None
    answer = ask(
        change,
        [WRITER, change.names.pascal],
        what="writing the family",
        where="architecture report",
        seconds=TIMEOUT_SECONDS,
        text=json.dumps(report),
        failed=BugError,
        light=True,
    )
    if answer.get("ok"):
        pieces: dict[str, Any] = answer["family"]
        return pieces
    saved = "report" in change.request.options or "report" in change.request.answers
    if not saved:  # made a moment ago, by the same version
        raise BugError(
            f"the analysis proved what no source can be written of: {answer['error']}",
            where=str(answer.get("where", "architecture report")),
            fix="report it with the files of the model; nothing was written",
        )
    if "where" in answer:
        raise UsageError(str(answer["error"]), where=str(answer["where"]), fix=str(answer["fix"]))
    raise UsageError(
        f"the report says something that no analysis says: {answer['error']}",
        where="--report",
        fix="save one with --analyze-only --json, with the version of areal in this repository",
    )


def _child_arguments(options: Mapping[str, str], source: str) -> list[str]:
    """Return what the analysis is called with. Raises UsageError for options that contradict each other."""
    arguments = [_absolute(source)]
    if "like" in options:
        for name in ("source", "trust-source"):
            if name in options:
                raise UsageError(
                    "modeling code makes a proof possible, so there is nothing to guess",
                    where=f"--{name}",
                    fix=f"leave out --like, or --{name}",
                )
        arguments += ["--like", options["like"]]
    elif "source" in options:
        if "from" not in options and not Path(source).is_dir():
            raise UsageError(
                "a modeling file says nothing without its config.json", where="--source", fix="add --from FOLDER"
            )
        arguments += ["--modeling", _absolute(options["source"])]
    if "trust-source" in options:
        arguments.append("--trust-source")
    elif "analyze-only" in options and "like" not in options:
        arguments.append("--static")
    return arguments


def _unknown(change: Change, answer: Mapping[str, Any], error: str, where: str) -> UsageError:
    """Return the error about a type that nobody knows: the nearest proven families, and three ways on."""
    near = [each for each in answer.get("nearest") or () if isinstance(each, dict)]
    like = str(near[0].get("model_type")) if near else "FAMILY"
    given = change.request.options.get("from", "") if answer.get("kind") == "UnknownConfigError" else ""
    ways = {
        "a checkpoint folder": ["--from", "CHECKPOINT_FOLDER"],
        "a modeling file": ["--from", given or "FOLDER", "--source", "modeling.py", "--trust-source"],
        "a config (unproven)": ["--from", given or "config.json", "--like", like],
    }
    commands = {what: shlex.join(["areal-new", "model", change.request.name, *way]) for what, way in ways.items()}
    families = [(f"  {each.get('model_type')}", _short(each.get("reason", ""), 200)) for each in near]
    parts = ["nearest proven families:", aligned(families)] if near else ["no proven family has a similar name"]
    if answer.get("others"):
        parts.append(f"similar in transformers, but not proven: {', '.join(map(str, answer['others']))}")
    parts += ["ways on:", aligned([(f"  {what}", command) for what, command in commands.items()])]
    return UsageError(
        error,
        where=where,
        fix="check the spelling, or give a checkpoint folder, a modeling file or a config as above",
        text="\n".join(parts),
        details={"nearest": near, "similar": list(answer.get("others") or ()), "ways": commands},
    )


def _advice(answer: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return which option an error is about, and what to do where its text does not say it."""
    kind, nearest = answer.get("kind"), answer.get("nearest") or []
    if kind == "UntrustedSourceError":
        return where, "if you trust it, add --trust-source; --analyze-only shows what reading it alone finds"
    if kind == "LikeError":
        named = ", ".join(str(each.get("model_type")) for each in nearest)
        return "--like", f"leave out --like, or name a family that is proven{f', e.g. {named}' if named else ''}"
    if kind == "ModelingError":
        return "--source", "name the modeling file"
    return where, ""


def read_report(name: str) -> dict[str, Any]:
    """Read a report that was saved with `--analyze-only --json`, or the object of `areal.porting` itself."""
    try:
        loaded = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{name} is not a report: {error}", where="--report", fix="save one with --analyze-only"
        ) from error
    report = loaded.get("report", loaded) if isinstance(loaded, dict) else None
    if not isinstance(report, dict):
        raise UsageError(f"{name} is not a report", where="--report", fix="save one with --analyze-only --json")
    return checked(report)


def checked(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report, if it has the parts that its status promises."""
    missing = [name for name in _NEEDED if not isinstance(report.get(name), str)]
    if not missing and report["status"] not in _PARTS:
        raise _malformed("no known status")
    if not missing:
        missing = [name for name in _PARTS[report["status"]] if not isinstance(report.get(name), list | dict)]
    if missing:
        raise _malformed(f"no {', '.join(missing)}")
    for name in _OBJECTS:
        if not isinstance(report.get(name, {}), dict):
            raise _malformed(f"{name} that are not object")
    for name, keys in _ENTRIES.items():
        entries = report.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(each, dict) and {*keys} <= {*each} for each in entries):
            raise _malformed(f"{name} without {', '.join(keys)}")
    return report


def _malformed(what: str) -> UsageError:
    return UsageError(
        f"the analysis reports {what}",
        where="architecture report",
        fix="analyse again with the version of areal in this repository",
    )


def _absolute(source: str) -> str:
    """Return a path as the child sees it, which runs in the repository; a model_type as it is."""
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


_MAX_DIFFERENCES: Final = 12


def checklist(report: Mapping[str, Any]) -> str:
    """Return what was found and how it is known; what becomes of each config field; what is missing."""
    parts = [
        f"{report['model_type']} ({report['architecture']}, {report.get('source', 'unknown source')}): "
        f"{report['status']}"
    ]
    evidence = report.get("evidence") or ()
    if evidence:
        rows = [
            (str(item["feature"]), _short(item["value"]), str(item["source"]), _short(item["detail"]), _margin(item))
            for item in evidence
        ]
        parts += ["", "features (what, value, known from, where, margin over the next best explanation):"]
        parts.append(aligned(rows))
    fields = report.get("fields") or ()
    if fields:
        parts += ["", "config fields:", aligned([_field_row(use) for use in fields])]
    variants = report.get("variants") or ()
    if variants:
        measured = [
            (str(item["name"]), f"{item.get('parity', 0.0):.1e}", f"of {item.get('tolerance', 0.0):.1e}")
            for item in variants
        ]
        parts += ["", "proven configs (largest difference of a logit):", aligned(measured)]
    if report.get("missing"):
        parts += ["", missing_features(report)]
    parts += [f"\n{line}" for line in differences(report)]
    seconds = report.get("seconds") or {}
    if seconds:
        parts += ["", "seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())]
    return "\n".join(parts)


def missing_features(report: Mapping[str, Any]) -> str:
    """Return what areal cannot express, where it is, and how that is known."""
    rows = [(str(item["feature"]), str(item["where"]), _short(item["detail"], 160)) for item in report["missing"]]
    return "not supported (what, where, evidence):\n" + aligned(rows)


def differences(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how the config differs from those of the nearest families, one text each."""
    found = []
    for near in report.get("nearest") or ():
        rows = [
            (f"  {item['field']}", f"theirs {_short(item['theirs'])}", f"ours {_short(item['ours'])}")
            for item in near["differences"][:_MAX_DIFFERENCES]
        ]
        more = len(near["differences"]) - len(rows)
        text = aligned(rows) if rows else "  none"
        found.append(f"differences to {near['model_type']}:\n{text}{f'{chr(10)}  and {more} more' if more else ''}")
    return tuple(found)


def _field_row(use: Mapping[str, Any]) -> tuple[str, str, str]:
    if use["status"] == "fixed":
        detail = "only " + ", ".join(repr(value) for value in use.get("allowed") or ())
    else:
        detail = str(use.get("reason") or "")
    return str(use["name"]), str(use["status"]), detail


def _short(value: Any, limit: int = 60) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _margin(item: Mapping[str, Any]) -> str:
    return "" if item.get("margin") is None else f"{item['margin']:.0f}x"
