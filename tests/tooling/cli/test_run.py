"""The outermost frame of command lines: whatever happens inside becomes a report and an exit code."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tooling.cli.errors import ToolError, WriteError
from tooling.cli.report import Report
from tooling.cli.run import run_cli

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

ROOT = Path(__file__).resolve().parents[3]


def raising(error: BaseException) -> Callable[[TextIO], Report | None]:
    def run(stream: TextIO) -> Report | None:
        raise error

    return run


class OutOfPaperError(ToolError):
    exit_code = 9
    code = "out_of_paper"

    def __init__(self) -> None:
        super().__init__("no paper", fix="put some in", details={"trays": 2})


def test_a_command_may_write_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def run(stream: TextIO) -> None:
        stream.write("by itself\n")

    assert run_cli("tool", [], run) == 0
    assert capsys.readouterr().out == "by itself\n"


def test_errors_become_reports_with_their_details(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("tool", ["--json"], raising(OutOfPaperError())) == 9
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["code"] == "out_of_paper"
    assert found["fix"] == "put some in"
    assert found["trays"] == 2


def test_ctrl_c_ends_with_130_and_says_what_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("interrupted; half is written", "tool undo")
    assert run_cli("tool", ["--json"], raising(KeyboardInterrupt()), interrupted=words) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["error"] == "interrupted; half is written"
    assert found["fix"] == "tool undo"


def test_a_failed_write_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_cli("tool", [], raising(OSError(errno.ENOSPC, "No space left on device", "/tmp/page")))
    assert status == WriteError.exit_code
    printed = "".join(capsys.readouterr())
    assert "No space left on device" in printed
    assert "/tmp/page" in printed


def test_a_bug_never_looks_like_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_cli("tool", ["--json"], raising(ZeroDivisionError("a bug")))
    captured = capsys.readouterr()
    assert status == 1
    assert json.loads(captured.out)["error"] == "internal error: ZeroDivisionError: a bug"
    assert "ZeroDivisionError: a bug" in captured.err


def test_what_else_is_printed_stays_out_of_the_json(capfd: pytest.CaptureFixture[str]) -> None:
    def run(stream: TextIO) -> Report:
        sys.stdout.write("a library talks\n")
        return Report(command="tool", changing=False)

    assert run_cli("tool", ["--json"], run) == 0
    captured = capfd.readouterr()
    json.loads(captured.out)
    assert "a library talks" in captured.err


def test_a_reader_that_went_away_is_no_error() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from tooling.cli.run import run_cli\n"
        "def run(stream):\n"
        "    for _ in range(100000): stream.write('x' * 80 + chr(10))\n"
        "sys.exit(run_cli('tool', [], run))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(ROOT)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
