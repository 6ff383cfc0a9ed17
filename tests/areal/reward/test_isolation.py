"""Rewards in real worker processes: answers, faults, hangs, crashes, leaks."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from areal.api import ConfigError, FaultError, FaultKind, RegistryError
from areal.reward.isolation import AsyncRewardWrapper

EXHAUSTIVE = pytest.mark.exhaustive

REWARDS_SOURCE = """
import math, os, re, signal, subprocess, sys, time

def length(prompt, completions, prompt_ids, completion_ids, **data):
    return len(completions)

def echo(prompt, completions, prompt_ids, completion_ids, *, value, **data):
    return value

def evaluated(prompt, completions, prompt_ids, completion_ids, **data):
    import numpy as np
    return eval(completions)

def sees_everything(prompt, completions, prompt_ids, completion_ids, *, answer, **data):
    assert (prompt, prompt_ids, completion_ids) == ("8*9=", [5, 9], [11])
    return completions == answer

def worker_pid(prompt, completions, prompt_ids, completion_ids, **data):
    return os.getpid()

def loads_torch(prompt, completions, prompt_ids, completion_ids, **data):
    return "torch" in sys.modules

def hang(prompt, completions, prompt_ids, completion_ids, **data):
    if prompt:
        open(prompt, "w").write(f"{os.getpid()} ")
    if completions == "python":
        while True:
            pass
    if completions == "c":
        re.match(r"(a|a)+$", "a" * 40 + "b")  # exponential, in C, without ever letting go of the interpreter
    if completions == "child":
        child = subprocess.Popen(["sleep", "600"])
        open(prompt, "a").write(f"{child.pid} end")
        child.wait()
    if completions in ("session", "leaves"):
        # A session of its own each, and the inner one loses its parent.
        inner = "import subprocess as s; print(s.Popen(['sleep', '600'], stdout=2, start_new_session=True).pid)"
        orphan = subprocess.run([sys.executable, "-S", "-c", inner], stdout=subprocess.PIPE, text=True).stdout.strip()
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open(prompt, "a").write(f"{child.pid} {orphan} end")
        if completions == "leaves":
            os._exit(3)
        child.wait()
    return 1.0

def crash(prompt, completions, prompt_ids, completion_ids, **data):
    if completions == "exit":
        os._exit(3)
    if completions == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if completions == "nameless":
        os.kill(os.getpid(), 40)
    if completions == "sys.exit":
        sys.exit(4)
    return 1.0

def raises(prompt, completions, prompt_ids, completion_ids, **data):
    return 1 / 0  # the line to show

def typed(prompt, completions, prompt_ids, completion_ids, **data):
    from areal.api import FaultError, FaultKind
    raise FaultError(FaultKind.DATA_INVALID, "row has no answer")

class FaultError(Exception):
    kind = "rate_limited"

def foreign(prompt, completions, prompt_ids, completion_ids, **data):
    if completions == "fail":
        raise FaultError("the judge is busy")
    return 1.0

def noisy(prompt, completions, prompt_ids, completion_ids, **data):
    print("x" * 10000)
    return 1.0

def hungry(prompt, completions, prompt_ids, completion_ids, **data):
    return len(bytearray(int(completions) << 20))

def nap(prompt, completions, prompt_ids, completion_ids, **data):
    time.sleep(float(completions))
    return 1.0

async def coroutine(prompt, completions, prompt_ids, completion_ids, **data):
    return 1.0

class Scaled:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, prompt, completions, prompt_ids, completion_ids, **data):
        return self.factor * len(completions)

def leaves():
    sys.exit(5)

def refuses():
    typed("", "", [], [])

class ReadsAs:
    def __init__(self, read):
        self.read = read
    def __reduce__(self):
        return self.read, ()

def scaled(prompt, completions, prompt_ids, completion_ids, *, factor, **data):
    return factor * len(completions)

not_a_function = 3
"""


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """A user's module that nobody registered: it is only on sys.path. Returns its name."""
    name = f"user_rewards_{os.getpid()}_{abs(hash(str(tmp_path))) % 10**6}"
    (tmp_path / f"{name}.py").write_text(REWARDS_SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def wrap():
    opened = []

    def make(*args, **kwargs):
        opened.append(AsyncRewardWrapper(*args, **kwargs))
        return opened[-1]

    yield make
    for wrapper in opened:
        wrapper.close()


async def fault_of(awaitable):
    with pytest.raises(FaultError) as caught:
        await awaitable
    return caught.value


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids_in(note) -> list[int]:
    """Process ids that a hanging reward wrote down: its own, and its child's once that exists."""
    return [int(word) for word in note.read_text().split() if word.isdigit()] if note.exists() else []


def eventually(condition, seconds=60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


async def test_a_reward_gets_all_four_arguments_and_the_columns_of_the_row(rewards, wrap):
    reward = wrap(f"{rewards}:sees_everything")
    assert await reward("8*9=", "72", [5, 9], [11], answer="72", level=3) == 1.0
    assert await reward("8*9=", "71", [5, 9], [11], answer="72", level=3) == 0.0


@pytest.mark.fault(
    row=14,
    injected="a reward returns bools, integers, NumPy numbers",
    seen="finite numbers become floats",
)
async def test_finite_numbers_become_floats(rewards, wrap):
    reward = wrap(f"{rewards}:evaluated")
    expressions = ("3", "0.25", "True", "np.float32(0.5)", "np.bool_(True)", "np.int64(2)", "np.array(0.75)")
    results = [await reward("", expression, [], []) for expression in expressions]
    assert results == [3.0, 0.25, 1.0, 0.5, 1.0, 2.0, 0.75]
    assert {type(result) for result in results} == {float}


@pytest.mark.fault(
    row=14,
    injected="a reward returns NaN, infinity, None, text or a list",
    seen="a reward_invalid fault that names function and value",
)
async def test_anything_else_is_a_fault_that_names_function_and_value(rewards, wrap):
    reward = wrap(f"{rewards}:evaluated")
    for expression, shown in (
        ("None", "None of type NoneType (does every path of it end in a return?)"),
        ("math.nan", "nan of type float"),
        ("-math.inf", "-inf of type float"),
        ("'1.0'", "'1.0' of type str (write float(...) around it)"),
        ("np.zeros(2)", "array([0., 0.]) of type ndarray"),
        ("(1.0,)", "(1.0,) of type tuple (return the score alone; areal.utils.stats.record keeps other"),
        ("np.array(math.nan)", "array(nan) of type ndarray"),
        ("1e39", "1e+39 of type float (larger than float32, 3.4e+38)"),
        ("np.float64(-1e300)", "(larger than float32"),
        ("(lambda: (yield))()", "of type generator (it has a yield: write return)"),
        ("type('Late', (), {'__await__': None})()", "of type Late, expected a finite number"),
        ("10**400", "int too large for a float"),
        ("1j", "1j of type complex"),
    ):
        fault = await fault_of(reward("", expression, [], []))
        assert fault.kind is FaultKind.REWARD_INVALID
        assert f"{rewards}:evaluated" in fault.message
        assert shown in fault.message


@pytest.mark.fault(
    row=12,
    injected="a reward raises",
    seen="a reward_raised fault with type, message and source line",
)
async def test_an_exception_is_reported_with_type_message_and_source_line(rewards, wrap):
    fault = await fault_of(wrap(f"{rewards}:raises")("", "", [], []))
    assert fault.kind is FaultKind.REWARD_RAISED
    assert "ZeroDivisionError: division by zero" in fault.message
    assert "return 1 / 0  # the line to show" in fault.message


@pytest.mark.fault(
    row=12,
    injected="a reward raises a typed fault",
    seen="the fault keeps its declared kind",
)
async def test_a_typed_fault_keeps_its_kind(rewards, wrap):
    fault = await fault_of(wrap(f"{rewards}:typed")("", "", [], []))
    assert (fault.kind, fault.message) == (FaultKind.DATA_INVALID, "row has no answer")


async def test_an_error_that_only_looks_like_a_typed_fault_is_an_exception_and_does_not_end_the_pool(rewards, wrap):
    reward = wrap(f"{rewards}:foreign")
    fault = await fault_of(reward("", "fail", [], []))
    assert fault.kind is FaultKind.REWARD_RAISED
    assert "the judge is busy" in fault.message
    assert await reward("", "fine", [], []) == 1.0


@pytest.mark.fault(
    row=13,
    injected="a reward loops in Python, or hangs in C",
    seen="killed at the limit; the next call works",
)
@pytest.mark.parametrize("how", [pytest.param("python", marks=EXHAUSTIVE), "c"])
async def test_a_hang_is_killed_at_the_limit_and_the_next_call_works(rewards, wrap, how):
    reward = wrap(f"{rewards}:hang", timeout_seconds=1.5)
    reward.start()
    started = time.monotonic()
    fault = await fault_of(reward("", how, [], []))
    assert fault.kind is FaultKind.REWARD_TIMEOUT
    assert 1.5 <= time.monotonic() - started < 30.0
    assert await reward("", "fine", [], []) == 1.0


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=13,
    injected="a hanging reward that started processes",
    seen="all of them are gone after the limit",
)
async def test_the_children_of_a_hanging_reward_die_with_it(rewards, wrap, tmp_path):
    reward = wrap(f"{rewards}:hang", timeout_seconds=4.0)
    note = tmp_path / "pid"
    fault = await fault_of(reward(str(note), "child", [], []))
    assert fault.kind is FaultKind.REWARD_TIMEOUT
    pids = pids_in(note)
    assert len(pids) == 2
    assert eventually(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt what lost its parent")
@pytest.mark.fault(
    row=13,
    injected="a reward that moves processes into sessions of their own, one of them without a parent, and then hangs, "
    "or crashes",
    seen="all of them are gone after the limit, or the crash",
)
@pytest.mark.parametrize("how", ["session", "leaves"])
async def test_children_in_sessions_of_their_own_die_too(rewards, wrap, tmp_path, how):
    reward = wrap(f"{rewards}:hang", timeout_seconds=4.0)
    reward.start()
    note = tmp_path / "pid"
    fault = await fault_of(reward(str(note), how, [], []))
    assert fault.kind is (FaultKind.REWARD_TIMEOUT if how == "session" else FaultKind.REWARD_DIED)
    pids = pids_in(note)
    assert len(pids) == 3
    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert await reward("", "fine", [], []) == 1.0


async def test_a_hang_delays_only_its_own_worker(rewards, wrap, tmp_path):
    reward = wrap(f"{rewards}:hang", timeout_seconds=60.0, max_workers=2)
    reward.start()
    hanging = asyncio.ensure_future(reward(str(tmp_path / "pid"), "child", [], []))
    while not pids_in(tmp_path / "pid"):
        await asyncio.sleep(0.01)
    assert await asyncio.gather(*(reward("", "fine", [], []) for _ in range(50))) == [1.0] * 50
    assert not hanging.done()
    reward.close()
    assert "was closed" in (await fault_of(hanging)).message


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=30,
    injected="calls already sent to a reward process that is killed for a hang",
    seen="answered by its successor, each once",
)
async def test_calls_sent_ahead_of_a_hang_are_not_lost(rewards, wrap):
    reward = wrap(f"{rewards}:hang", timeout_seconds=1.5)
    await asyncio.gather(*(reward("", "fine", [], []) for _ in range(50)))  # by now the worker is known to be fast
    jobs = [reward("", "python" if index == 5 else "fine", [], []) for index in range(40)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [index for index, result in enumerate(results) if result != 1.0] == [5]
    assert results[5].kind is FaultKind.REWARD_TIMEOUT


@pytest.mark.exhaustive
async def test_the_limit_is_per_call_even_when_calls_queue(rewards, wrap):
    reward = wrap(f"{rewards}:nap", timeout_seconds=2.0)
    await asyncio.gather(*(reward("", "0", [], []) for _ in range(50)))
    assert await asyncio.gather(*(reward("", "0.5", [], []) for _ in range(5))) == [1.0] * 5


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("how", "shown"), [("exit", "exit status 3"), ("segv", "signal SIGSEGV"), ("nameless", "signal 40")]
)
async def test_a_crash_is_a_fault_with_the_way_it_ended_and_the_next_call_works(rewards, wrap, how, shown):
    reward = wrap(f"{rewards}:crash")
    fault = await fault_of(reward("", how, [], []))
    assert fault.kind is FaultKind.REWARD_DIED
    assert shown in fault.message
    assert await reward("", "fine", [], []) == 1.0


async def test_sys_exit_in_a_reward_is_an_answer_not_the_end_of_the_worker(rewards, wrap):
    fault = await fault_of(wrap(f"{rewards}:crash")("", "sys.exit", [], []))
    assert "SystemExit: 4" in fault.message


@pytest.mark.fault(
    row=13,
    injected="a reward allocates 10 GB under a limit of 2 GB",
    seen="a MemoryError inside the reward, reported as its fault",
)
async def test_memory_beyond_the_limit_is_a_fault(rewards, wrap):
    reward = wrap(f"{rewards}:hungry", memory_limit_mb=2048)
    assert await reward("", "16", [], []) == 16 << 20
    fault = await fault_of(reward("", "10000", [], []))
    assert fault.kind is FaultKind.REWARD_RAISED
    assert "MemoryError" in fault.message


@pytest.mark.exhaustive
async def test_what_a_reward_prints_does_not_disturb_the_protocol(rewards, wrap):
    assert await asyncio.gather(*(wrap(f"{rewards}:noisy")("", "", [], []) for _ in range(3))) == [1.0] * 3


async def test_a_worker_does_not_import_torch(rewards, wrap):
    assert await wrap(f"{rewards}:loads_torch")("", "", [], []) == 0.0


@pytest.mark.exhaustive
async def test_large_rows_travel_whole(rewards, wrap):
    text = "x" * 3_000_000
    assert (
        await asyncio.gather(*(wrap(f"{rewards}:length")("", text, [7] * 200_000, []) for _ in range(3))) == [3e6] * 3
    )


async def test_importable_callables_partials_and_instances_work(rewards, wrap):
    module = importlib.import_module(rewards)
    assert await wrap(module.length)("", "abc", [], []) == 3.0
    assert await wrap(functools.partial(module.scaled, factor=2))("", "abc", [], []) == 6.0
    assert await wrap(module.Scaled(0.5))("", "abc", [], []) == 1.5


@pytest.mark.exhaustive
async def test_what_no_process_can_import_is_sent_with_its_code(rewards, wrap):
    bonus = 0.5

    def helper(text):
        return len(text) * bonus

    def nested(*args, **data):
        return helper(args[1]) + data["more"]

    namespace = {"__name__": "__main__"}
    exec(
        "LIMIT = 3\ndef inner(text): return len(text) - LIMIT\ndef outer(p, c, *ids, **row): return inner(c)", namespace
    )
    assert await wrap(nested)("", "abcd", [], [], more=1.0) == 3.0
    assert await wrap(lambda prompt, completion, *ids, **row: len(completion))("", "abcd", [], []) == 4.0
    assert await wrap(namespace["outer"])("", "abcd", [], []) == 1.0


def test_what_cannot_be_sent_at_all_is_refused_with_the_way_out(rewards):
    lock = threading.Lock()
    generator = (number for number in range(3))

    for reward in (lambda *args, **data: next(generator), lambda *args, **data: lock.acquire() and next(generator)):
        with pytest.raises(ConfigError, match=r"refers to what cannot be sent.*top level of an importable module"):
            AsyncRewardWrapper(reward)
    with pytest.raises(ConfigError, match="plain function"):
        AsyncRewardWrapper(importlib.import_module(rewards).coroutine)


def test_an_unknown_name_is_refused_before_any_process_starts():
    with pytest.raises(RegistryError, match="unknown reward 'no_such_reward'"):
        AsyncRewardWrapper("no_such_reward")
    with pytest.raises(RegistryError, match="no module"):
        AsyncRewardWrapper("no_such_package.rewards:mine")


async def test_a_reward_that_cannot_be_loaded_says_why_at_start_and_at_every_call(rewards, wrap, tmp_path):
    (tmp_path / f"{rewards}_broken.py").write_text("import a_missing_dependency")
    missing = wrap(f"{rewards}:no_such_function")
    with pytest.raises(RegistryError, match="has no object 'no_such_function'"):
        missing.start()
    broken = wrap(f"{rewards}_broken:f")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"No module named 'a_missing_dependency' \(at .*_broken\.py:1: import"):
            await broken("", "", [], [])
    with pytest.raises(ConfigError, match="expected a function"):
        wrap(f"{rewards}:not_a_function").start()


async def test_a_row_that_cannot_be_pickled_is_a_data_fault(rewards, wrap):
    fault = await fault_of(wrap(f"{rewards}:length")("", "", [], [], handle=threading.Lock()))
    assert fault.kind is FaultKind.DATA_INVALID


async def test_what_reading_a_row_raises_is_the_answer_for_it(rewards, wrap):
    module, reward = importlib.import_module(rewards), wrap(f"{rewards}:length")
    left = await fault_of(reward("", "", [], [], column=module.ReadsAs(module.leaves)))
    assert left.kind is FaultKind.REWARD_RAISED
    assert re.search(r"SystemExit: 5 \(at .*: sys\.exit\(5\)\)", left.message)
    refused = await fault_of(reward("", "", [], [], column=module.ReadsAs(module.refuses)))
    assert (refused.kind, refused.message) == (FaultKind.DATA_INVALID, "row has no answer")
    assert await reward("", "abc", [], []) == 3.0


async def test_columns_named_like_the_arguments_do_not_clash(rewards, wrap):
    # The wrapper itself must not choke; the function decides whether it can take them.
    fault = await fault_of(wrap(f"{rewards}:length")("", "abc", [], [], prompt="a column"))
    assert "multiple values for argument 'prompt'" in fault.message


@pytest.mark.exhaustive
def test_one_wrapper_serves_several_threads_and_loops(rewards, wrap):
    reward = wrap(f"{rewards}:length", max_workers=2)
    results: dict[int, list[float]] = {}

    def run(size):
        async def calls():
            return await asyncio.gather(*(reward("", "x" * size, [], []) for _ in range(100)))

        results[size] = asyncio.run(calls())

    threads = [threading.Thread(target=run, args=(size,)) for size in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {size: [float(size)] * 100 for size in range(1, 5)}


async def test_a_cancelled_caller_leaves_the_worker_usable(rewards, wrap):
    reward = wrap(f"{rewards}:nap")
    reward.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reward("", "2", [], []), 0.1)
    assert await reward("", "0", [], []) == 1.0


@pytest.mark.exhaustive
async def test_a_limit_holds_while_the_callers_event_loop_is_blocked(rewards, wrap, tmp_path):
    reward = wrap(f"{rewards}:hang", timeout_seconds=4.0)
    reward.start()
    note = tmp_path / "pid"
    waiting = asyncio.ensure_future(reward(str(note), "child", [], []))
    while len(pids_in(note)) < 2:
        await asyncio.sleep(0.01)
    child = pids_in(note)[1]
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)  # blocks this loop on purpose
    assert not alive(child)
    assert (await fault_of(waiting)).kind is FaultKind.REWARD_TIMEOUT


async def test_close_ends_processes_thread_and_descriptors_and_fails_waiting_calls(rewards, wrap):
    before = len(os.listdir("/proc/self/fd"))
    reward = wrap(f"{rewards}:worker_pid", max_workers=2)
    pids = {int(await reward("", "", [], [])) for _ in range(20)}
    hanging = wrap(f"{rewards}:hang")
    waiting = asyncio.ensure_future(hanging("", "python", [], []))
    await asyncio.sleep(0.1)
    for wrapper in (reward, hanging):
        wrapper.close()
        wrapper.close()
    assert "was closed" in (await fault_of(waiting)).message
    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert not [thread for thread in threading.enumerate() if rewards in thread.name]
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ConfigError, match="was closed"):
        await reward("", "", [], [])


async def test_a_forgotten_wrapper_leaves_no_process_behind(rewards):
    reward = AsyncRewardWrapper(f"{rewards}:worker_pid")
    pid = int(await reward("", "", [], []))
    del reward
    assert eventually(lambda: not alive(pid))


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=30,
    injected="an idle reward process is killed",
    seen="replaced; the next call is answered",
)
async def test_a_worker_killed_from_outside_while_idle_is_replaced(rewards, wrap):
    reward = wrap(f"{rewards}:worker_pid")
    first = int(await reward("", "", [], []))
    guard = Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(first, signal.SIGKILL)
    # Reaped: from now on it is known to be dead, and gets no call.
    assert eventually(lambda: not Path(f"/proc/{guard}").exists())
    assert int(await reward("", "", [], [])) != first


@pytest.mark.sample(1)
@pytest.mark.fault(
    row=13,
    injected="SIGKILL of the process that owns rewards hanging in Python, in C, or in children, also in other sessions",
    seen="no reward process is left",
)
@pytest.mark.parametrize(
    "how", [pytest.param("python", marks=EXHAUSTIVE), "c", pytest.param("child", marks=EXHAUSTIVE), "session"]
)
def test_kill_9_of_the_parent_leaves_no_orphans(rewards, tmp_path, how):
    """The script also counts how often its top level runs: a worker must not run the user's program again."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        from areal.reward.isolation import AsyncRewardWrapper
        print("top level", flush=True)
        async def main():
            pid = AsyncRewardWrapper("{rewards}:worker_pid")
            hanging = AsyncRewardWrapper("{rewards}:hang", timeout_seconds=600.0)
            hanging.start()
            print(int(await pid("", "", [], [])), hanging._pool._workers[0].process.pid, flush=True)
            await hanging({str(tmp_path / "note")!r}, "{how}", [], [])
        asyncio.run(main())
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    program = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    assert program.stdout.readline() == "top level\n"
    pids = [int(text) for text in program.stdout.readline().split()]
    assert len(pids) == 2
    note = tmp_path / "note"
    assert eventually(lambda: len(pids_in(note)) == {"child": 2, "session": 3}.get(how, 1))
    pids += pids_in(note)
    assert all(alive(pid) for pid in pids)
    program.kill()
    assert program.stdout.read() == ""
    program.wait()
    assert eventually(lambda: not any(alive(pid) for pid in pids))
