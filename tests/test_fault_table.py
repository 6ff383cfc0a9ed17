"""docs/faults.md is made of the marks at the tests, and every required fault has a test or a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "generate_fault_table.py"
GOOD = """
import pytest

@pytest.mark.fault(row=4, injected="one | byte", seen="it is " "noticed")
@pytest.mark.parametrize("n", [1, 2])
def test_a_byte(n): ...

class TestMore:
    @pytest.mark.fault(row=2, injected="a kill", seen="nothing lost")
    @pytest.mark.fault(row=1, injected="another kill", seen="nothing lost either")
    async def test_a_kill(self): ...
"""
REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.unit.test_made" name="test_a_byte[1]" time="1.25"/>
<testcase classname="tests.unit.test_made" name="test_a_byte[2]" time="0.5">{first}</testcase>
<testcase classname="tests.unit.test_made.TestMore" name="test_a_kill" time="0.1">
<skipped message="no permission" type="pytest.skip"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def tests(tmp_path):
    folder = tmp_path / "tests"
    (folder / "unit").mkdir(parents=True)
    (folder / "unit" / "test_made.py").write_text(GOOD)
    return folder


def generate(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def table(tests, page, *more):
    done = generate("--tests", tests, "--page", page, "--json", *more)
    return done.returncode, json.loads(done.stdout)


def test_marks_become_rows_in_order(tests, tmp_path):
    _, found = table(tests, tmp_path / "faults.md")
    rows = {row["number"]: row["injections"] for row in found["rows"]}
    assert [item["test"] for item in rows[4]] == ["tests/unit/test_made.py::test_a_byte"]
    assert [item["test"] for item in rows[1] + rows[2]] == ["tests/unit/test_made.py::TestMore::test_a_kill"] * 2
    assert rows[4][0]["seen"] == "it is noticed"
    assert rows[3] == []
    assert not found["ok"]
    assert any(problem.startswith("row 3 (disk full") for problem in found["problems"])


def test_seconds_come_from_the_report_and_stay_until_the_next_one(tests, tmp_path):
    page, report = tmp_path / "faults.md", tmp_path / "report.xml"
    report.write_text(REPORT.format(first=""))
    generate("--tests", tests, "--page", page, "--junit", report)
    lines = page.read_text().splitlines()
    assert "| one \\| byte | it is noticed | `tests/unit/test_made.py::test_a_byte` | 1.8 |" in lines
    assert any(line.endswith("| skipped: no permission |") for line in lines)
    generate("--tests", tests, "--page", page)
    assert page.read_text().splitlines() == lines


def test_a_marked_test_that_failed_is_a_problem(tests, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(first='<failure message="no"/>'))
    code, found = table(tests, tmp_path / "faults.md", "--junit", report)
    assert code == 1
    assert any("test_made.py::test_a_byte failed, says its report" in problem for problem in found["problems"])


def test_a_page_that_lags_behind_is_named_with_the_command(tests, tmp_path):
    page = tmp_path / "faults.md"
    generate("--tests", tests, "--page", page)
    (tests / "unit" / "test_made.py").write_text(GOOD.replace("a kill", "a hard kill"))
    done = generate("--tests", tests, "--page", page, "--check")
    assert done.returncode == 1
    assert f"{page} is not what the marks say; run `python scripts/generate_fault_table.py`" in done.stderr


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("row=4", "row=999"), "row 999 is not in fault_table.toml"),
        (('seen="it is " "noticed"', 'seen=" "'), "by keyword and not empty"),
        (('seen="it is " "noticed"', "seen=TEXT"), "written out in literals"),
        (('row=4, injected="one | byte", seen="it is " "noticed"', '4, "a", "b"'), "by keyword and not empty"),
        (('@pytest.mark.parametrize("n", [1, 2])', "@pytest.mark.skip"), "never runs proves nothing"),
    ],
)
def test_a_mark_that_says_nothing_is_refused_with_its_place(tests, tmp_path, change, message):
    (tests / "unit" / "test_made.py").write_text(GOOD.replace(*change))
    done = generate("--tests", tests, "--page", tmp_path / "faults.md")
    assert done.returncode == 2
    assert message in done.stderr
    assert "tests/unit/test_made.py::test_a_byte" in done.stderr
    assert not (tmp_path / "faults.md").exists()


def test_something_that_is_no_report_is_refused(tests, tmp_path):
    (tmp_path / "report.xml").write_text("no xml")
    done = generate("--tests", tests, "--page", tmp_path / "faults.md", "--junit", tmp_path / "report.xml")
    assert done.returncode == 2
    assert "is no JUnit report" in done.stderr
