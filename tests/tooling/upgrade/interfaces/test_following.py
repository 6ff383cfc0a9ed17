"""Commands and requests that are built in steps, functions and files: what breaks is found where it is written.

python -m pytest tests/tooling/upgrade/interfaces/test_following.py -q
"""

import re
import time

import pytest

from tooling.upgrade.interfaces import commands_python
from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.sources.folder import memory_release

MARK = re.compile(r"# breaks")
PARSER = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--port")
FLAG
parser.parse_args()
"""
SERVER = """
from fastapi import FastAPI
app = FastAPI()
@app.get("/health")
async def health(): ...
ROUTE
"""


def release(version, flag="", route=""):
    files = {"app/server.py": PARSER.replace("FLAG", flag), "app/http.py": SERVER.replace("ROUTE", route)}
    return memory_release({"app/__init__.py": "", **files}, "app", version)


OLD = release("1", 'parser.add_argument("--gone")', '@app.post("/gone")\nasync def gone(): ...')
NEW = release("2")
CONSTANTS = 'MODULE = "app.server"\nGONE = "--gone"\nROUTE = "/gone"\nROUTES = ("/health", "/gone")\n'
HEAD = "import subprocess, sys\n"

CASES = {
    "a list that grows in branches": {
        "run.py": HEAD
        + 'def start(fast):\n    command = [sys.executable, "-m", "app.server"]\n    if fast:\n'
        + '        command += ["--gone", "1"]  # breaks\n    else:\n        command.append("--port")\n'
        + "    return [*command, *more]\n"
    },
    "program and flag are constants of another file": {
        "pkg/__init__.py": "",
        "pkg/constants.py": CONSTANTS,
        "pkg/run.py": HEAD
        + "from pkg.constants import GONE, MODULE\n"
        + 'subprocess.run([sys.executable, "-m", MODULE, GONE])  # breaks\n',
    },
    "constants beside the file, and by attribute": {
        "scripts/constants.py": CONSTANTS,
        "scripts/run.py": HEAD
        + 'import constants\nsubprocess.run([sys.executable, "-m", constants.MODULE, "--gone"])  # breaks\n',
    },
    "the head in one function, the tail in another": {
        "run.py": HEAD
        + 'def head():\n    return [sys.executable, "-m", "app.server"]\n'
        + 'def tail(fast):\n    words = []\n    if fast:\n        words.append("--gone")  # breaks\n    return words\n'
        + "def start():\n    return subprocess.run([*head(), *tail(True)])\n"
    },
    "a helper in another file makes the list longer": {
        "helper.py": 'def add(command):\n    command.extend(["--gone", "1"])  # breaks\n',
        "run.py": HEAD
        + "from helper import add\ndef start():\n"
        + '    command = [sys.executable, "-m", "app.server"]\n    add(command)\n    subprocess.run(command)\n',
    },
    "a caller in another file passes the tail": {
        "launch.py": HEAD
        + 'def launch(*extra, port=1):\n    subprocess.run([sys.executable, "-m", "app.server", *extra])\n',
        "main.py": 'from launch import launch\nlaunch("--port", "2", "--gone")  # breaks\n',
    },
    "an attribute that methods of two classes make longer": {
        "base.py": HEAD
        + 'class Base:\n    module = "app.server"\n    def __init__(self):\n'
        + '        self.command = [sys.executable, "-m", self.module]\n'
        + "    def start(self):\n        return subprocess.run([*self.command, *self._flags()])\n"
        + "    def _flags(self):\n        return []\n",
        "child.py": "from base import Base\nclass Child(Base):\n    def _flags(self):\n"
        + '        return [*super()._flags(), "--gone"]  # breaks\n'
        + '    def tune(self):\n        self.command += ["--gone"]  # breaks\n',
    },
    "a table of options": {
        "run.py": HEAD
        + 'OPTIONS = {\n    "port": 1,\n    "gone": 2,  # breaks\n}\n'
        + 'def start():\n    command = [sys.executable, "-m", "app.server"]\n'
        + '    for name, value in OPTIONS.items():\n        command += [f"--{name}", str(value)]\n    return command\n'
    },
    "a table of flags": {
        "run.py": HEAD
        + 'def start(gone):\n    command = [sys.executable, "-m", "app.server"]\n'
        + '    for flag, value in (\n        ("--port", 1),\n        ("--gone", gone),  # breaks\n    ):\n'
        + "        if value:\n            command += [flag, str(value)]\n    return command\n"
    },
    "options that a helper renders": {
        "render.py": "def render(options):\n    words = []\n    for name, value in options.items():\n"
        + "        words.append(f\"--{name.replace('_', '-')}\")\n    return words\n",
        "run.py": HEAD
        + "from render import render\noptions = dict(port=1)\n"
        + 'options["gone"] = 1  # breaks\n'
        + 'subprocess.run([sys.executable, "-m", "app.server", *render(options)])\n',
    },
    "a string in steps": {
        "run.py": "import os\nfrom constants import MODULE\ndef start():\n"
        + '    command = f"python -m {MODULE} --port 1"\n'
        + '    command += " --gone 1"  # breaks\n    os.system(command)\n',
        "constants.py": CONSTANTS,
    },
    "a tuple of command and environment": {
        "make.py": HEAD + 'def make():\n    return [sys.executable, "-m", "app.server"], {"A": "1"}\n',
        "run.py": "from make import make\ndef start():\n    command, environment = make()\n"
        + '    command.append("--gone")  # breaks\n    return command\n',
    },
    "flags of something else": {
        "run.py": HEAD
        + 'def other():\n    return ["--gone"]\n'
        + 'def start():\n    command = [sys.executable, "-m", "elsewhere", *other()]\n    return command\n'
        + 'def mine():\n    return [sys.executable, "-m", "app.server", "--port", "1"]\n'
    },
    "a route from a constant of another file": {
        "constants.py": CONSTANTS,
        "call.py": 'import requests  # app\nfrom constants import ROUTE\nrequests.post(f"{base}{ROUTE}")  # breaks\n',
    },
    "routes through a helper's parameters": {
        "client.py": "import aiohttp  # app\nclass Client:\n    async def post(self, url, path, body=None):\n"
        + '        return await self._send("POST", url, path, body)\n'
        + "    async def events(self, url, path, body):\n        where = f'{url}{path}'\n"
        + "        async with self.session.post(where, json=body) as answer:\n            yield answer\n"
        + "    async def _send(self, method, url, path, body):\n"
        + '        return await self.session.request(method, f"{url}{path}", json=body)\n',
        "call.py": 'GONE = "/gone"  # app\nasync def call(client, url):\n'
        + '    await client.post(url, "/health")\n    await client.post(url, "/gone")  # breaks\n'
        + "    async for each in client.events(url, GONE, {}):  # breaks\n        print(each)\n",
    },
    "a list that a module beside gives": {
        "pkg/__init__.py": "",
        "pkg/base.py": 'def base():\n    return ["python", "-m", "app.server"]\n',
        "pkg/run.py": 'from . import base\ncommand = base.base() + ["--gone"]  # breaks\n',
    },
    "routes of a table": {
        "constants.py": CONSTANTS,
        "call.py": "import requests  # app\nfrom constants import ROUTES\n"
        + "for path in ROUTES:\n    requests.post(f'{base}{path}')  # breaks\n",
    },
    "a route with a query": {
        "call.py": "import requests  # app\ndef call(client, url, mode):\n"
        + '    client.post(url, f"/gone?mode={mode}")  # breaks\n'
    },
}


def test_a_list_that_is_made_anew_for_each_of_many_flags_is_followed_at_once(tmp_path):
    lines = [f"    if options.a{number}:\n        args = args + ['--a{number}']\n" for number in range(40)]
    head = 'def make(options):\n    args = ["python", "-m", "app.server"]\n'
    text = f'{head}{"".join(lines)}    args.append("--gone")\n'
    (tmp_path / "run.py").write_text(f"{text}    return args\n")
    started = time.process_time()
    found = judge_interfaces(tmp_path, OLD, NEW, "app").findings
    assert time.process_time() - started < 25
    assert [each.line for each in found if each.symbol.endswith("--gone")] == [text.count("\n")]


def test_calls_without_arguments_are_no_command(tmp_path):
    (tmp_path / "run.py").write_text('APP = "app.server"\nwords = list() + sorted(()) + "{}".format().split()\n')
    assert judge_interfaces(tmp_path, OLD, NEW, "app").findings == ()


@pytest.mark.exhaustive
def test_functions_that_call_each_other_many_times_are_followed_for_seconds_only(tmp_path):
    # Each passes on another list, so that no two calls are alike: 12 ** 6 of them
    calls = "\n".join(f"    f{{0}}(args + ['--x{each}'])" for each in range(12))
    functions = [f"def f{number}(args):\n{calls.format(number + 1)}\n" for number in range(7)]
    last = "def f7(args):\n    return args\n"
    head = 'def begin():\n    f0(["python", "-m", "app.server", "--gone"])\n'
    (tmp_path / "run.py").write_text("\n".join([*functions, last, head]))
    started = time.process_time()
    found = judge_interfaces(tmp_path, OLD, NEW, "app").findings
    assert time.process_time() - started < 12
    assert any(each.symbol.endswith("--gone") for each in found)


def test_a_search_that_the_bound_on_all_files_cut_short_is_not_kept(tmp_path, monkeypatch):
    (tmp_path / "repository").mkdir()
    for path, text in CASES["the head in one function, the tail in another"].items():
        (tmp_path / "repository" / path).write_text(text)

    def lines():
        found = judge_interfaces(tmp_path / "repository", OLD, NEW, "app", cache=tmp_path / "cache").findings
        return [each.line for each in found]

    whole = commands_python.MOST_STATEMENTS_IN_ALL
    monkeypatch.setattr(commands_python, "MOST_STATEMENTS_IN_ALL", 0)
    assert lines() == []
    monkeypatch.setattr(commands_python, "MOST_STATEMENTS_IN_ALL", whole)
    assert len(lines()) == 1


@pytest.mark.parametrize("name", CASES)
def test_what_breaks_is_found_where_it_is_written(name, tmp_path):
    for path, text in CASES[name].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = {(each.path, each.line) for each in judge_interfaces(tmp_path, OLD, NEW, "app").findings}
    marked = {
        (path, number)
        for path, text in CASES[name].items()
        for number, line in enumerate(text.splitlines(), start=1)
        if MARK.search(line)
    }
    assert found == marked
