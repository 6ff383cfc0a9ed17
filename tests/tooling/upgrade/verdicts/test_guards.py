"""Version checks compared as the code compares them, and which of them are dead."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from tooling.python.conditions import (
    AllOf,
    AnyOf,
    CompareVersion,
    Constant,
    Not,
    Undecided,
    VersionSource,
    compare_versions,
    describe,
    evaluate,
)
from tooling.python.function_bodies import catches
from tooling.upgrade.findings import AuditSeverity, FindingKind
from tooling.upgrade.uses import DeadGuard, SourcePlace
from tooling.upgrade.verdicts.comparison import ReleasePair
from tooling.upgrade.verdicts.guards import ReleaseSide, dead, reachable


class Held:
    """A release of which only its version and its root matter."""

    def __init__(self, root: str, version: str) -> None:
        self.root = root
        self.source = self
        self.origin = self
        self.version = version

    def owns(self, dotted: str) -> bool:
        return dotted == self.root or dotted.startswith(f"{self.root}.")


def up(operator: str, literal: str, parts: int = 0) -> CompareVersion:
    return CompareVersion(VersionSource.MODULE, "up", operator, literal, parts)


SIDE = ReleaseSide([("up", Held("up", "2.0"))])


@pytest.mark.parametrize(
    ("version", "condition", "expected"),
    [
        ("0.11.0", up(">=", "0.9"), True),
        ("5.0.0.dev0", up("<", "5.0.0"), True),
        ("2.9.1+cu128", up("==", "2.9.1"), True),
        ("2.9.1+cu128", up(">", "2.9.1"), False),
        ("4.57.1", up(">=", "4.57", parts=2), True),
        ("4.9", up(">=", "4.57", parts=2), False),
        ("5.0.0rc1", up(">=", "5", parts=1), True),
        ("0.8.5", up("startswith", "0.8."), True),
        ("0.8.5", up("!=", "0.8.5"), False),
        ("unknown", up(">=", "1"), None),
        ("1.0", up(">=", "main"), None),
    ],
)
def test_versions_compare_as_packaging_does(version, condition, expected) -> None:
    assert compare_versions(version, condition) is expected


def test_conditions_have_three_values() -> None:
    yes, no, unknown = Constant(True), Constant(False), Undecided("os.name")
    assert evaluate(AllOf((yes, unknown)), SIDE.answer) is None
    assert evaluate(AllOf((no, unknown)), SIDE.answer) is False
    assert evaluate(AnyOf((yes, unknown)), SIDE.answer) is True
    assert evaluate(AnyOf((no, unknown)), SIDE.answer) is None
    assert evaluate(Not(unknown), SIDE.answer) is None
    assert reachable((yes, Not(no)), SIDE) is True


def test_a_distribution_is_found_under_any_spelling() -> None:
    side = ReleaseSide([("my-dist", Held("my", "2.0"))])
    assert evaluate(CompareVersion(VersionSource.DISTRIBUTION, "My_Dist", ">=", "2"), side.answer) is True


def test_a_package_that_does_not_change_decides_nothing() -> None:
    assert evaluate(CompareVersion(VersionSource.MODULE, "other", ">=", "2"), SIDE.answer) is None


def guard(condition) -> DeadGuard:
    return DeadGuard(SourcePlace("client.py", 3, 0, 3, 9), condition)


PAIR = ReleasePair("up", Held("up", "1.0"), Held("up", "2.0"))


@pytest.mark.parametrize(
    ("condition", "allowed", "answer"),
    [
        (up(">=", "1.5"), ">=2.0", "True"),
        (up("<", "1.5"), ">=2.0", "False"),
        (up(">=", "2.1"), ">=2.0", None),
        (up(">=", "2.1"), ">=2.0,<2.1", None),
        (up(">=", "2.0.1"), ">=2.0,<2.1", None),
        (up("==", "2.0"), "==2.0", "True"),
        (up(">", "1.0"), ">1.0", "True"),
        (up(">=", "2"), "", None),
        (up(">=", "2", parts=1), ">=2.0", "True"),
        (AnyOf((up("<", "3"), up(">=", "3"))), ">=2.0", "True"),
        (AllOf((up(">=", "1.5"), Undecided("x"))), ">=2.0", None),
    ],
)
def test_a_guard_is_dead_if_every_allowed_version_answers_alike(condition, allowed, answer) -> None:
    finding = dead("client.py", guard(condition), PAIR, SpecifierSet(allowed))
    assert (finding is not None) is (answer is not None)
    if finding is not None:
        assert finding.kind is FindingKind.GUARD_DEAD
        assert finding.severity is AuditSeverity.WARNING
        assert f"is {answer} for" in finding.message
        assert not finding.fixable


def test_a_guard_on_another_package_is_not_ours() -> None:
    other = CompareVersion(VersionSource.MODULE, "other", ">=", "1")
    assert dead("client.py", guard(other), PAIR, SpecifierSet(">=2")) is None


@pytest.mark.parametrize(
    ("caught", "raised", "expected"),
    [
        ({"ImportError"}, "ModuleNotFoundError", True),
        ({"ModuleNotFoundError"}, "ImportError", False),
        ({"AttributeError"}, "ImportError", False),
        ({"Exception"}, "TypeError", True),
        ({"*"}, "TypeError", True),
        ({"up.GoneError"}, "TypeError", False),
        ({"LookupError"}, "KeyError", True),
    ],
)
def test_handlers_catch_by_class(caught, raised, expected) -> None:
    assert catches(caught, raised) is expected


def test_guards_read_like_code() -> None:
    assert describe(Not(AllOf((up(">=", "2"), Undecided("x"))))) == "not (up >= 2 and x)"
