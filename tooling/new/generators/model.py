"""The page of the model generator: analyses an architecture in a child process and turns its report into answers.

`areal.porting` runs with the repository's own interpreter and speaks JSON: this package never imports the
framework, torch or transformers. What the analysis cannot prove is refused here, before anything is rendered; code of a
stranger runs only with `--trust-source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ConflictError, UnsupportedError, UsageError
from tooling.kit.kind import Findings, Prepared
from tooling.new.generators.model_analysis import analyse, read_report
from tooling.new.generators.model_checklist import checklist, differences, missing_features
from tooling.new.generators.model_family import family
from tooling.new.generators.model_matrix import run_matrix
from tooling.new.generators.model_names import model_type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.kit.kind import PrepareRequest

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
)
"""Parts of a report that the family is made of; times and measurements would differ from run to run."""


def prepare(request: PrepareRequest) -> Prepared:
    """The report, and the pieces of source it stands for.

    Raises UsageError for a source that cannot be analysed, UnsupportedError with the features that cannot be expressed.
    """
    if "report" in request.answers and not request.options:
        # An update: the pieces are made again, by this version of the page.
        return Prepared(answers={"family": family(request.answers["report"], request.names, request.root)})
    if "matrix" in request.options:
        return Prepared(findings=run_matrix(request.root, request.python, request.options["matrix"]))
    report = _report(request)
    if "analyze-only" in request.options:
        return Prepared(findings=Findings(checklist(report), {"report": dict(report)}))
    _refuse_unproven(report, request.names.raw)
    model_type_name(report["model_type"])
    kept = {name: report[name] for name in _KEPT if name in report}
    kept["fields"] = [_without_nothing(use) for use in report["fields"]]
    kept["layout"] = [_without_nothing(entry) for entry in report["layout"]]
    kept["variants"] = [
        {"name": variant["name"], "overrides": variant["overrides"]} for variant in report.get("variants", ())
    ]
    unproven = report["status"] == "unproven"
    try:
        pieces = family(kept, request.names, request.root)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError) as error:
        if "report" not in request.options:
            raise
        raise UsageError(
            f"the report says something that no analysis says: {type(error).__name__}: {error}",
            where="--report",
            fix="save one with --analyze-only --json, with the version of areal in this repository",
        ) from error
    return Prepared(
        answers={"report": kept, "family": pieces},
        warnings=_warnings(report),
        next_steps=_unproven_steps(report) if unproven else (),
    )


def _without_nothing(table: Mapping[str, Any]) -> dict[str, Any]:
    """An entry without what is not said; `default` tells null from absent, so it stays, and 0 is no False."""
    return {
        name: value
        for name, value in table.items()
        if name == "default" or not (value is None or value is False or value in ("", []))
    }


def _report(request: PrepareRequest) -> Mapping[str, Any]:
    options = request.options
    if "report" in options:
        others = [name for name in ("from", "source", "like", "trust-source") if name in options]
        if others:
            raise UsageError(
                "a finished report needs no analysis",
                where=f"--{others[0]}",
                fix=f"leave out --{others[0]} or --report",
            )
        return read_report(options["report"])
    return analyse(request)


def _refuse_unproven(report: Mapping[str, Any], name: str) -> None:
    """Raise for a report that no family may be made of."""
    status = report["status"]
    if status == "unsupported":
        raise UnsupportedError(
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


def _warnings(report: Mapping[str, Any]) -> tuple[str, ...]:
    if report["status"] != "unproven":
        return ()
    return (
        f"UNPROVEN: nobody has compared {report['model_type']!r} with anything; the code is that of "
        f"{report['nearest'][0]['model_type']!r}, and it is not registered",
        *differences(report),
    )


def _unproven_steps(report: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"compare the modeling code of {report['model_type']} with the family line by line; implement or refuse each "
        "field that differs",
        "get a reference: a transformers that has the type, or its modeling file; then prove it: areal-new undo, and "
        "areal-new model NAME --from FOLDER --source modeling.py --trust-source",
        "do not register it before its logits are equal",
    )
