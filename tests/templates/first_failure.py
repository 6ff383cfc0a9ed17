"""Plugin for runs of generated tests: a module ends at its first failure, and a file says how each module ended.

PYTHONPATH=tests/templates OUTCOMES=outcomes.json python -m pytest -p first_failure tests/areal/reward
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest

gc.set_threshold(50_000)  # libraries are imported within tests, and almost all of what imports make stays

outcomes: dict[str, dict[str, list[str]]] = {}
"""Names of the tests of each module by how they ended: "passed", "failed", "skipped"."""


def pytest_runtest_setup(item):
    if "failed" in outcomes.get(item.nodeid.partition("::")[0], {}):
        pytest.skip("a test of the same module failed")


def pytest_collectreport(report):
    if report.failed:
        outcomes.setdefault(report.nodeid, {}).setdefault("failed", []).append("collection")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        module, _, name = report.nodeid.partition("::")
        outcomes.setdefault(module, {}).setdefault(report.outcome, []).append(name)


def pytest_sessionfinish():
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
