"""Try out a run without training: what `areal train --dry-run` and `run.dry_run()` in Python report.

found = dry_run(load_config(Path("gsm8k.yaml")))
found.facts["derived"]["total_steps"]     # plain data, ready for JSON
print(found.text)                         # the same for people
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from areal.trainer.configuration import validation
from areal.trainer.configuration.problems import raise_all
from areal.trainer.configuration.rehearsal import rehearse
from areal.trainer.configuration.report import build_report, render_report
from areal.trainer.recovery import recovery_facts, render_recovery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.trainer.configuration.source import ResolvedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunReport:
    """What a run would do."""

    facts: Mapping[str, Any]
    """Configuration with origins, sizes, memory in bytes, what was tried, notes and recovery; plain data."""
    text: str

    @property
    def refused_because(self) -> str:
        """Why the run would not start in its directory; empty when it would."""
        return str(self.facts["recovery"]["because"] or "")


def dry_run(resolved: ResolvedConfig, *, restart: bool = False) -> DryRunReport:
    """Read rows and headers of weights, render a prompt, call the rewards once, estimate memory; write nothing.

    resolved: with commits in hub names (`areal.trainer.hub_sources`). restart: of the run that is asked about.

    Raises ConfigError with all problems.
    """
    problems = validation.find_problems(resolved.config, resolved.provenance)
    rehearsal = rehearse(resolved.config, resolved.provenance, problems)
    if problems := [*problems, *rehearsal.problems]:
        raise_all(problems)
    facts = build_report(resolved, rehearsal)
    recovery = facts["recovery"] = recovery_facts(
        resolved.config, facts["memory"], restart=restart, rows=rehearsal.fingerprint
    )
    return DryRunReport(facts=facts, text=f"{render_report(facts)}\n\n{render_recovery(recovery)}")
