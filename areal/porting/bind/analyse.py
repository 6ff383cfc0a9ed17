"""The whole analysis of an architecture: from a source to a report that a generator can write a family from."""

from __future__ import annotations

import json
import logging
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from areal.models.config_fields import HARMLESS_FIELDS, MUST_BE_OFF, TOKEN_FIELDS
from areal.porting.bind.accounting import SKIPPED, Accounts
from areal.porting.bind.base_config import (
    depth_field,
    learn_absences,
    with_undeclared,
    without_aliases,
    without_derived,
)
from areal.porting.bind.binder import Binder
from areal.porting.bind.budget import AnalysisBudget
from areal.porting.bind.expressions import to_json, walk
from areal.porting.bind.legacy_rope import LEGACY_ROPE_FIELDS
from areal.porting.bind.observing import Observer
from areal.porting.bind.partial_rotary import rotated_fields, without_rotated_fields
from areal.porting.bind.predictions import Predictions
from areal.porting.bind.reading import learn
from areal.porting.bind.reporting import checklist, choose, title
from areal.porting.bind.rotary import nested_entries
from areal.porting.family import ArchitectureReport, Constant
from areal.porting.infer.infer import unexplained_parts
from areal.porting.infer.layout import adapter, skipped_names
from areal.porting.probe.instance import build, export, make_tokens, record
from areal.porting.probe.layer_values import LAYERED
from areal.porting.probe.lookup import (
    LikeError,
    UnknownConfigError,
    UnknownTypeError,
    UntrustedSourceError,
    find_family,
)
from areal.porting.probe.source import static_report
from areal.porting.probe.subject import code_of, installed, place_in, quiet, resolve
from areal.porting.probe.tiny import complete, with_fewer_parts
from areal.porting.records import (
    AnalysisError,
    ArchitectureRefusedError,
    FeatureEvidence,
    SubjectError,
    UnsupportedError,
)
from areal.porting.spec import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from areal.porting.probe.subject import Subject


logger = logging.getLogger(__name__)


@quiet()
def analyse(
    subject: Subject, *, tiny: Mapping[str, Any] | None = None, budget: AnalysisBudget | None = None
) -> ArchitectureReport:
    """As `_analyse_whole`, with a boundary around it: an error that the model's own code raises refuses the
    architecture with the place in its code; any other is an AnalysisError, a bug of ours."""
    clock = _Clock()
    try:
        bare = _of_the_type(subject, tiny or {}, clock)
        return bare or _analyse_whole(subject, tiny or {}, clock, budget or AnalysisBudget())
    except ArchitectureRefusedError as error:
        return _refused(subject, clock, error.feature, error.where, error.detail)
    except (SubjectError, MemoryError):
        raise
    except Exception as error:
        place = place_in(error, subject.source_files) if not subject.installed else None
        if place is None:
            raise AnalysisError(error, phase=clock.current, config=clock.config, evidence=clock.evidence) from error
        detail = f"while {clock.current} was looked at: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return _refused(subject, clock, "modeling code that fails by itself", place, detail)


def _of_the_type(subject: Subject, tiny: Mapping[str, Any], clock: _Clock) -> ArchitectureReport | None:
    """Return the report on the bare type of a config.json of transformers, where it is proven and its family takes this
    config: values of one checkpoint hide what others of the type do. None where the config itself has to be analysed.

    Example: a phi3 with longrope has one factor for each pair of a head, so no other number of heads builds beside them
    and nothing says what head_dim is made of; the bare type proves both, one at a time.
    """
    config = subject.raw_config
    if not subject.installed or not config or tiny:
        return None
    try:
        report = _analyse_whole(replace(subject, raw_config=None), tiny, clock, AnalysisBudget())
    except SubjectError as error:
        logger.debug("the bare %s has no tiny config: %s", subject.model_type, error)
        return None
    types = {kind for part in _tables(report.slots.get("layer.rotary")) for kind in part["types"]}
    entries = config.get(ROTARY) or config.get("rope_scaling") or {}
    asked = {str(entry.get("rope_type", entry.get("type", "default"))) for entry in nested_entries(entries)}
    takes = report.status == "proven" and asked <= types | {"default"} and not _differences(config, report)
    return report if takes else None


def _tables(node: Any) -> list[dict[str, Any]]:
    """Return the tables in the JSON of an expression."""
    if not isinstance(node, dict):
        return []
    inner = [table for value in node.values() for table in _tables(value)]
    return [node, *inner] if node.get("kind") == "rotary" else inner


def _refused(subject: Subject, clock: _Clock, feature: str, where: str, detail: str) -> ArchitectureReport:
    """Return the report on an architecture that cannot be analysed any further."""
    return ArchitectureReport(
        status="unsupported",
        model_type=subject.model_type,
        architecture=subject.architecture,
        source=subject.source,
        tiny_config=clock.config,
        evidence=clock.evidence,
        missing=[{"feature": feature, "where": where, "detail": detail}],
        seconds=clock.seconds,
    )


def _analyse_whole(
    subject: Subject, tiny: Mapping[str, Any], clock: _Clock, budget: AnalysisBudget
) -> ArchitectureReport:
    """Return what the architecture computes for any config, proven on tiny instances.

    tiny: values for some fields of the tiny config; the rest is found. budget: what it may cost; an analysis that needs
    more ends as unsupported, naming what it was busy with. Status "unsupported" with `missing` says what
    the blocks cannot express. Raises SubjectError where there is nothing to analyse.
    """
    with clock.phase("tiny"):
        declared = without_aliases(subject, without_derived(subject, _complete(subject, tiny)))
        folded = rotated_fields(subject, declared)
        declared = without_rotated_fields(declared, folded)
        base = with_undeclared(subject, declared, {*SKIPPED, *(each.name for each in folded)})
    try:
        report = _analyse(subject, base, clock, budget, optional=base.keys() - declared.keys())
    except _UnlearnedError as error:
        base = {name: value for name, value in base.items() if name not in error.names}
        report = _analyse(subject, base, clock, budget)
    if report.status == "unsupported":
        # Code may read a field in one place and compute without it in others: such values make no sense together. Where
        # it is absent nothing is unknown, and families refuse configs that hold fields they do not know.
        kept = {name: value for name, value in base.items() if name in declared or _holds(report.spec, value)}
        # Nor need a part be explained that most configs do not have.
        tried = [base]
        for fewer in (kept, declared, with_fewer_parts(subject, declared, tiny)):
            if fewer in tried:
                continue
            tried.append(fewer)
            report = _analyse(subject, fewer, clock, budget)
            if report.status != "unsupported":
                break
    if report.status == "unsupported" and not report.spec:  # not even the base was explained
        with clock.phase("unexplained"):
            report = replace(report, missing=[*report.missing, *_further(subject, report)])
    return report


def _complete(subject: Subject, tiny: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tiny config: of the source's own values, or of the defaults of the class where these lead nowhere.
    Raises SubjectError with the complaint about the source."""
    try:
        return complete(subject, tiny)
    except ArchitectureRefusedError:
        raise
    except SubjectError as error:
        if not subject.raw_config:
            raise
        try:
            return complete(replace(subject, raw_config=None), tiny)
        except SubjectError:
            raise error from None


def _further(subject: Subject, report: ArchitectureReport) -> list[dict[str, Any]]:
    """Return the features besides the main reason that are missing as well, each at the first place where it is
    seen."""
    named = {str(each["feature"]) for each in report.missing}
    found: list[dict[str, Any]] = []
    try:
        for error in unexplained_parts(build(subject, report.tiny_config, attention="eager")):
            if error.feature not in named:
                named.add(error.feature)
                found.append({"feature": error.feature, "where": error.where, "detail": error.detail})
    except Exception as error:  # noqa: BLE001 - the refusal stands; what cannot be looked at adds nothing to it
        logger.debug("looking for further missing features of %s ended with %r", subject.model_type, error)
    return found


def _holds(part: Any, value: Any) -> bool:
    """Return whether a value stands anywhere in a spec as nested JSON."""
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list | tuple):
        return any(_holds(each, value) for each in part)
    return type(part) is type(value) and bool(part == value)


class _UnlearnedError(Exception):
    """What undeclared fields mean where they are absent was not found. Published configs do not have them: a family
    that needed them would load none of these, so they are done without."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = frozenset(names)


def _analyse(
    subject: Subject, base: dict[str, Any], clock: _Clock, budget: AnalysisBudget, *, optional: Collection[str] = ()
) -> ArchitectureReport:
    """Return the report on a base config. Raises _UnlearnedError if the absence of one of the `optional` fields is not
    understood."""
    binder: Binder | None = None
    try:
        clock.config = base
        with clock.phase("base"):
            observer = Observer(subject, base, budget)
        clock.evidence = checklist(observer.inference.evidence)
        if isinstance(base.get(LAYERED), dict):
            detail = "sizes that a config gives to single layers are not bound to fields, and published ones have them"
            raise UnsupportedError("values of single layers in the config", where=f"config.{LAYERED}", detail=detail)
        with clock.phase("reading"):
            depth = depth_field(subject, base, len(observer.inference.spec.layers))
            reader = learn(subject, base, depth, SKIPPED, budget)
            absent = learn_absences(observer, reader)
        unlearned = {name for name in optional if name in reader.names and name not in absent}
        if unlearned:
            raise _UnlearnedError(unlearned)
        with clock.phase("binding"):
            binder = Binder(observer, reader)
            binder.vary()
            predictions = Predictions(binder)
            predictions.accept_late()
            predictions.probe_inactive()
            predictions.probe_neighbours()
            predictions.probe_joint()
            binder.fill_nulls()
            for name in absent:
                binder.probe_without(name)
        with clock.phase("report"):
            return _report(subject, binder, clock)
    except UnsupportedError as error:
        inference = None if binder is None else binder.observer.inference
        missing = [{"feature": error.feature, "where": error.where, "detail": error.detail}]
        return ArchitectureReport(
            status="unsupported",
            model_type=subject.model_type,
            architecture=subject.architecture,
            source=subject.source,
            tiny_config=base,
            spec={} if inference is None else asdict(inference.spec),
            evidence=[] if inference is None else checklist(inference.evidence),
            missing=missing,
            seconds=clock.seconds,
        )


def as_json(report: ArchitectureReport) -> dict[str, Any]:
    """Return the report as plain JSON values."""
    text = json.dumps(
        asdict(report), default=lambda value: sorted(value) if isinstance(value, set | frozenset) else str(value)
    )
    plain: dict[str, Any] = json.loads(text)
    return plain


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = "start"
        """Phase that runs, or ran last."""
        self.config: dict[str, Any] = {}
        """Config that is looked at."""
        self.evidence: list[dict[str, Any]] = []
        """What was found so far."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, self.current = time.perf_counter(), name
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 3)


def _report(subject: Subject, binder: Binder, clock: _Clock) -> ArchitectureReport:
    observer = binder.observer
    tensors = export(observer.instance)
    evidence = [*observer.inference.evidence, *_bindings(binder)]
    reference: dict[str, Any] = {}
    if not subject.installed:
        tokens = make_tokens(observer.instance, batch=2, length=24, seed=1)
        reference = record(observer.instance, tokens)
    fields = []
    for use in Accounts(subject, binder).uses():
        rule = None if use.default_rule is None else to_json(use.default_rule)
        fields.append({name: value for name, value in vars(use).items() if name != "default_rule"})
        fields[-1]["default_rule"] = rule
    blocks = {
        part.value: {
            "class": BLOCKS[part.value].name,
            "module": "areal.models.blocks.block",
            "children": BLOCKS[part.value].children,
        }
        for part in walk(binder.expressions["layer.block"])
        if isinstance(part, Constant)
    }
    return ArchitectureReport(
        status="proven",
        model_type=subject.model_type,
        architecture=subject.architecture,
        source=subject.source,
        title=title(observer.inference.spec),
        tiny_config=observer.base,
        spec=asdict(observer.inference.spec),
        slots={slot: to_json(expression) for slot, expression in sorted(binder.expressions.items())},
        blocks=blocks,
        fields=fields,
        layout=[asdict(entry) for entry in observer.layout],
        skipped=list(
            skipped_names(observer.instance, tensors, adapter(observer.layout, observer.inference.spec).names_on_disk())
        ),
        variants=[asdict(variant) for variant in choose(binder)],
        evidence=checklist(evidence),
        reference=reference,
        code=code_of(subject),
        seconds=clock.seconds,
    )


def _bindings(binder: Binder) -> Iterator[FeatureEvidence]:
    """Yield how well the expressions are known, and what was left out."""
    proven = [each for each in binder.joint_outcomes if each.kind == "proven"]
    predicted = [each for each in proven if not each.inferred]
    if proven:
        worst = max(each.parity / each.tolerance for each in proven)
        yield FeatureEvidence(
            feature="predictions",
            value=f"{len(predicted)} of {len(proven)} configs with many changes at once were predicted",
            source="parity",
            detail=f"largest difference of a logit over the tolerance: {worst:.1e}",
        )
    for name, reason in sorted(binder.restricted.items()):
        yield FeatureEvidence(feature=f"config.{name}", value="only proven values", source="parity", detail=reason)
    for outcome in binder.outcomes:
        if outcome.kind == "unsupported":
            changes = ", ".join(f"{name}={value!r}" for name, value in outcome.changes.items())
            yield FeatureEvidence(feature=f"config {changes}", value="refused", source="parity", detail=outcome.detail)


# ------------------------------------------------------------------------------------------------------------- unproven

# Reports for sources whose code is not run, or that have none: what can be read, and what is taken over unproven.


ROTARY: Final = "rope_parameters"
"""What families that read `rope_parameters` read as well."""


def static(source: str, *, modeling: Path | None = None) -> ArchitectureReport:
    """Return what the code of a folder says by itself, status "static". Nothing is run. Raises SubjectError."""
    found = static_report(source, modeling=modeling)
    architectures = found["architectures"] or [found["classes"][-1]["name"] if found["classes"] else "unknown"]
    evidence = [
        FeatureEvidence(
            feature=each["feature"], value="mentioned", source="source", detail=f"{each['where']}: {each['detail']}"
        )
        for each in found["hints"]
    ]
    for name, places in found["fields_read"].items():
        read = FeatureEvidence(feature=f"config.{name}", value="read", source="source", detail=", ".join(places[:3]))
        evidence.append(read)
    for name in found["fields_unread"]:
        evidence.append(
            FeatureEvidence(feature=f"config.{name}", value="not read", source="source", detail="config.json")
        )
    return ArchitectureReport(
        status="static",
        model_type=str(found["model_type"] or "unknown"),
        architecture=str(architectures[0]),
        source=source,
        evidence=[asdict(line) for line in evidence],
        nearest=found["nearest"],
    )


def like(source: str, family: str) -> ArchitectureReport:
    """Return the report of an installed family in the name of a config, or of a type, whose code nobody has:
    "unproven".

    `nearest` has the fields of the config that the family does not know or would refuse. Raises LikeError where the
    source has code, so that there is nothing to guess, and where the family is not proven itself; SubjectError for a
    source that is not a model.
    """
    config = _without_code(source)
    try:
        known = analyse(installed(find_family(family)))
    except LikeError:
        raise
    except SubjectError as error:
        raise LikeError(str(error)) from error
    if known.status != "proven":
        reasons = ", ".join(str(each["feature"]) for each in known.missing)
        raise LikeError(f"{family} itself cannot be expressed: {reasons}.")
    model_type = str(config["model_type"])
    architectures = list(config.get("architectures") or [known.architecture])[:1]
    said = FeatureEvidence(
        feature="all",
        value=f"taken over from {known.model_type}",
        source="config",
        detail="no code of this architecture was seen",
    )
    return replace(
        known,
        status="unproven",
        model_type=model_type,
        architecture=str(architectures[0]),
        source=source,
        tiny_config={**known.tiny_config, "model_type": model_type, "architectures": architectures},
        evidence=[asdict(said)],
        nearest=[{"model_type": known.model_type, "differences": _differences(config, known)}],
    )


def _without_code(source: str) -> Mapping[str, Any]:
    """Return the config of a source that has no code, or only the name of its type. Raises SubjectError for any
    other."""
    try:
        subject = resolve(source)
    except UnknownConfigError as error:
        return error.config
    except UnknownTypeError as error:
        return {"model_type": error.name}
    except UntrustedSourceError as error:
        raise LikeError(f"{source} has modeling code, so there is nothing to guess.") from error
    raise LikeError(f"transformers has the code of {subject.model_type}, so there is nothing to guess.")


_BESIDE_ROTARY: Final = (*sorted(LEGACY_ROPE_FIELDS), "original_max_position_embeddings")


def _differences(config: Mapping[str, Any], known: ArchitectureReport) -> list[dict[str, Any]]:
    """Return the fields of a config that a family does not know, or whose value it would refuse."""
    uses = {name: use for use in known.fields for name in (use["name"], *use["aliases"])}
    read = {"model_type", *HARMLESS_FIELDS, *TOKEN_FIELDS, *(_BESIDE_ROTARY if ROTARY in uses else ())}
    found = []
    for name, value in sorted(config.items()):
        use = uses.get(name)
        if name in read or value in MUST_BE_OFF.get(name, ()):
            continue
        if use is None or (use["status"] == "fixed" and value not in use["allowed"]):
            found.append({"field": name, "theirs": value, "ours": "not known" if use is None else use["allowed"]})
    return found
