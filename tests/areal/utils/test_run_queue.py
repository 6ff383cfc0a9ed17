"""Time that a thread waits for a processor is told apart from time that it sleeps or computes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from areal.utils.run_queue import RunQueue

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not count waiting"
)


def test_a_thread_that_shares_its_processor_has_waited_for_it():
    processor = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, [{processor}]); print(flush=True)\nwhile True: pass"
    found = []

    def compute():
        os.sched_setaffinity(0, [processor])  # of this thread
        queue, began = RunQueue(), time.monotonic()
        before = queue.seconds()
        while time.thread_time() < 0.05:
            pass
        found.extend([queue.seconds() - before, time.monotonic() - began])

    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as rival:
        rival.stdout.readline()
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join(60)
        rival.kill()
    waited, passed = found
    assert 0 < waited < passed
