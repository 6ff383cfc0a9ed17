"""Reports for sources whose code is not run, or that have none: what can be read, and what is taken over unproven."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from areal.models.config_fields import HARMLESS_FIELDS, MUST_BE_OFF, TOKEN_FIELDS
from areal.porting.bind.analyse import analyse
from areal.porting.bind.older import OLDER_ROTARY
from areal.porting.family import ArchitectureReport
from areal.porting.probe.library import find_type, installed
from areal.porting.probe.source import static_report
from areal.porting.probe.subject import (
    UnknownConfigError,
    UnknownTypeError,
    UntrustedSourceError,
    resolve,
)
from areal.porting.records import Evidence, SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROTARY: Final = "rope_parameters"
"""What families that read `rope_parameters` read as well."""


class LikeError(SubjectError):
    """A family cannot stand in for the source: it is none itself, or nothing has to be guessed."""


def static(source: str, *, modeling: Path | None = None) -> ArchitectureReport:
    """What the code of a folder says by itself, status "static". Nothing is run. Raises SubjectError."""
    found = static_report(source, modeling=modeling)
    architectures = found["architectures"] or [found["classes"][-1]["name"] if found["classes"] else "unknown"]
    return ArchitectureReport(
        status="static",
        model_type=str(found["model_type"] or "unknown"),
        architecture=str(architectures[0]),
        source=source,
        evidence=[asdict(line) for line in _lines(found)],
        nearest=found["nearest"],
    )


def like(source: str, family: str) -> ArchitectureReport:
    """The report of an installed family in the name of a config, or of a type, whose code nobody has: "unproven".

    `nearest` has the fields of the config that the family does not know or would refuse. Raises LikeError where the
    source has code, so that there is nothing to guess, and where the family is not proven itself; SubjectError for a
    source that is no model at all.
    """
    config = _without_code(source)
    try:
        known = analyse(installed(find_type(family)))
    except SubjectError as error:
        raise LikeError(str(error)) from error
    if known.status != "proven":
        reasons = ", ".join(str(each["feature"]) for each in known.missing)
        raise LikeError(f"{family} itself cannot be expressed: {reasons}.")
    model_type = str(config["model_type"])
    architectures = list(config.get("architectures") or [known.architecture])[:1]
    said = Evidence(
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
    """The config of a source that has no code, or only the name of its type. Raises SubjectError for any other."""
    try:
        subject = resolve(source)
    except UnknownConfigError as error:
        return error.config
    except UnknownTypeError as error:
        return {"model_type": error.name}
    except UntrustedSourceError as error:
        raise LikeError(f"{source} has modeling code, so there is nothing to guess.") from error
    raise LikeError(f"transformers has the code of {subject.model_type}, so there is nothing to guess.")


def _differences(config: Mapping[str, Any], known: ArchitectureReport) -> list[dict[str, Any]]:
    """Fields of a config that a family does not know, or whose value it would refuse."""
    uses = {name: use for use in known.fields for name in (use["name"], *use["aliases"])}
    read = {"model_type", *HARMLESS_FIELDS, *TOKEN_FIELDS, *(OLDER_ROTARY if ROTARY in uses else ())}
    found = []
    for name, value in sorted(config.items()):
        use = uses.get(name)
        if name in read or value in MUST_BE_OFF.get(name, ()):
            continue
        if use is None or (use["status"] == "fixed" and value not in use["allowed"]):
            found.append({"field": name, "theirs": value, "ours": "not known" if use is None else use["allowed"]})
    return found


def _lines(found: Mapping[str, Any]) -> Iterator[Evidence]:
    for hint in found["hints"]:
        yield Evidence(
            feature=hint["feature"], value="mentioned", source="source", detail=f"{hint['where']}: {hint['detail']}"
        )
    for name, places in found["fields_read"].items():
        yield Evidence(feature=f"config.{name}", value="read", source="source", detail=", ".join(places[:3]))
    for name in found["fields_unread"]:
        yield Evidence(feature=f"config.{name}", value="not read", source="source", detail="config.json")
