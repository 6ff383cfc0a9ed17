"""Count the CPU seconds of tests by folder, and hold full runs to tests/cpu_budget.toml.

A test's cost is that of its set-up, call and teardown in this process and in child processes that ended meanwhile. The
budgets are judged with `--cpu-budget`, which `make test` gives.
`--cpu-report=FILE` writes what was measured: {"folders": {...}, "modules": {...}, "collection": ...}.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

BUDGETS = Path(__file__).parents[1] / "cpu_budget.toml"
WARNING, FAILURE = 1.0, 1.5
SLACK = 5.0
"""CPU seconds of the machine the budgets were measured on by which a folder may always exceed its budget: one process
more that starts cold is half of a budget of 4."""
AIM = 330.0
"""CPU seconds that all budgets together should not exceed: with collection and the other gates, 400 on two cores."""


def folder_of(module: str, budgets: dict[str, float]) -> str:
    """Return the longest budgeted folder that holds a module."""
    return max((folder for folder in budgets if module.startswith(f"{folder}/")), key=len, default="")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("cheap_first"):
        put_cheap_first(items, read_budgets())


def put_cheap_first(items: list[pytest.Item], budgets: dict[str, float]) -> None:
    """Order folders by budget, and in each put files with slow tests first: else one is at work when all are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (budgets.get(folder_of(item.nodeid, budgets), 0.0), item.path not in slow))


def read_budgets() -> dict[str, float]:
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))["seconds"]


def pace_of(spent: dict[str, float], budgets: dict[str, float]) -> float:
    """Return how much slower this machine is than the budgets assume: the median share of the folders, at least 1."""
    shares = [seconds / budgets[folder] for folder, seconds in spent.items() if folder in budgets]
    return max(1.0, median(shares)) if shares else 1.0


def judge(spent: dict[str, float], budgets: dict[str, float]) -> tuple[list[str], list[str]]:
    """Return lines about folders over their budgets: those that only warn, and those that fail the run. Budgets that
    are too many together warn as well.

    A slower machine takes longer for every folder, which is no fault of one: budgets grow with its pace.
    `{"a": 20, "b": 30, "c": 90}` of budgets of 20 each: the pace is 1.5, so that "c" has taken 90 of 30 s.
    """
    warned, failed = [], []
    if (total := sum(budgets.values())) > AIM:
        warned.append(
            f"all budgets together: {total:.0f} CPU s, aim {AIM:.0f}: make tests cheaper, then lower {BUDGETS.name}"
        )
    pace = pace_of(spent, budgets)
    for folder, seconds in sorted(spent.items()):
        allowed = budgets.get(folder, 0.0) * pace
        share = seconds / allowed if allowed else 0.0
        line = f"{folder}: {seconds:.0f} CPU s, budget {allowed:.0f} ({share:.0%})"
        if share > FAILURE and seconds > allowed + SLACK * pace:
            failed.append(line)
        elif share > WARNING:
            warned.append(line)
    return warned, failed


def pytest_addoption(parser):
    group = parser.getgroup("cpu budget")
    group.addoption("--cpu-budget", action="store_true", help="fail when a folder takes 150 %% of its CPU budget")
    group.addoption("--cheap-first", action="store_true", help="order folders by their CPU budgets, slow files first")
    group.addoption("--cpu-report", metavar="FILE", help="write the CPU seconds by folder and module as JSON")


def pytest_configure(config):
    config.pluginmanager.register(Costs(config), "cpu-costs")


class Costs:
    """What modules cost: measured in workers, summed where the reports arrive."""

    def __init__(self, config):
        self.config = config
        self.modules: Counter[str] = Counter()
        self.children = []
        """What has `cpu_seconds` of processes that are not children of this one: fork servers."""
        self.before = self.cpu_seconds()
        self.collection = 0.0

    @property
    def is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    def cpu_seconds(self) -> float:
        found = os.times()
        own = found.user + found.system + found.children_user + found.children_system
        return own + sum(each.cpu_seconds for each in self.children)

    def pytest_collection_finish(self, session):
        self.collection = self.cpu_seconds() - self.before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        before = self.cpu_seconds()
        try:
            return (yield)
        finally:
            self.modules[item.nodeid.partition("::")[0]] += self.cpu_seconds() - before

    def pytest_sessionfinish(self, session):
        if self.is_worker:
            self.config.workeroutput["cpu"] = dict(self.modules)

    def pytest_worker_ended(self, output):
        self.modules.update(output.get("cpu", {}))

    def folders(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the seconds spent by budgeted folder, and the budgets."""
        budgets = read_budgets()
        spent: Counter[str] = Counter()
        for module, seconds in self.modules.items():
            spent[folder_of(module, budgets)] += seconds
        return dict(spent), budgets

    def pytest_terminal_summary(self, terminalreporter):
        if self.is_worker or not (self.config.getoption("cpu_budget") or self.config.getoption("cpu_report")):
            return
        spent, budgets = self.folders()
        if path := self.config.getoption("cpu_report"):
            found = {"folders": spent, "modules": dict(self.modules.most_common()), "collection": self.collection}
            found = {name: _rounded(value) for name, value in found.items()}
            Path(path).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        warned, failed = judge(spent, budgets)
        total = sum(spent.values())
        terminalreporter.write_line(
            f"CPU: {total:.0f} s of tests (budgets {sum(budgets.values()):g}, on this machine "
            f"{sum(budgets.values()) * pace_of(spent, budgets):.0f}), {self.collection:.0f} s of collection"
        )
        for line in warned:
            terminalreporter.write_line(f"warning: {line}", yellow=True)
        for line in failed:
            terminalreporter.write_line(f"over budget: {line}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    costs = session.config.pluginmanager.get_plugin("cpu-costs")
    judged = session.config.getoption("cpu_budget") and not costs.is_worker and not exitstatus
    if judged and judge(*costs.folders())[1]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _rounded(value):
    if isinstance(value, dict):
        return {name: round(seconds, 2) for name, seconds in value.items()}
    return round(value, 2)
