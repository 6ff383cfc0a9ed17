"""Reports: what reaches stdout, for people and for programs."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from tooling.cli.errors import EditedSinceError
from tooling.cli.report import Registration, Report, aligned, document, printable, write_report
from tooling.cli.suggest import did_you_mean, nearest
from tooling.kit.change.plan import PathChange
from tooling.kit.kind import CheckResult


def shown(report, *, as_json=False):
    stream = io.StringIO()
    write_report(report, stream, as_json=as_json)
    return stream.getvalue()


def test_a_report_for_people_is_short_lines():
    report = Report(
        command="undo",
        changes=(PathChange("a.py", b"1\n", None, "the function"),),
        registered=(Registration("registry.py", "RULES", "a", "x:y", 3, "remove"),),
        checks=(CheckResult("tests", ok=False, seconds=1.5, detail="boom\nat a.py:1"),),
        next_steps=("do it",),
    )
    assert shown(report) == (
        "delete    a.py           the function\n"
        "remove    registry.py:3  RULES a\n"
        "✗ tests            1.50 s\n"
        "    boom\n"
        "    at a.py:1\n"
        "next:\n"
        "  do it\n"
    )


def test_nothing_to_do_is_said_only_by_commands_that_change_something():
    assert shown(Report(command="undo")) == "nothing to do\n"
    assert shown(Report(command="list", changing=False)) == ""


def test_a_problem_makes_the_report_a_failure_and_goes_to_stderr(capsys):
    report = Report(command="undo", problem=EditedSinceError("kept", where="a.py", fix="look"))
    assert shown(report) == ""
    assert capsys.readouterr().err == "error: a.py: kept; look\n"
    found = document(report)
    assert (found["ok"], found["exit_code"], found["code"], found["where"]) == (False, 4, "edited", "a.py")


def test_json_is_one_ascii_line_whatever_the_text():
    text = shown(Report(command="list", text="x", data={"units": ["é\udcff\n"]}), as_json=True)
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["units"] == ["é\udcff\n"]


def test_control_characters_of_others_do_not_reach_the_terminal():
    assert printable("a\x1b[2Jb\tc\nd\x9b\r") == "a\\x1b[2Jb\tc\nd\\x9b\\x0d"
    assert printable("\u202etxt.exe") == "\\u202etxt.exe"


def test_half_a_surrogate_pair_is_spelt_out_where_no_stream_could_write_it():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    write_report(Report(command="apply", next_steps=("say \ud800",), text="\udcff"), stream, as_json=False)
    stream.seek(0)
    assert stream.read().endswith("\\udcff\nnext:\n  say \\ud800\n")
    hostile = Report(command="apply", changes=(PathChange("\x1b]0;title\x07", None, b"", "\x1b[31m"),), text="\x1b[1m")
    assert "\x1b" not in shown(hostile)


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "✓ tests"), ("ascii", "ok     tests")])
def test_marks_are_those_that_the_terminal_can_show(encoding, mark):
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    write_report(Report(command="x", checks=(CheckResult("tests", ok=True, seconds=0),)), stream, as_json=False)
    assert mark in buffer.getvalue().decode(encoding)


def test_diffs_are_exact_for_programs_and_coloured_for_people():
    change = PathChange("a.txt", b"old\r\n", b"new \x1b[2J\r\n", "")
    report = Report(command="x", changes=(change,), show_diff=True)
    assert "+new \x1b[2J\r\n" in shown(report)
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8", newline="") as terminal:
        write_report(report, terminal, as_json=False)
        screen = ""
        while "new" not in screen:  # a terminal hands over what was written in pieces
            screen += os.read(leader, 65536).decode()
    os.close(leader)
    assert "\x1b[32m+new \\x1b[2J\\x0d\x1b[0m" in screen
    assert "\x1b[31m-old" in screen


def test_reserved_stdout_sends_everything_else_to_stderr():
    code = (
        "import os, subprocess, sys\n"
        "from tooling.cli.report import progress, reserved_stdout\n"
        "with reserved_stdout() as stream:\n"
        "    print('printed'); os.write(1, b'written\\n'); subprocess.run(['echo', 'child'])\n"
        "    stream.write('kept\\n')\n"
        "with progress('testing'): print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.stdout == b"kept\nafter\n"
    assert sorted(done.stderr.split()) == [b"child", b"printed", b"written"]


def test_columns_are_aligned():
    assert aligned([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"
    assert aligned([]) == ""


def test_names_are_suggested_by_likeness():
    assert nearest("rewrad", ["dataset", "reward"]) == "reward"
    assert nearest("--from_exampels", ["--force", "--from-examples"]) == "--from-examples"
    assert did_you_mean("x", ["reward"]) == ""
    assert did_you_mean("UNDO", ["undo"]) == "did you mean 'undo'?"
