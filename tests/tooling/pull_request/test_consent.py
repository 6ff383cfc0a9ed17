"""Consent at a terminal: a real one, with a person's answer."""

import os
import pty
import select
import signal
import sys
import time

import pytest

from tooling.pull_request.__main__ import main


def at_a_terminal(folder, answer):
    """Run the command in a child on a terminal of its own; return its exit code, and all that was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(each, "w" if each else "r") for each in range(3))
        code = 1
        try:
            code = main(["create"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    shown, end, answered = b"", time.monotonic() + 60, False
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1.0)[0]:
            if answered:  # Ctrl-C just before somebody reads is not noticed by who reads
                os.write(terminal, answer)
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
    if time.monotonic() >= end:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    return code, shown.decode()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("answer", "code"), [(b"yes\n", 0), (b"n\n", 2), (b"\n", 2), (b"\x04", 2)])
def test_a_person_is_shown_the_steps_and_asked(published, answer, code):
    before = published.tip()
    ended, shown = at_a_terminal(published.root, answer)
    assert (ended, f"Replace {before[:12]} on origin?" in shown) == (code, True), shown
    assert shown.index("move") < shown.index("[y/N]")
    assert (published.tip() == before) is (code != 0)
    assert published.there("topic") == published.tip()


def test_nobody_is_asked_when_nothing_is_replaced(world):
    ended, shown = at_a_terminal(world.root, b"n\n")
    assert (ended, "[y/N]" in shown) == (0, False)
    assert world.there("topic") == world.tip()


def test_ctrl_c_at_the_question_changes_nothing(published):
    before = published.tip(), published.backups(), published.files()
    ended, shown = at_a_terminal(published.root, b"\x03")
    assert (ended, "interrupted" in shown) == (130, True), shown
    assert (published.tip(), published.backups(), published.files()) == before
