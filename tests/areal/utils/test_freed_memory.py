"""What a process has freed it uses again, without asking the system for pages."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

COUNT = """
import resource
from areal.utils.freed_memory import keep_freed_memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        # Each within the 32 MiB of glibc before 2.35; together more than it keeps by itself, twice the largest one.
        blocks = [b"x" * (24 << 20) for _ in range(3)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given = pages()
print(keep_freed_memory())
pages()
print(given, pages())
"""


def count(**environment):
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return done.stdout.splitlines()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="the C library is not glibc, whose memory this is about",
)
def test_freed_blocks_are_used_again():
    kept, pages = count()
    before, after = map(int, pages.split())
    assert kept == "True"
    assert before > 20 * max(1, after)  # with huge pages, there are few to begin with


@pytest.mark.exhaustive
def test_thresholds_of_the_environment_stay():
    assert count(MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
    assert count(GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")[0] == "False"
