"""Which tests ran, by a report in the format of JUnit (`pytest --junit-xml FILE`). The file is somebody's text: it is
measured, and never trusted to be well-formed or small."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES: Final = 100_000_000
_FIX: Final = "make it with `pytest --junit-xml FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """Sums over all suites of one file."""

    name: str
    """File name only."""
    passed: int
    failed: tuple[str, ...]
    """Tests that failed or could not run, "module::test"."""
    skipped: tuple[tuple[str, int], ...]
    """Reason and number of tests, most frequent first."""
    seconds: float
    when: datetime | None
    """When the first suite began, or the file was written."""

    @property
    def total(self) -> int:
        """Tests that the file lists."""
        return self.passed + len(self.failed) + sum(number for _, number in self.skipped)

    def older_than(self, moment: int) -> bool:
        """Whether it was made before a moment (seconds since 1970): then it is about something else."""
        return self.when is None or self.when.timestamp() < moment


def read_report(path: Path) -> TestReport:
    """Raises UsageError for what is no such report."""
    import xml.etree.ElementTree as Xml

    where = f"--test-report {path}"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError("is larger than 100 MB", where=where, fix=_FIX)
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=where, fix=_FIX) from error
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise UsageError("declares a document type, which no test report does", where=where, fix=_FIX)
    try:
        root = Xml.fromstring(content)
    except (Xml.ParseError, ValueError, LookupError) as error:
        raise UsageError(f"is no XML: {error}", where=where, fix=_FIX) from error
    if root.tag not in {"testsuites", "testsuite"}:
        raise UsageError(f"is no test report: its root is <{root.tag}>", where=where, fix=_FIX)
    return _counted(root, path)


def _counted(root: Any, path: Path) -> TestReport:
    passed, failed, skipped, seconds = 0, list[str](), Counter[str](), 0.0
    for case in root.iter("testcase"):
        seconds += _number(case.get("time"))
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (mark := case.find("skipped")) is not None:
            skipped[" ".join((mark.get("message") or mark.text or "no reason given").split())] += 1
        else:
            passed += 1
    reasons = tuple(sorted(skipped.items(), key=lambda item: (-item[1], item[0])))
    return TestReport(
        name=os.path.basename(path),
        passed=passed,
        failed=tuple(dict.fromkeys(failed)),
        skipped=reasons,
        seconds=seconds,
        when=_when(root, path),
    )


def _when(root: Any, path: Path) -> datetime | None:
    """The latest moment that is sure: suites say when they began, the file when it was written."""
    for suite in root.iter("testsuite"):
        try:
            moment = datetime.fromisoformat(suite.get("timestamp") or "")
        except ValueError:
            continue
        return moment if moment.tzinfo is not None else moment.astimezone(UTC)
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _number(text: str | None) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0
