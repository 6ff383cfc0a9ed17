"""The checks of one task, in order, each with its reason when it fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tooling.harness.evaluation.checks.table import KINDS
from tooling.harness.evaluation.records import Result

if TYPE_CHECKING:
    from tooling.harness.evaluation.records import Check, Evaluation
    from tooling.harness.evaluation.workspace import Workspace


def judge(evaluation: Evaluation, workspace: Workspace, *, quick: bool = False) -> list[Result]:
    """Every check; `quick` leaves out the slow ones."""
    return [_result(check, workspace) for check in evaluation.checks if not (quick and check.slow)]


def _result(check: Check, workspace: Workspace) -> Result:
    started = time.monotonic()
    problem = KINDS[check.kind].problem(workspace, check.values)
    return Result(check, problem, time.monotonic() - started)
