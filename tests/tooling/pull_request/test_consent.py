"""Consent at a terminal: a real one, with a person's answer."""

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def at_a_terminal(folder, answer):
    """Run the command on a terminal of its own; its exit code, and all that was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.fspath(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "tooling.pull_request", "create"])
    shown, end, answered = b"", time.monotonic() + 60, False
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
        if b"[y/N]" in shown and not answered:
            os.write(terminal, answer)
            answered = True
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    return code, shown.decode()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"yes\n", 0), (b"n\n", 2), (b"\n", 2), (b"\x04", 2)])
def test_a_person_is_shown_the_steps_and_asked(world, answer, code):
    world.git("push", "-q", "origin", "topic")
    before = world.tip()
    ended, shown = at_a_terminal(world.root, answer)
    assert (ended, f"Replace {before[:12]} on origin?" in shown) == (code, True), shown
    assert shown.index("move") < shown.index("[y/N]")
    assert (world.tip() == before) is (code != 0)
    assert world.there("topic") == world.tip()


def test_nobody_is_asked_when_nothing_is_replaced(world):
    ended, shown = at_a_terminal(world.root, b"n\n")
    assert (ended, "[y/N]" in shown) == (0, False)
    assert world.there("topic") == world.tip()


def test_ctrl_c_at_the_question_changes_nothing(world):
    world.git("push", "-q", "origin", "topic")
    before = world.tip(), world.backups(), world.files()
    ended, shown = at_a_terminal(world.root, b"\x03")
    assert (ended, "interrupted" in shown) == (130, True), shown
    assert (world.tip(), world.backups(), world.files()) == before
