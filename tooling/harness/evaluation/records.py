"""What an evaluation is, and what comes out of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TASKS: Final = "tests/skills"
"""A folder for each skill: its tasks, and how their results are judged."""


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion that a program can judge."""

    says: str
    """The sentence of evals.json that it stands for."""
    kind: str
    values: Mapping[str, Any]
    """What the kind takes: {"path": "areal/reward/registry.py", "table": "REWARDS", "key": "letters"}."""
    slow: bool = False
    """It takes more than a few seconds, and is left out by --quick."""


@dataclass(frozen=True, slots=True)
class SkillEvaluation:
    """One task of a skill."""

    skill: str
    id: int
    prompt: str
    expected: str
    """For people: what a good result is."""
    files: Mapping[str, str]
    """Files that are put into the workspace: place there -> path in this repository."""
    steps: tuple[Mapping[str, Any], ...]
    """What is done to the workspace before the task begins, in order."""
    checks: tuple[Check, ...]

    @property
    def name(self) -> str:
        """Return skill and number, e.g. "add-reward/1"."""
        return f"{self.skill}/{self.id}"


@dataclass(frozen=True, slots=True)
class Result:
    """One check, done."""

    check: Check
    problem: str
    """"" when what it says is so."""
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return the result for JSON, with the names that agentskills.io has in its grading.json."""
        return {
            "text": self.check.says,
            "passed": not self.problem,
            "evidence": self.problem or "as expected",
            "kind": self.check.kind,
            "seconds": round(self.seconds, 3),
        }
