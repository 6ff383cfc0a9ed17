"""Says whether a unit works, as far as its tests have shown, and keeps it in the unit's receipt.

    written   its files are there; its tests have not run to their end, or prove nothing (skipped, expected to fail)
    proven    its tests have passed
    failed    its tests have run, and failed

A receipt is written together with its files, and says "written"; what the tests say follows in a transaction of its
own. Whatever ends a run between the two leaves the truth behind. The receipt also holds a hash of the files that were
tested: after an edit, the tests have to run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tooling.cli.errors import ToolError
from tooling.kit.change.plan import Plan, sha256
from tooling.kit.receipts import Proof

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.kit.kind import CheckResult
    from tooling.kit.receipts import ProofState, Receipt


class Standing(NamedTuple):
    """What is known of a unit now."""

    receipt: Receipt
    current: bool
    """Whether the files are those that were tested."""

    @property
    def proven(self) -> bool:
        """Whether the unit's tests have passed with the files as they are."""
        return self.current and self.receipt.proof.state == "proven"

    @property
    def command(self) -> str:
        """Command that runs the tests."""
        return f"areal-new prove {self.receipt.kind} {self.receipt.name}"

    @property
    def advice(self) -> str:
        """Return what to do about a unit that is not proven, to follow what is known of it."""
        return "" if self.proven or not self.receipt.tests_of_unit else f"; `{self.command}` runs its tests"

    def __str__(self) -> str:
        """Return what people read: "proven (12 passed)"."""
        proof = self.receipt.proof
        outcomes = ", ".join(f"{count} {word}" for word, count in sorted(proof.outcomes.items()))
        counted = f" ({outcomes})" if outcomes else ""
        if not self.receipt.tests_of_unit:
            return "written; it has no tests that could prove it"
        if proof.state == "written":
            return f"written, not proven{counted if self.current else ''}"
        if proof.state == "failed":
            return f"written, its tests failed{counted}{'' if self.current else '; edited since'}"
        return f"proven{counted}" if self.current else "edited since it was proven"

    def as_data(self) -> dict[str, object]:
        """Return the JSON object."""
        proof = self.receipt.proof
        return {
            "kind": self.receipt.kind,
            "name": self.receipt.name,
            "state": proof.state,
            "current": self.current,
            "outcomes": dict(proof.outcomes),
            "tests": list(proof.tests),
            "summary": str(self),
        }


def standing(plan: Plan, receipt: Receipt) -> Standing:
    """Return what is known of a unit, with its files as they will be after the plan."""
    return Standing(receipt, receipt.proof.tested == hash_files(plan, receipt))


def hash_files(plan: Plan, receipt: Receipt) -> str:
    """Return one SHA-256 of the unit's files and their paths, as they will be after the plan."""
    return sha256("".join(f"{_hash(plan, path)}  {path}\n" for path in sorted(receipt.files)).encode())


def _hash(plan: Plan, path: str) -> str:
    try:
        content = plan.read(path)
    except ToolError:  # a link or a folder in its place
        content = None
    return "-" if content is None else sha256(content)


def tests_there(plan: Plan, receipt: Receipt) -> list[str]:
    """Return the unit's test files that exist after the plan."""
    return [path for path in receipt.tests_of_unit if _hash(plan, path) != "-"]


def proof_of(tests: Sequence[str], result: CheckResult, tested: str) -> Proof:
    """Return what a run of tests says. Tests that passed only because nothing was compared (all of them skipped, one
    expected to fail) prove nothing."""
    outcomes = result.outcomes
    empty = not tests or (bool(outcomes) and "passed" not in outcomes) or "xfailed" in outcomes
    state: ProofState = "failed" if not result.ok else "written" if empty else "proven"
    return Proof(state, tuple(tests), outcomes, tested)
