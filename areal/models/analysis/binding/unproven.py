"""Reports for sources whose code is not run, or that have none: what can be read, and what is nearest."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from areal.models.analysis.binding.analyse import analyse
from areal.models.analysis.family import ArchitectureReport
from areal.models.analysis.oracle.library import find_type, installed
from areal.models.analysis.oracle.source import static_report
from areal.models.analysis.records import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


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


def like(config: Mapping[str, Any], family: str, nearest: list[dict[str, Any]], source: str) -> ArchitectureReport:
    """The report of an installed family in the name of a config that nobody knows, status "unproven".

    Raises SubjectError where the family cannot be analysed, too.
    """
    known = analyse(installed(find_type(family)))
    if known.status != "proven":
        return replace(known, source=source, nearest=nearest)
    return replace(
        known,
        status="unproven",
        model_type=str(config.get("model_type") or "unknown"),
        architecture=str((config.get("architectures") or [known.architecture])[0]),
        source=source,
        tiny_config={**known.tiny_config, "model_type": str(config.get("model_type") or "unknown")},
        variants=[],
        evidence=[
            asdict(
                Evidence(
                    feature="all",
                    value=f"taken over from {family}",
                    source="config",
                    detail="no code of this architecture was seen",
                )
            )
        ],
        nearest=nearest,
    )


def _lines(found: Mapping[str, Any]) -> Iterator[Evidence]:
    for hint in found["hints"]:
        yield Evidence(
            feature=hint["feature"], value="mentioned", source="source", detail=f"{hint['where']}: {hint['detail']}"
        )
    for name, places in found["fields_read"].items():
        yield Evidence(feature=f"config.{name}", value="read", source="source", detail=", ".join(places[:3]))
    for name in found["fields_unread"]:
        yield Evidence(feature=f"config.{name}", value="not read", source="source", detail="config.json")
