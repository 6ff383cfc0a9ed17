"""SIGTERM and Ctrl-C stop a loop at a safe point; a second Ctrl-C stops it at once."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from areal.infra.checkpoint.run_control import StopRequest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_only_sets_the_flag(number, code):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert (stop.requested, stop.exit_code) == (False, 0)
        os.kill(os.getpid(), number)
        assert stop.requested
        assert (stop.signal_number, stop.exit_code) == (number, code)
    assert signal.getsignal(number) is before


@pytest.mark.fault(
    row=25,
    injected="SIGTERM twice, then Ctrl-C",
    seen="the second SIGTERM does not cut the save short; Ctrl-C then interrupts at once",
)
def test_a_second_ctrl_c_interrupts_and_a_second_sigterm_does_not():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == 143


def test_code_may_ask_too_and_another_thread_may_watch(caplog):
    seen = []

    def watch():
        with StopRequest() as stop:
            stop.request()
            seen.append((stop.requested, stop.exit_code))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [(True, 0)]
    assert "main thread" in caplog.text


def test_a_process_finishes_its_step_after_sigterm():
    script = (
        "import time; from areal.infra.checkpoint.run_control import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while not stop.requested:\n"
        "        time.sleep(0.01)\n"
        "    print('saved', flush=True)\n"
        "raise SystemExit(stop.exit_code)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "saved\n"
        assert process.wait(timeout=60) == 143
