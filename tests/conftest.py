"""Settings every test shares: bounded threads, no network, and property tests that try the same examples every time."""

from __future__ import annotations

import os
import signal

# Before torch is imported anywhere. Test processes share few cores: one thread each, and waiting threads sleep.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

# A busy machine is no failure (deadline), and a red test must be red again on the next run (derandomize).
settings.register_profile("areal", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("areal")


@pytest.fixture(scope="session")
def fork_server():
    """Processes that have imported torch and areal: `fork_server.run_ranks("worker.py", 2)`, `.start("areal", [...])`.

    One server per worker, started with its first test. See areal/testing/fork_server.py.
    """
    from areal.testing.fork_server import ForkServer

    with ForkServer() as server:
        yield server
