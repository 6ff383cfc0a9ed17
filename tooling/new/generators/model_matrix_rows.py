"""The rows of a matrix of families: what is asked for, what came out, and the table for people."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One family to try."""

    model_type: str
    tiny: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its tiny config; empty: the analysis makes one up."""
    synthetic: tuple[Mapping[str, Any], ...] = ()
    """Changed configs that the family must load correctly: {"name", "base", "overrides"}."""

    own_name: str = ""
    """Where the model type is not to be the name."""

    @property
    def name(self) -> str:
        """Name of the family to generate."""
        name = re.sub(r"[^a-z0-9]+", "_", (self.own_name or self.model_type).lower())
        return name.strip("_")


@dataclass(kw_only=True)
class Row:
    """What became of one family."""

    name: str
    model_type: str
    outcome: Literal["proven", "refused", "failed", "wrong", "error"] = "proven"
    """failed: generated, but not equal in its own test; wrong: caught by the verification; error: a crash."""
    reason: str = ""
    title: str = ""
    parity: float = 0.0
    """Largest difference of logits over all proven configs."""
    parity_ratio: float = 0.0
    """The same over the tolerance of its config."""
    variants: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds within the analysis."""
    verification: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The model type, and which config of it where that matters."""
        plain = Entry(model_type=self.model_type).name
        return self.model_type if self.name == plain else f"{self.model_type} ({self.name})"

    @property
    def total(self) -> float:
        """Seconds until a person has the family: without the verification."""
        return sum(value for name, value in self.seconds.items() if name != "verify")

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of the body to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - started, 2)

    def test_file(self) -> Path:
        """Generated test, relative to the repository."""
        return Path("tests/areal/models") / f"test_{self.name}.py"

    def count_lines(self, root: Path) -> None:
        """Count what was generated."""
        family = sorted((root / "areal/models" / self.name).glob("*.py"))
        self.lines = {
            "family": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in family),
            "test": len((root / self.test_file()).read_text(encoding="utf-8").splitlines()),
        }

    def take_report(self, report: Mapping[str, Any]) -> None:
        """Outcome and figures of an analysis."""
        if report.get("error"):
            self.outcome, self.reason = "refused", str(report["error"])
            return
        self.title = str(report.get("title", ""))
        self.phases = dict(report.get("seconds", {}))
        if report["status"] != "proven":
            self.outcome = "refused"
            self.reason = "; ".join(f"{entry['feature']} at {entry['where']}" for entry in report.get("missing", ()))
            return
        variants = report.get("variants", ())
        self.variants = len(variants)
        self.parity = max((entry["parity"] for entry in variants), default=0.0)
        self.parity_ratio = max((entry["parity"] / entry["tolerance"] for entry in variants), default=0.0)

    def take_verification(self, found: Mapping[str, Any]) -> None:
        """What the verification says: a family is wrong by anything wrong or crashed, unproven by nothing right."""
        self.verification = dict(found)
        if not found.get("equal"):
            refusals = [str(each["reason"]) for each in found.get("refusals", ())] or ["no config was possible"]
            self.outcome, self.reason = "failed", f"the verification could not load one config: {refusals[0]}"
        caught = [*found.get("wrong_configs", ()), *found.get("crashes", ())]
        if caught:
            self.outcome = "wrong"
            first = caught[0]
            said = first.get("reason") or f"{first.get('error_over_tolerance', 0.0):.1f} times the tolerance"
            self.reason = f"{len(caught)} configs, the first: {first['config']}: {said}"

    def to_json(self) -> dict[str, Any]:
        """All fields and the total."""
        return {**self.__dict__, "total_seconds": round(self.total, 2)}


def read_entries(file: str) -> list[Entry]:
    """The families of a matrix file. Raises UsageError naming what is wrong with it."""
    try:
        loaded = json.loads(Path(file).read_text(encoding="utf-8"))
        if isinstance(loaded, list):
            loaded = {"models": [{"model_type": name} if isinstance(name, str) else name for name in loaded]}
        synthetic = loaded.get("synthetic", [])
        entries = [
            Entry(
                model_type=str(model["model_type"]),
                tiny=dict(model.get("tiny_kwargs", {})),
                synthetic=tuple(entry for entry in synthetic if entry["base"] == model["model_type"]),
            )
            for model in loaded["models"]
        ]
    except (OSError, ValueError) as error:
        raise _no_matrix(file, f"cannot be read as JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_matrix(file, f"is no matrix: {error!r}") from error
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise _no_matrix(file, f"names {', '.join(twice)} twice" if twice else "names no model type")
    return entries


def _no_matrix(file: str, what: str) -> UsageError:
    return UsageError(
        f"{file} {what}",
        where="--matrix",
        fix='write a JSON list of model types, or {"models": [{"model_type": "llama", "tiny_kwargs": {...}}]}',
    )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts, and how long a family takes."""
    outcomes = [row.outcome for row in rows]
    proven = sorted(row.total for row in rows if row.outcome == "proven")
    counts: dict[str, Any] = {name: outcomes.count(name) for name in ("proven", "refused", "failed", "wrong", "error")}
    if proven:
        counts["seconds"] = {
            "median": round(statistics.median(proven), 1),
            "p90": round(proven[int(0.9 * (len(proven) - 1))], 1),
            "max": round(proven[-1], 1),
        }
        counts["lines_median"] = int(statistics.median(row.lines["family"] for row in rows if row.outcome == "proven"))
    return counts


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line per family, then the counts."""
    lines = [
        "| model_type | outcome | parity | of tolerance | configs | lines | test lines | seconds | verified |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.outcome == "proven":
            found = row.verification
            checked = f"{found.get('equal', 0)} equal, {found.get('refused', 0)} refused"
            lines.append(
                f"| `{row.label}` | proven | {row.parity:.1e} | {row.parity_ratio:.2f} | {row.variants} | "
                f"{row.lines['family']} | {row.lines['test']} | {row.total:.1f} | {checked} |"
            )
        else:
            reason = " ".join(row.reason.replace("|", "/").split())[:240]
            lines.append(f"| `{row.label}` | {row.outcome}: {reason} | | | | | | {row.total:.1f} | |")
    counts = summary(rows)
    lines += ["", ", ".join(f"{counts[name]} {name}" for name in ("proven", "refused", "failed", "wrong", "error"))]
    if "seconds" in counts:
        seconds = counts["seconds"]
        lines[-1] += f"; {seconds['median']} s per family in the median, {seconds['p90']} s at 90 %, {seconds['max']} s"
    return "\n".join(lines)
