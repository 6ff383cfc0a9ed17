"""Settings every test shares: a home of its own, no network, bounded threads, the same examples every time.

- HOME and all caches are empty folders, and no configuration of git, pip or uv is read. A test that commits sets an
  identity; a test that needs a package index serves one on loopback.
- A connection to another machine fails the test. `@pytest.mark.network` allows it; such tests run with AREAL_NETWORK=1.
- `tests/cpu_budget.toml` says how many CPU seconds the tests of a folder may take (tests/support/cpu_budget.py).
"""

from __future__ import annotations

import atexit
import gc
import ipaddress
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is imported anywhere. Test processes share few cores: one thread each, and waiting threads sleep.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
# Arrow's own allocator starts a thread when it is imported; workers are forked from a process with one thread.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
# pytest rewrites the assertions of every test module: half of what collection costs, unless the result is kept.
# Programs that tests start follow PYTHONDONTWRITEBYTECODE; so do runs of tests that tests start.
HERMETIC = "AREAL_TEST_HOME"
if HERMETIC not in os.environ:
    sys.dont_write_bytecode = False

DISCARD = "http://127.0.0.1:9"
"""Nothing listens there: programs that tests start reach other machines as little as the tests do."""


def leave_the_users_home() -> None:
    """Point HOME, caches and settings of programs to empty folders of this run; runs inside it use those too."""
    if HERMETIC in os.environ:
        return
    home = tempfile.mkdtemp(prefix="areal-tests-")
    parent = os.getpid()
    atexit.register(lambda: os.getpid() == parent and shutil.rmtree(home, ignore_errors=True))
    for name in list(os.environ):
        if name.startswith(("GIT_", "PIP_", "UV_", "HF_", "XDG_")) and name != "HF_HUB_OFFLINE":
            del os.environ[name]
    os.environ |= {
        HERMETIC: home,
        "HOME": home,
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "HF_HOME": f"{home}/.cache/huggingface",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/torchinductor",
        "GIT_CONFIG_NOSYSTEM": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    # The one setting that tests need: a build server's checkout may belong to another user.
    Path(home, ".gitconfig").write_text(f"[safe]\n\tdirectory = {Path(__file__).parents[1]}\n", encoding="utf-8")
    if "AREAL_NETWORK" not in os.environ:
        os.environ["PIP_NO_INDEX"] = "1"
        os.environ |= dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")
        os.environ |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), DISCARD)


leave_the_users_home()

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Copies of this repository that examples and tests make have this file alone.
pytest_plugins = ["cpu_budget", "forked_workers"] if Path(__file__).with_name("support").is_dir() else []

# A busy machine is no failure (deadline), and a red test must be red again on the next run (derandomize).
settings.register_profile("areal", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("areal")


# ------------------------------------------------------------------------------------------------------ collection


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare the garbage collector: ten thousand tests are made, none of them is garbage. A quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    take_samples(items)
    if "AREAL_NETWORK" not in os.environ:
        for item in items:
            if item.get_closest_marker("network"):
                item.add_marker(pytest.mark.skip(reason="needs the network; set AREAL_NETWORK=1"))


def take_samples(items: list[pytest.Item]) -> None:
    """Mark the cases of `@pytest.mark.sample(n)` tests as exhaustive, but for n of those that are not so already.

    The first case stays, and of the others those whose names have the lowest checksums: a case more moves few others.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("exhaustive"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for first, *others in cases.values():
        (size,) = first.get_closest_marker("sample").args
        for item in sorted(others, key=lambda item: zlib.crc32(item.name.encode()))[size - 1 :]:
            item.add_marker(pytest.mark.exhaustive)


# --------------------------------------------------------------------------------------------------------- network


def is_local(address) -> bool:
    """Return whether a socket address is on this machine; names under .invalid never lead anywhere."""
    if not isinstance(address, tuple):
        return True  # a path, or a family without hosts
    host = str(address[0]).partition("%")[0]
    try:
        return ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in {"", "localhost", socket.gethostname()} or host.endswith((".invalid", ".localhost"))


@pytest.fixture(autouse=True, scope="session")
def no_network():
    """Connections to other machines fail the test that makes them."""
    if "AREAL_NETWORK" in os.environ:
        yield
        return
    patch = pytest.MonkeyPatch()
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self, address, original=original):
            if not is_local(address):
                pytest.fail(f"a test connects to {address}: serve it on loopback, or mark the test `network`")
            return original(self, address)

        patch.setattr(socket.socket, name, guarded)
    yield
    patch.undo()


# -------------------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True)
class Finished:
    """What a command left: its exit code and both streams."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self):
        return json.loads(self.stdout)


@contextmanager
def streams(stdin: str):
    """Descriptors 0, 1 and 2 and the streams of `sys` on files; yields a function that returns what was written."""
    names = ("stdin", "stdout", "stderr")
    before = {name: getattr(sys, name) for name in (*names, *(f"__{name}__" for name in names))}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        given.write(stdin.encode())
        given.seek(0)
        for name in ("stdout", "stderr"):
            before[name].flush()
        saved = [os.dup(number) for number in range(3)]
        try:
            for number, file in enumerate((given, out, error)):
                os.dup2(file.fileno(), number)
                mode = "w" if number else "r"
                stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
                setattr(sys, names[number], stream)
                setattr(sys, f"__{names[number]}__", stream)

            def written():
                sys.stdout.flush()
                sys.stderr.flush()
                for file in (out, error):
                    file.seek(0)
                return [file.read().decode("utf-8", errors="replace") for file in (out, error)]

            yield written
        finally:
            for name, stream in before.items():
                setattr(sys, name, stream)
            for number, descriptor in enumerate(saved):
                os.dup2(descriptor, number)
                os.close(descriptor)


@pytest.fixture(scope="session")
def run_command():
    """`run_command(main, argv, cwd=..., environment=..., stdin=...)`: a command in this process, as if it had its own.

    Returns exit code, stdout and stderr (those of its child processes included) and `.json`. Working folder,
    environment and collection of garbage are afterwards as they were. What depends on a process of its own (start-up,
    signals, imports) needs a real one: one test per command.
    """

    def run(main, argv, *, cwd=None, environment=None, stdin="") -> Finished:
        folder, variables = Path.cwd(), dict(os.environ)
        with streams(stdin) as written:
            try:
                os.chdir(cwd or folder)
                os.environ |= {"COLUMNS": "100", "PWD": str(cwd or folder), **(environment or {})}
                code = main([str(word) for word in argv])
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int | None) else 1
            finally:
                gc.enable()
                os.chdir(folder)
                os.environ.clear()
                os.environ |= variables
            return Finished(code or 0, *written())

    return run


ORIGIN = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_workers_begin(session):
    """Import torch and areal once for the fork servers of all workers, if one needs a server; it takes 5 CPU s."""
    if any("fork_server" in item.fixturenames for item in session.items):
        from areal.testing.fork_server import ForkOrigin

        origin = ForkOrigin()
        session.config.stash[ORIGIN] = origin.address
        session.config.add_cleanup(origin.close)


@pytest.fixture(scope="session")
def fork_server(request):
    """Processes that have imported torch and areal: `fork_server.run_ranks("worker.py", 2)`, `.start("areal", [...])`.

    One server per worker, started with its first test. See areal/testing/fork_server.py.
    """
    from areal.testing.fork_server import ForkServer

    with ForkServer(origin=request.config.stash.get(ORIGIN, "")) as server:
        if costs := request.config.pluginmanager.get_plugin("cpu-costs"):
            costs.children.append(server)
        yield server
        # Once the server has ended, the time of its children is part of this process's own children.
        server.cpu_seconds = 0.0
