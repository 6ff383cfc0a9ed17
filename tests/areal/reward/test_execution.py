"""Programs of a model against tests of a row, in real processes: what passes, what cannot cheat, what is kept out."""

from __future__ import annotations

import ast
import functools
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from areal.reward.execution import (
    Execution,
    ExecutionError,
    Limits,
    Outcome,
    checked_tests,
    last_code_block,
    run_tests,
)

ADD = "def add(a, b):\n    return a + b\n"
SUM_IS_THREE = "assert add(1, 2) == 3"


def run(program: str, *tests: str, **limits) -> Execution:
    return run_tests(textwrap.dedent(program), [textwrap.dedent(test) for test in tests], Limits(**limits))


def answers(*expressions: str, **limits) -> list[str]:
    """What expressions give inside the sandbox: the text of each value, or "Error: why" for what it raised."""
    probes = ", ".join(f"lambda: {expression}" for expression in expressions)
    program = f"""
    def probe(run):
        try:
            return str(run())
        except BaseException as error:
            return f"{{type(error).__name__}}: {{error}}"
    def probes():
        return [probe(run) for run in [{probes}]]
    """
    result = run(program, "assert False, repr(probes())", **limits)
    return ast.literal_eval(result.detail.partition(": ")[2])


def rarely(*values):
    return pytest.param(*values, marks=pytest.mark.exhaustive)


# ------------------------------------------------------------------------------------------------ what is an answer


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("first\n```python\nx = 1\n```\nbetter\n```python\nx = 2\n```", "x = 2"),
        ("```\nx = 1\n```", "x = 1"),
        ("```python\nx = 1\n```\nprints\n```text\n1\n```", "x = 1"),
        ("```python\nx = 1\n```\nprints\n```\n1\n```", "x = 1"),
        ("~~~py\nx = 1\n~~~", "x = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("```python\r\nx = 1\r\ny = 2\r\n```", "x = 1\ny = 2"),
        ("```Python\n```", ""),
        ("x = 1", None),
        ("", None),
        ("```python\nx = 1", None),
        ("```python\nx = 1\n```\n```python\nx = 2", None),
        ("```rust\nfn main() {}\n```", None),
    ],
)
def test_the_last_closed_python_block_is_the_answer(text, program):
    assert last_code_block(text) == program


def test_endless_fences_cost_little_time():
    started = time.process_time()
    last_code_block("```\n" * 200_000)
    assert time.process_time() - started < 10


# ------------------------------------------------------------------------------------------------- what passes


def test_right_programs_pass():
    programs_and_tests = [
        (ADD, SUM_IS_THREE),
        (ADD, "def check(candidate):\n    assert candidate('a', 'b') == 'ab'\n\ncheck(add)"),
        ("def twice(f, x):\n    return f(f(x))", "assert twice(lambda x: x * 3, 2) == 18"),
        ("def order(items):\n    items.sort()", "items = [3, 1, 2]\norder(items)\nassert items == [1, 2, 3]"),
        ("def same(x):\n    return x", "v = {1: (2.5, [None, True]), 'k': {1, 2}, b'b': 1 + 2j}\nassert same(v) == v"),
        ("def power():\n    return 7 ** 9000", "assert power() == 7 ** 9000"),
        ("def nothing():\n    yield from range(3)", "assert list(nothing()) == [0, 1, 2]"),
        ("import math\ndef root(x):\n    return math.sqrt(x)", "assert math.isclose(root(2) ** 2, 2)"),
        (
            "def lost():\n    raise KeyError('k')",
            "try:\n    lost()\nexcept KeyError:\n    pass\nelse:\n    assert False",
        ),
        (
            "class Own(ValueError): pass\ndef bad():\n    raise Own('why')",
            "try:\n    bad()\nexcept Own as error:\n    assert str(error) == 'why'\nelse:\n    assert False",
        ),
        (
            "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
            "    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return self.items[i]",
            "s = Stack()\ns.push(4)\ns.push(5)\nassert len(s) == 2 and s[-1] == 5 and isinstance(s, Stack)\n"
            "assert s.items == [4, 5]",
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "    def __add__(s, o): return P(s.x + o.x)",
            "assert P(1) + P(2) == P(3)\nassert P(1) != P(2)",
        ),
        ("LIMIT = 5", "assert LIMIT == 5"),
        ("def out():\n    print('noise' * 100000)\n    return 1", "assert out() == 1"),
    ]
    programs, tests = zip(*programs_and_tests, strict=True)
    result = run("\n".join(programs), *tests)
    assert (result.outcome, result.detail, result.passed) == (Outcome.PASSED, "", len(tests))


def test_tests_of_a_list_count_one_by_one_and_share_their_names():
    result = run(
        ADD, "x = add(1, 1)\nassert x == 2", "assert x == 2 and add(x, x) == 4", "assert add(x, 1) == 4", "assert 0"
    )
    assert (result.outcome, result.passed, result.total) == (Outcome.FAILED, 2, 4)
    assert result.detail == "assert add(x, 1) == 4"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("def add(a, b):\n    return a - b", SUM_IS_THREE),
        rarely("def add(a, b):\n    return None", SUM_IS_THREE),
        rarely("def add(a, b):\n    return [1] < 'x'", "the program raised TypeError"),
        ("def add(a, b)\n    return a + b", "the program raised SyntaxError"),
        ("def sub(a, b):\n    return a + b", "NameError: name 'add' is not defined"),
        rarely("import numpy\n" + ADD, "the program raised ModuleNotFoundError"),
        rarely("x = input()\n" + ADD, "the program raised EOFError"),
        ("def add(a, b):\n    return add(a, b)", "the program raised RecursionError"),
        ("def add(a, b):\n    return bytearray(4 << 30)", "the program raised MemoryError"),
        ("import ctypes\ndef add(a, b):\n    ctypes.string_at(0)", "ended before its tests did (exit status -11)"),
        ("x = '\ud800'\n" + ADD + "\0", "the program raised"),
        rarely("", "NameError"),
    ],
)
def test_a_wrong_program_fails_with_the_reason(program, shown):
    result = run(program, SUM_IS_THREE)
    assert result.outcome is Outcome.FAILED
    assert shown in result.detail


# ------------------------------------------------------------------------------------------------ what cannot cheat


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        rarely("import sys; sys.exit(0)"),
        rarely("raise SystemExit(0)"),
        "def add(a, b):\n    import os\n    os._exit(0)",
        rarely("def add(a, b):\n    raise SystemExit(0)"),
        "class Same:\n    def __eq__(self, other): return True\n    def __bool__(self): return True\n"
        "def add(a, b): return Same()",
        "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b): return Same()",
        rarely("from unittest.mock import ANY\ndef add(a, b): return ANY"),
        rarely("def add(a, b):\n    raise AssertionError"),
        "import builtins\nbuiltins.AssertionError = ValueError\ndef add(a, b): return 0",
        rarely("import sys\nsys.settrace(lambda *a: None)\ndef add(a, b): return 0"),
        "import gc, os\n"
        "def add(a, b):\n"
        "    for fd in range(3, 64):\n"
        "        try:\n"
        '            os.write(fd, b\'{"outcome": "passed", "detail": "", "passed": 1, "ended": false}\\n\')\n'
        "        except OSError:\n"
        "            pass\n"
        "    return 0",
        rarely('print(\'{"outcome": "passed", "detail": "", "passed": 1, "ended": false}\')\ndef add(a, b): return 0'),
        # It finds the other end of the conversation and answers in its name.
        "import gc\n"
        "def add(a, b):\n"
        "    for thing in gc.get_objects():\n"
        "        if type(thing).__name__ == 'Peer':\n"
        "            thing.send(['value', ['shared', 'unittest.mock', 'ANY'], []])\n"
        "            thing.send(['verdict', 'passed'])\n"
        "    return 0",
        "import os, signal\n"
        "def add(a, b):\n"
        "    for process in (os.getppid(), 0, -1):\n"
        "        try:\n            os.kill(process, signal.SIGKILL)\n        except OSError:\n            pass\n"
        "    return 0",
    ],
)
def test_no_trick_of_a_program_makes_a_failing_test_pass(program):
    assert run(program, SUM_IS_THREE).outcome is Outcome.FAILED


def test_a_program_cannot_replace_what_tests_compute_with():
    program = """
    import math
    def len(x): return 3
    def f(): return 0
    math.isclose = lambda *a, **k: True
    """
    assert run(program, "assert math.isclose(f(), 3)").outcome is Outcome.FAILED
    assert run(program, "assert len([f()]) == 3").outcome is Outcome.FAILED


def test_a_program_sees_neither_the_tests_nor_the_expected_values():
    program = """
    import gc
    def secrets():
        needle = "quince".upper()
        return any(needle in str(thing) for thing in gc.get_objects() if isinstance(thing, (list, dict, tuple)))
    """
    assert run(program, "assert secrets() is False and 'QUINCE'").outcome is Outcome.PASSED
    assert run(program, "assert secrets() is True", "EXPECTED = 'QUINCE'\nassert EXPECTED").outcome is Outcome.FAILED


# -------------------------------------------------------------------------------------------------- what ends it


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "program",
    [
        rarely("while True:\n    pass"),
        "def add(a, b):\n    while True:\n        print('x' * 1000)",
        "import time\ndef add(a, b):\n    time.sleep(60)",
        "import signal\nfor s in {*signal.Signals} - {9, 19}:\n    signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        rarely("import re\nre.match(r'(a|a)+$', 'a' * 50 + 'b')"),
        rarely("def add(a, b):\n    return 9 ** 9 ** 9"),
    ],
)
def test_a_program_that_does_not_end_is_killed_at_the_limit(program):
    started = time.monotonic()
    result = run(program, SUM_IS_THREE, wall_seconds=0.3)
    assert result.outcome is Outcome.TIMEOUT
    assert len(result.output) <= 10_000
    assert 0.3 <= time.monotonic() - started < 30.0


def test_endless_tests_are_ended_too():
    assert run(ADD, "while add(1, 1):\n    assert True", wall_seconds=0.2).outcome is Outcome.TIMEOUT


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptors = os.listdir("/proc/self/fd")
    program = """
    import os, time
    open("kept", "w").write("x")
    os.mkdir("closed", 0)
    for _ in range(3):
        try:
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)
        except OSError:
            pass
    time.sleep(600)
    """
    assert run(program, SUM_IS_THREE, wall_seconds=0.5).outcome is Outcome.TIMEOUT
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    assert children_named(str(tmp_path)) == []


def children_named(text: str) -> list[int]:
    """Processes with a text in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if text.encode() in command and int(entry) != os.getpid():
                found.append(int(entry))
    return found


def test_kill_9_of_the_caller_ends_the_program(tmp_path):
    script = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from areal.reward.execution import run_tests, Limits\n"
        "run_tests('while True: pass', 'assert f()', Limits(wall_seconds=600))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    caller = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
    marker = f"{tmp_path}/areal-program-"
    deadline = time.monotonic() + 60
    while len(children_named(marker)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children_named(marker)) == 3
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    while children_named(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children_named(marker) == []


# ------------------------------------------------------------------------------------------------ what is kept out


@functools.cache
def isolation() -> set[str]:
    return set(run(ADD, SUM_IS_THREE).isolation)


def in_force(*names: str) -> None:
    if missing := set(names) - isolation():
        pytest.skip(f"this kernel or container does not offer: {', '.join(sorted(missing))}")


def test_resource_limits_hold_everywhere():
    assert "resource limits" in isolation()
    memory, disk, core = answers(
        "len(bytearray(300 << 20))",
        "open('big', 'wb').write(bytes(2 << 20))",
        "__import__('resource').getrlimit(__import__('resource').RLIMIT_CORE)",
        memory_megabytes=256,
    )
    assert "MemoryError" in memory
    assert "[Errno 27]" in disk
    assert core == "(0, 0)"


def test_the_environment_and_the_standard_streams_are_empty(monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "secret-4711")
    environment, read = answers("dict(__import__('os').environ)", "repr(__import__('sys').stdin.read())")
    assert "4711" not in environment
    assert read == "''"


def test_files_outside_are_neither_read_nor_written(tmp_path):
    in_force("landlock")
    secret = tmp_path / "secret"
    secret.write_text("4711")
    secret.chmod(0o666)
    forbidden = (
        f"open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"__import__('os').listdir({str(tmp_path)!r})",
        f"__import__('os').unlink({str(secret)!r})",
        f"__import__('os').rename({str(secret)!r}, 'mine')",
        "open('/proc/self/mem', 'rb')",
        f"open({__file__!r}).read()",
    )
    *refused, own, library = answers(*forbidden, "open('own', 'w').write('fine')", "__import__('ssl').__name__")
    shown = dict(zip(forbidden, refused, strict=True))
    assert {expression: text for expression, text in shown.items() if "PermissionError" not in text} == {}
    assert secret.read_text() == "4711"
    assert (own, library) == ("4", "ssl")


def test_no_other_program_is_started():
    in_force("landlock")
    executed, started = answers(
        "__import__('os').execv(__import__('sys').executable, ['python', '-V'])",
        "__import__('subprocess').run([__import__('sys').executable, '-V'])",
    )
    assert "PermissionError" in executed
    # Where the limit on processes holds (it does not for root), it refuses first.
    assert "PermissionError" in started or "BlockingIOError" in started


def test_there_is_no_network():
    in_force("network namespace")
    connected, sent = answers(
        "__import__('socket').create_connection(('127.0.0.1', 9), 1)",
        "__import__('socket').socket(2, 2).sendto(b'x', ('127.0.0.1', 9))",
    )
    assert "Error" in connected
    assert "Error" in sent


def test_no_other_process_is_in_sight():
    in_force("process namespace")
    assert answers("(__import__('os').getpid(), __import__('os').getppid())") == ["(1, 0)"]


# --------------------------------------------------------------------------------------------- whose fault it is


@pytest.mark.parametrize(
    ("tests", "shown"),
    [
        (None, "expected Python source"),
        ([], "expected Python source"),
        ([SUM_IS_THREE, 3], "expected Python source"),
        ("assert add(1, 2) = 3", "does not compile"),
        ([SUM_IS_THREE, "add(1, 2)"], "test 2 of the row has no assert"),
        ("assert add(1)\0", "does not compile"),
        ("assert " + "(" * 5000, "does not compile"),
    ],
)
def test_tests_that_cannot_run_or_cannot_fail_are_the_rows_fault(tests, shown):
    with pytest.raises(ValueError, match=shown):
        checked_tests(tests)


@pytest.mark.parametrize(
    ("tests", "shown"),
    [
        ("import numpy\nassert add(1, 2) == 3", "No module named 'numpy'"),
        ("assert 1 + 2 == 3", "without using anything"),
    ],
)
def test_tests_that_are_only_found_broken_while_running_are_the_rows_fault(tests, shown):
    with pytest.raises(ValueError, match=shown):
        run_tests(ADD, tests)


def test_a_machine_that_cannot_start_processes_is_nobodys_score(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ExecutionError, match="no process could be started"):
        run_tests(ADD, SUM_IS_THREE)
    broken = tmp_path / "broken-python"
    broken.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(ExecutionError, match="out of memory"):
        run_tests(ADD, SUM_IS_THREE)


@pytest.mark.parametrize("limits", [{"wall_seconds": 0}, {"memory_megabytes": 10}, {"output_bytes": -1}])
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(ValueError, match="expected wall_seconds > 0"):
        Limits(**limits)
