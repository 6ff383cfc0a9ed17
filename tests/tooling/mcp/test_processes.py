"""Commands as processes: whatever happens, they end, and nothing that they started stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from tooling.mcp.child import descendants
from tooling.mcp.processes import READERS, Queue, run
from tooling.mcp.tools.call import ToolOrder


@pytest.fixture(autouse=True, scope="module")
def children_before():
    """Return the processes that other tests of this worker have started, a fork server for one."""
    return set(descendants(os.getpid()))


PROGRAMS = {
    "echo": """
        import json, os, sys
        def main(words):
            print(json.dumps({"words": words, "input": sys.stdin.read(), "argv": sys.argv, "cwd": os.getcwd(),
                              "git": os.environ.get("GIT_DIR"), "path": sys.path[0]}))
            print("to people", file=sys.stderr)
            return 3
        """,
    "sleep": """
        import pathlib, subprocess, sys, time
        def main(words):
            other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            pathlib.Path(words[0] + ".pid").write_text(str(other.pid))
            try:
                print("sleeping", file=sys.stderr)
                time.sleep(600)
            except KeyboardInterrupt:
                pathlib.Path(words[0]).write_text("rolled back")
                raise
        """,
    "stubborn": """
        import signal, sys, time
        def main(words):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("deaf", file=sys.stderr)
            time.sleep(600)
        """,
    "flood": """
        import sys
        def main(words):
            while True:
                sys.stdout.write("x" * 65536)
        """,
    "daemon": """
        import pathlib, subprocess, sys
        def main(words):
            other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            pathlib.Path(words[0] + ".pid").write_text(str(other.pid))
            print("{}")
            return 0
        """,
    "suicide": """
        import os, signal
        def main(words):
            os.kill(os.getpid(), signal.SIGKILL)
        """,
}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Modules that a child process can import."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / f"program_{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return tmp_path


async def started(name, folder, *words, text="", seconds=60.0, output=1 << 20, lines=None):
    async def on_line(line):
        if lines is not None:
            lines.append(line)

    order = ToolOrder(program=name, main=f"program_{name}:main", words=words, input=text, folder=folder)
    return await run(order, seconds=seconds, most=output, on_line=on_line)


async def ended(file):
    """Whether the process whose number is in the file has ended, soon."""
    place = Path("/proc", file.read_text(encoding="utf-8"))
    if not place.parent.joinpath("self").exists():
        pytest.skip("no /proc: processes cannot be looked for here")
    with anyio.move_on_after(60):
        while place.exists():
            await anyio.sleep(0.05)
    return not place.exists()


async def test_a_command_gets_its_words_its_input_and_its_folder(programs, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    lines = []
    hostile = ["--x=; rm -rf /", "a\nb", "$(id)", "\udcff", "x" * 300_000]
    done = await started("echo", programs, *hostile, text='{"a": "\u00e9"}', lines=lines)
    answer = json.loads(done.output)
    assert done.status == 3
    assert answer["words"] == hostile
    assert answer["argv"] == ["echo", *hostile]
    assert answer["input"] == '{"a": "\u00e9"}'
    assert answer["cwd"] == str(programs)
    assert answer["git"] is None
    assert answer["path"] != str(programs), "the folder that is served holds nobody's modules"
    assert lines == ["to people"]
    assert done.stderr == "to people\n"


async def test_a_cancelled_command_rolls_back_and_leaves_nothing(programs, gone):
    lines, left = [], programs / "left"
    async with anyio.create_task_group() as group:

        async def call():
            await started("sleep", programs, str(left), lines=lines)

        group.start_soon(call)
        with anyio.fail_after(60):
            while not lines:
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert left.read_text() == "rolled back"
    assert await gone(0)
    assert await ended(programs / "left.pid")


async def test_time_runs_out(programs, gone):
    done = await started("sleep", programs, str(programs / "left"), seconds=0.5)
    assert done.problem == "timeout"
    assert await gone(0)


@pytest.mark.exhaustive
async def test_a_command_that_does_not_listen_is_killed(programs, gone, monkeypatch):
    monkeypatch.setattr("tooling.mcp.processes.GRACE_SECONDS", 0.2)
    lines = []
    done = await started("stubborn", programs, seconds=5.0, lines=lines)
    assert lines == ["deaf"]
    assert (done.problem, done.status) == ("timeout", -signal.SIGKILL)
    assert await gone(0)


async def test_a_flood_is_stopped(programs, gone):
    done = await started("flood", programs, output=1 << 20)
    assert done.problem == "output"
    assert await gone(0)


async def test_what_a_command_leaves_running_is_not_waited_for(programs):
    done = await started("daemon", programs, str(programs / "left"), seconds=30.0)
    assert (done.status, done.problem, done.output) == (0, "", b"{}\n")
    assert await ended(programs / "left.pid"), "and does not stay either"


async def test_a_killed_command_is_told(programs):
    assert (await started("suicide", programs)).status == -signal.SIGKILL


async def test_when_whoever_started_it_dies_the_command_ends_too(programs):
    """Killed without a chance to tidy up: the pipe closes all the same."""
    left = programs / "left"
    program = f"""
import anyio
from pathlib import Path
from tooling.mcp.processes import run
from tooling.mcp.tools.call import ToolOrder
async def show(line):
    print(line, flush=True)
folder = Path({str(programs)!r})
order = ToolOrder(program="sleep", main="program_sleep:main", words=({str(left)!r},), input="", folder=folder)
anyio.run(lambda: run(order, seconds=600, on_line=show))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "sleeping\n"
        parent.kill()
    with anyio.fail_after(60):
        while not left.exists() or not left.read_text():
            await anyio.sleep(0.05)
    assert left.read_text() == "rolled back"
    assert await ended(programs / "left.pid")


async def test_readers_run_side_by_side_and_a_writer_alone():
    queue, log, most = Queue(), [], 0

    async def read():
        nonlocal most
        async with queue.reading():
            log.append("+r")
            most = max(most, log.count("+r") - log.count("-r"))
            assert log.count("+w") == log.count("-w")
            await anyio.sleep(0.01)
            log.append("-r")

    async def write():
        async with queue.writing():
            log.append("+w")
            assert log.count("+w") - log.count("-w") == 1
            assert log.count("+r") == log.count("-r")
            await anyio.sleep(0.01)
            log.append("-w")

    async with anyio.create_task_group() as group:
        for number in range(24):
            group.start_soon(write if number % 6 == 5 else read)
    assert (log.count("-r"), log.count("-w")) == (20, 4)
    assert most == READERS


async def test_a_writer_goes_before_later_readers_and_may_give_up():
    queue, log, may_end = Queue(), [], anyio.Event()

    async def use(kind, name):
        async with kind():
            log.append(name)
            await may_end.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(use, queue.reading, "first")
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(use, queue.writing, "gave up")
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        group.start_soon(use, queue.writing, "writer")
        await anyio.wait_all_tasks_blocked()
        group.start_soon(use, queue.reading, "later")
        await anyio.wait_all_tasks_blocked()
        may_end.set()
    assert log == ["first", "writer", "later"]


def test_this_process_has_no_children_left(children_before):
    assert set(descendants(os.getpid())) - children_before == set()
