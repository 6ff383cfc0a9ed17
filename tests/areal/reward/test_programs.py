"""Programs of three languages in real processes: what they are given, and hostile ones that leave nothing behind."""
# ruff: noqa: E501 - a hostile program is one line, whatever its length

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import pytest

from areal.api import ConfigError
from areal.reward.execution import ExecutionError
from areal.reward.programs import CPP, JAVASCRIPT, PYTHON, Language, Program, Run, RunLimits

SHORT = RunLimits(cpu_seconds=1, wall_seconds=1.5, memory_megabytes=128, output_bytes=1 << 16, compile_seconds=8)


def needs(language: Language):
    missing = bool(language.tool) and shutil.which(language.tool) is None
    return pytest.mark.skipif(missing, reason=f"{language.tool} is not installed: {language.install}")


def rarely(*values):
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def run(source: str, language: Language, stdin: str = "", *, function: str = "", limits: RunLimits = SHORT) -> Run:
    with Program(textwrap.dedent(source), language, function=function, limits=limits) as program:
        assert program.compile_errors == ""
        return program.run(stdin.encode())


# -------------------------------------------------------------------------------------------------- what they are given


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("language", "source"),
    [
        (PYTHON, "import sys\na, b = map(int, open('/dev/stdin').read().split())\nprint(a * b)"),
        pytest.param(
            JAVASCRIPT,
            "const [a, b] = require('fs').readFileSync('/dev/stdin', 'utf8').split(' '); console.log(a * b)",
            marks=needs(JAVASCRIPT),
        ),
        pytest.param(
            CPP,
            '#include <cstdio>\nint main() { long a, b; scanf("%ld %ld", &a, &b); printf("%ld\\n", a * b); }',
            marks=needs(CPP),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_program_reads_standard_input_once_per_run_and_keeps_nothing(language, source):
    with Program(source, language, limits=SHORT) as program:
        first, second = program.run(b"6 7"), program.run(b"70 -1")
    assert (first.output, first.status, second.output) == (b"42\n", 0, b"-70\n")
    assert "resource limits" in first.isolation


def test_a_run_finds_no_file_of_the_run_before_it():
    source = "import os; print(sorted(os.listdir('.'))); open('left', 'w').write('x'); print(os.path.exists('left'))"
    with Program(source, PYTHON, limits=SHORT) as program:
        assert [program.run(b"").output for _ in range(2)] == [b"[]\nTrue\n"] * 2


VALUES = '[[[1, "q\\u00e9\\ud83d\\ude00"]], "a\\n\\"\\\\", -2.5, true, "z", [[], [7, -8]]]'
SAME = '["q\\u00e9\\ud83d\\ude00", "a\\n\\"\\\\z", [[], [7, -8]], -5.0, false]'


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("language", "source", "arguments", "result"),
    [
        (PYTHON, "class Solution:\n    def f(self, a: List[int]) -> int:\n        return sum(a)", "[[1, 2]]", "3"),
        (PYTHON, "print('noise')\ndef f(a):\n    print(a)\n    return (a, None)", '["x"]', '["x", null]'),
        pytest.param(JAVASCRIPT, "const f = async (a) => [a, 'é'];", '["x"]', '["x", "é"]', marks=[needs(JAVASCRIPT)]),
        pytest.param(
            JAVASCRIPT,
            "class Solution { f(a, b) { return {a, b}; } }",
            "[1, [2]]",
            '{"a": 1, "b": [2]}',
            marks=[needs(JAVASCRIPT), pytest.mark.exhaustive],
        ),
        pytest.param(
            JAVASCRIPT,
            "module.exports.f = function () { console.log('noise'); };",
            "[]",
            "null",
            marks=[needs(JAVASCRIPT), pytest.mark.exhaustive],
        ),
        pytest.param(
            CPP,
            "vector<string> g(const vector<pair<int, string>>& a, string& b, char e) { return {a[0].second, b + e}; }\n"
            "struct Solution { pair<vector<string>, pair<vector<vector<int>>, pair<double, bool>>>\n"
            "  f(const vector<pair<int, string>>& a, string b, double c, bool d, char e, vector<vector<int>>& v) const\n"
            "  { return {g(a, b, e), {v, {2 * c, !d}}}; } };\n"
            "int main() {}",
            VALUES,
            '[["qé😀", "a\\n\\"\\\\z"], [[[], [7, -8]], [-5.0, false]]]',
            marks=[needs(CPP), pytest.mark.exhaustive],
        ),
        pytest.param(
            CPP,
            "long long f(vector<int> a) { return accumulate(a.begin(), a.end(), 0LL); }",
            "[[2147483647, 1]]",
            "2147483648",
            marks=[needs(CPP), pytest.mark.exhaustive],
        ),
    ],
)
def test_a_function_is_called_with_json_and_what_it_prints_does_not_matter(language, source, arguments, result):
    found = run(source, language, arguments, function="f")
    assert (found.ending, json.loads(found.output)) == ("", json.loads(result))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("language", "source", "why"),
    [
        (PYTHON, "def g():\n    pass", "no function 'f'"),
        (PYTHON, "def f(x):\n    return {1, 2}", "not JSON serializable"),
        (PYTHON, "import sys\nsys.exit(3)", "exit status 3"),
        (PYTHON, "import os\nos.kill(os.getpid(), 40)", "signal 40"),
        pytest.param(JAVASCRIPT, "let g", "", marks=needs(JAVASCRIPT)),
        pytest.param(
            CPP, "int f(int a, int b) { return a; }", "do not fit", marks=[needs(CPP), pytest.mark.exhaustive]
        ),
    ],
)
def test_a_function_that_is_not_there_or_does_not_fit_ends_with_the_reason(language, source, why):
    found = run(source, language, "[1]", function="f")
    assert found.ending
    assert why in found.ending


@needs(CPP)
def test_errors_of_the_compiler_are_kept():
    with Program("int main( {", CPP, limits=SHORT) as program:
        assert "main.cpp:1" in program.compile_errors


def test_a_tool_that_is_absent_is_named_with_the_way_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for language in (CPP, JAVASCRIPT):
        with pytest.raises(ConfigError, match=f"{re.escape(language.tool)}.*not on PATH; install"):
            Program("", language).__enter__()
    assert PYTHON.find_tool() == ""


def test_a_machine_that_starts_no_processes_is_nobodys_score(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(ExecutionError, match="no process could be started"):
        run("", PYTHON)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    with pytest.raises(ExecutionError, match=r"ended|did not answer"):
        run("", PYTHON)


@pytest.mark.parametrize("values", [{"cpu_seconds": 0}, {"memory_megabytes": 8}, {"output_bytes": 0}, {"files": 1}])
def test_limits_that_make_no_sense_are_refused(values):
    with pytest.raises(ValueError, match="expected"):
        RunLimits(**values)


# --------------------------------------------------------------------------------------------------- the hostile corpus

TIME, OUTPUT, REFUSED = "time limit", "output limit", "not permitted|EPERM|Permission denied|EACCES"

PYTHON_CORPUS = [
    ("fork bomb", "import os\nwhile True:\n    os.fork()", REFUSED),
    ("memory bomb", "x = []\nwhile True:\n    x.append(bytearray(1 << 20))", "MemoryError"),
    ("output flood", "while True:\n    print('x' * 100000)", OUTPUT),
    ("ignores SIGTERM and sleeps", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(99)", TIME),
    ("reads a file through a symlink", "import os\nos.symlink(SECRET, 'l')\nprint(open('l').read())", REFUSED),
    ("environment", "import os\nprint(dict(os.environ))", ""),
    ("kills everybody", "import os\nos.kill(-1, 9)", REFUSED),
    rarely("infinite loop", "while True:\n    pass", TIME),
    rarely("reads a file", "print(open(SECRET).read())", REFUSED),
    rarely("reads the environment of its parents", "print(open('/proc/1/environ').read())", REFUSED),
    rarely("network", "import socket\nsocket.create_connection(('127.0.0.1', 9))", REFUSED),
    rarely("kills its parent", "import os\nos.kill(os.getppid(), 9)", REFUSED),
    rarely("kills its session", "import os\nos.killpg(0, 9)", REFUSED),
    rarely("writes outside", "open(SECRET, 'w').write('gone')", REFUSED),
    rarely("writes beside", "open('../beside', 'w')", REFUSED),
    rarely("removes outside", "import os\nos.unlink(SECRET)", REFUSED),
    rarely("hard link", "import os\nos.link(SECRET, 'l')\nprint(open('l').read())", REFUSED + "|cross-device"),
    rarely("deep recursion", "import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return f(n) + 1\nf(0)", "."),
    rarely(
        "deep recursion in C", "import sys\nsys.setrecursionlimit(10**9)\nx = []\nx = eval('(' * 90 + ')' * 90)", ""
    ),
    rarely("grandchildren", "import os\nif os.fork() == 0:\n    os.setsid()\n    os.fork()", REFUSED),
    rarely("another program", "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo 1'])", REFUSED),
    rarely("subprocess", "import subprocess\nsubprocess.run(['/bin/sh'])", REFUSED),
    rarely(
        "many threads",
        "import threading as t\nfor _ in range(9999):\n    t.Thread(target=t.Event().wait).start()",
        TIME,
    ),
    rarely("many files", "for i in range(99999):\n    open(f'f{i}', 'w').close()", "No space|Too many"),
    rarely("a big file", "f = open('f', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))", "No space|too large"),
    rarely("many big files", "for i in range(999):\n    open(f'f{i}', 'wb').write(bytes(1 << 20))", "No space"),
    rarely("locked folder", "import os\nos.makedirs('a/b')\nos.chmod('a', 0)", ""),
    rarely("shared memory", "from multiprocessing import shared_memory as s\ns.SharedMemory(create=True, size=9)", "."),
    rarely("kernel crash by ctypes", "import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    rarely("closes everything", "import os\nos.closerange(0, 9999)", ""),
    rarely("fills the result", "import os\nwhile True:\n    os.write(1, bytes(1 << 20))", OUTPUT),
    rarely("no text", "import sys\nsys.stdout.buffer.write(bytes(range(256)))", ""),
    rarely("a huge number", "print(9 ** 9 ** 9)", TIME),
    rarely("a syntax error", "def f(:", "SyntaxError"),
    rarely("a surrogate", "print('\\ud800')", ""),
]

CPP_CORPUS = [
    ("fork bomb", "#include <unistd.h>\n#include <cstdio>\nint main() { if (fork() < 0) perror(0); return 7; }", REFUSED),
    rarely("memory bomb", "#include <vector>\nint main() { std::vector<char*> v; for (;;) v.push_back(new char[1 << 20]()); }",
           "bad_alloc"),
    rarely("huge static array", "char a[1u << 30]; int main() { for (auto& x : a) x = 1; }", "SIGKILL|SIGSEGV"),
    rarely("output flood", "#include <cstdio>\nint main() { for (;;) puts(\"xxxxxxxxxxxxxxxxxxxxxxxx\"); }", OUTPUT),
    rarely("infinite loop", "int main() { volatile int x = 0; for (;;) x = x + 1; }", TIME),
    rarely("ignores every signal", "#include <csignal>\n#include <unistd.h>\n"
           "int main() { for (int s = 1; s < 65; s++) signal(s, SIG_IGN); for (;;) sleep(9); }", TIME),
    rarely("ignores SIGXCPU", "#include <csignal>\nint main() { signal(SIGXCPU, SIG_IGN); volatile int x = 0; for (;;) x = 1; }",
           TIME),
    rarely("reads a file", "#include <cstdio>\nint main() { if (!fopen(SECRET, \"r\")) perror(0), _Exit(7); puts(\"read\"); }\n"
           "#include <cstdlib>", "error|expected"),
    rarely("reads the secret", "#include <cstdlib>\n#include <cstdio>\nint main() { if (!fopen(SECRET, \"r\")) { perror(0);"
           " exit(7); } puts(\"read\"); }", REFUSED),
    rarely("environment", "#include <cstdio>\nextern char** environ;\nint main() { for (char** e = environ; *e; e++) puts(*e); }",
           ""),
    rarely("network", "#include <sys/socket.h>\n#include <cstdio>\nint main() { if (socket(2, 1, 0) < 0) { perror(0); return 7; } }",
           REFUSED),
    rarely("kills its parent", "#include <csignal>\n#include <unistd.h>\n#include <cstdio>\n"
           "int main() { if (kill(getppid(), 9)) { perror(0); return 7; } }", REFUSED),
    rarely("traces", "#include <sys/ptrace.h>\n#include <cstdio>\n"
           "int main() { if (ptrace(PTRACE_TRACEME, 0, 0, 0)) { perror(0); return 7; } }", REFUSED),
    rarely("writes outside", "#include <cstdio>\nint main() { if (!fopen(SECRET, \"w\")) { perror(0); return 7; } }", REFUSED),
    rarely("a symlink outside", "#include <unistd.h>\n#include <cstdio>\n"
           "int main() { symlink(SECRET, \"l\"); if (!fopen(\"l\", \"w\")) { perror(0); return 7; } }", REFUSED),
    rarely("another program", "#include <unistd.h>\n#include <cstdio>\n"
           "int main() { execl(\"/bin/sh\", \"sh\", \"-c\", \"echo 1\", (char*)0); perror(0); return 7; }", REFUSED),
    rarely("deep recursion", "int f(int n) { volatile char a[999]; a[0] = n; return f(n + 1) + a[0]; }\nint main() { return f(0); }",
           "SIGSEGV"),
    rarely("threads", "#include <thread>\n#include <vector>\n#include <chrono>\nint main() { std::vector<std::thread> v;"
           " for (;;) v.emplace_back([] { std::this_thread::sleep_for(std::chrono::hours(1)); }); }", "."),
    rarely("abort", "#include <cstdlib>\nint main() { abort(); }", "SIGABRT"),
    rarely("divides by zero", "int main(int n, char**) { return 1 / (n - 1); }", "SIGFPE|exit status|^$"),
    rarely("clone3 by hand", "#include <unistd.h>\n#include <sys/syscall.h>\n#include <cstdio>\nint main() {"
           " if (syscall(435, 0, 0) < 0) { perror(0); return 7; } }", "not implemented"),
]  # fmt: skip

CPP_COMPILE_CORPUS = [
    ("includes a secret", '#include SECRET\nint main() {}', REFUSED),
    rarely("includes endless zeros", '#include "/dev/zero"\nint main() {}', "."),
    rarely("templates without end", "template <int n> struct A { A<n + 1> a; };\nA<0> a;\nint main() {}", "."),
    rarely("templates that double", "template <int n, class T> struct A { using L = typename A<n - 1, T[1]>::L;"
           " using R = typename A<n - 1, T[2]>::R; L l; R r; };\ntemplate <class T> struct A<0, T> { using L = T; using R = T; };\n"
           "A<899, int> a;\nconstexpr int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
           "template <int n> struct F { static const int v = f(n); };\nint main() { return F<40>::v; }", "."),
    rarely("a binary of a gigabyte", "char a[1 << 30] = {1};\nint main() {}", "."),
    rarely("embeds a secret", '__asm__(".incbin \\"" SECRET "\\"");\nint main() {}', REFUSED + "|file not found"),
]  # fmt: skip

JAVASCRIPT_CORPUS = [
    ("fork bomb", "const {spawnSync} = require('child_process'); const r = spawnSync('/bin/sh'); if (r.error) throw r.error",
     "."),
    rarely("memory bomb", "const a = []; for (;;) a.push(new Array(1e5).fill(1.5))", "SIGABRT|SIGTRAP|SIGSEGV|exit status"),
    rarely("buffer bomb", "const a = []; for (;;) a.push(Buffer.alloc(1 << 24, 1))", "SIGABRT|SIGTRAP|SIGSEGV|exit status"),
    rarely("output flood", "for (;;) require('fs').writeSync(1, 'x'.repeat(1e5))", OUTPUT),
    rarely("infinite loop", "for (;;);", TIME),
    rarely("ignores SIGTERM and sleeps", "process.on('SIGTERM', () => {}); setInterval(() => {}, 1e6)", TIME),
    rarely("reads a file", "console.log(require('fs').readFileSync(SECRET, 'utf8'))", "."),
    rarely("environment", "console.log(process.env)", ""),
    rarely("network", "require('net').connect(9, '127.0.0.1')", "."),
    rarely("fetches", "fetch('http://127.0.0.1:9/')", "."),
    rarely("kills its parent", "process.kill(process.ppid, 9)", "."),
    rarely("writes outside", "require('fs').writeFileSync(SECRET, 'gone')", "."),
    rarely("a symlink outside", "const f = require('fs'); f.symlinkSync(SECRET, 'l'); f.writeFileSync('l', 'gone')", "."),
    rarely("changes its own program", "require('fs').writeFileSync(process.argv[1], 'gone')", "."),
    rarely("deep recursion", "function f(n) { return f(n + 1) + 1; } f(0)", "."),
    rarely("workers", "const {Worker} = require('worker_threads'); for (let i = 0; i < 999; i++)"
           " new Worker('setInterval(() => {}, 1e6)', {eval: true})", "."),
    rarely("promises without end", "const f = () => Promise.resolve().then(f); f()", "time limit|SIGABRT|SIGTRAP"),
    rarely("regular expression without end", "/^(a+)+$/.test('a'.repeat(50) + 'b')", TIME),
    rarely("aborts", "process.abort()", "SIGABRT"),
]  # fmt: skip


def corpus(language, entries):
    for entry in entries:
        values = entry.values if hasattr(entry, "values") else entry
        marks = [*getattr(entry, "marks", ()), needs(language)]
        yield pytest.param(language, *values[1:], marks=marks, id=f"{language.name}: {values[0]}")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A secret file and an environment to steal, and a folder for temporary files that must be empty afterwards."""
    secret, scratch = tmp_path / "secret", tmp_path / "scratch"
    secret.write_text("4711-secret")
    secret.chmod(0o666)
    scratch.mkdir()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    scratch.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setenv("JUDGE_API_KEY", "4711-secret")
    descriptors = os.listdir("/proc/self/fd")
    yield secret
    assert secret.read_text() == "4711-secret"
    assert list(scratch.iterdir()) == []
    assert processes_with(str(scratch)) == []
    # Fewer are no leak: what an earlier test left to the collector may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)


def processes_with(text: str) -> list[int]:
    """Processes that have a text in their command line, or run in a folder of that name."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                shown = file.read().decode(errors="replace") + os.readlink(f"/proc/{entry}/cwd")
        except OSError:
            continue
        if text in shown and int(entry) != os.getpid():
            found.append(int(entry))
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("language", "source", "ending"),
    [*corpus(PYTHON, PYTHON_CORPUS), *corpus(CPP, CPP_CORPUS), *corpus(JAVASCRIPT, JAVASCRIPT_CORPUS)],
)
def test_hostile_programs_end_as_they_should_and_leave_nothing(world, language, source, ending):
    limits = SHORT if ending == TIME else replace(SHORT, wall_seconds=30)
    with Program(source.replace("SECRET", f'"{world}"'), language, limits=limits) as program:
        if program.compile_errors:
            assert re.search(ending, program.compile_errors)
            return
        found = program.run(b"")
        missing = {"landlock", "system call filter", "network namespace", "folder in memory"} - set(found.isolation)
        if missing:
            pytest.skip(f"this kernel or container does not offer: {', '.join(sorted(missing))}")
    assert re.search(ending, f"{found.ending}\n{found.errors}" if ending else found.ending), found
    assert b"4711" not in found.output
    assert "4711" not in found.errors
    assert found.wall_seconds < limits.wall_seconds + 10


@pytest.mark.parametrize(("language", "source", "errors"), list(corpus(CPP, CPP_COMPILE_CORPUS)))
def test_hostile_sources_do_not_compile_and_leave_nothing(world, language, source, errors):
    with Program(source.replace("SECRET", f'"{world}"'), language, limits=replace(SHORT, compile_seconds=4)) as program:
        if program.compile_errors:
            assert re.search(errors, program.compile_errors)
            assert "4711" not in program.compile_errors
        else:
            assert errors == "."
            assert b"4711" not in program.run(b"").output


def test_kill_9_of_the_caller_ends_the_program(tmp_path):
    script = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from areal.reward.programs import Program, PYTHON, RunLimits\n"
        "with Program('import time; time.sleep(600)', PYTHON, limits=RunLimits(wall_seconds=600)) as program:\n"
        "    program.run(b'')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    caller = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
    marker, deadline = f"{tmp_path}/areal-run-", time.monotonic() + 60
    while len(processes_with(marker)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(processes_with(marker)) >= 4
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    while processes_with(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(marker) == []


def test_a_killed_keeper_is_a_lost_run_and_no_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lost: list[str] = []

    def attempt(program):
        with pytest.raises(ExecutionError) as caught:
            program.run(b"")
        lost.append(str(caught.value))

    with Program("import time; time.sleep(600)", PYTHON, limits=replace(SHORT, wall_seconds=60)) as program:
        thread = threading.Thread(target=attempt, args=(program,))
        thread.start()
        deadline = time.monotonic() + 60
        while len(found := processes_with(str(tmp_path))) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        _supervisor, keeper, *_ = sorted(found)
        os.kill(keeper, signal.SIGKILL)
        thread.join(60)
    assert lost == ["a run was lost: its keeper was killed"]
