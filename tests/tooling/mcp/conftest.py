"""A copy of this repository with a git history of its own, and clients of the SDK: over pipes, and in this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tooling.cli.git import find_repository
from tooling.mcp.child import descendants
from tooling.mcp.server import ServerSettings, make_server

ROOT = Path(__file__).resolve().parents[3]
LEFT_OUT = ("benchmarks/", "docs/reference/", "examples/", "tests/areal/", "tests/golden/", "tests/tooling/")
SLEEPY = '"""Sleeps."""\n\nimport time\n\n\nasync def arun_episode() -> None:\n    time.sleep(1)\n'


def run_git(root, *words):
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def git():
    return run_git


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A branch of one commit, which holds a bug that the review finds, and a remote that has its base."""
    root = tmp_path_factory.mktemp("mcp") / "areal"
    for path in find_repository(ROOT).files():
        if not path.startswith(LEFT_OUT):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, root / path)
    run_git(root.parent, "init", "-q", "-b", "main", str(root))
    run_git(root, "config", "core.compression", "0")
    run_git(root, "add", "-A")
    run_git(root, "commit", "-q", "-m", "chore: everything")
    run_git(root.parent, "clone", "-q", "--bare", str(root), "origin.git")
    run_git(root, "remote", "add", "origin", str(root.parent / "origin.git"))
    run_git(root, "fetch", "-q", "origin")
    run_git(root, "switch", "-q", "-c", "sleep")
    (root / "areal/workflow/sleepy.py").write_text(SLEEPY, encoding="utf-8")
    run_git(root, "add", "-A")
    run_git(root, "commit", "-q", "-m", "feat(workflow): sleep a second")
    return root


@pytest.fixture
def copy(original, tmp_path):
    """One that a test may write to."""
    subprocess.run(["cp", "-a", original, tmp_path], check=True)
    return tmp_path / original.name


@pytest.fixture(scope="session")
def connected():
    """connected(root, *options): a client of a server process that serves `root`."""

    @asynccontextmanager
    async def connect(root, *options, mode="auto"):
        words = ["-P", "-m", "tooling.mcp", f"--repo={root}", *options]
        server = StdioServerParameters(command=sys.executable, args=words, cwd=root)
        async with Client(stdio_client(server, errlog=sys.__stderr__), mode=mode) as client:
            yield client

    return connect


@pytest.fixture(scope="session")
def served():
    """served(root, writes=True): a client of a server in this process; commands have processes of their own."""

    def serve(root, *, mode="auto", writes=False, timeout=None, most=25_000):
        settings = ServerSettings(root=root, writes=writes, only=(), timeout=timeout, most=most)
        return Client(make_server(settings), mode=mode)

    return serve


@pytest.fixture
def family():
    """Return a function that lists the processes this test has started, parents first."""
    before = set(descendants(os.getpid()))  # of other tests of this worker, a fork server for one
    return lambda: [each for each in descendants(os.getpid()) if each not in before]


@pytest.fixture
def gone(family):
    """Wait until at most `left` of the processes that this test has started are left; return whether they are."""

    async def wait(left, seconds=60.0):
        with anyio.move_on_after(seconds):
            while len(family()) > left:
                await anyio.sleep(0.05)
        return len(family()) <= left

    return wait
