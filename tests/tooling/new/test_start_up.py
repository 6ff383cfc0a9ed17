"""What `areal-new --help` may load: a list, so that a new import there is a decision."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.kit.template import kinds
from tooling.new.command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[3]

OURS = {
    "tooling",
    "tooling.cli",
    "tooling.cli.errors",
    "tooling.cli.git",
    "tooling.cli.parser",
    "tooling.cli.report",
    "tooling.cli.run",
    "tooling.cli.suggest",
    "tooling.cli.toml",
    "tooling.kit",
    "tooling.kit.change",
    "tooling.kit.change.plan",
    "tooling.kit.template.kinds",
    "tooling.kit.template",
    "tooling.new",
    "tooling.new.command_line",
}
STANDARD = """
argparse ast bz2 collections contextlib copy copyreg dataclasses datetime dis enum errno fnmatch functools gettext
hashlib importlib inspect ipaddress itertools keyword linecache locale lzma math ntpath opcode operator os pathlib
re reprlib shlex shutil stat string token tokenize tomllib types typing urllib warnings weakref zlib
"""
"""Top-level names; what only helps others of the list (underscored, C, or encodings) is not counted."""

PROGRAM = """
import json, sys
before = set(sys.modules)
sys.argv = ["areal-new", *{words!r}]
from tooling.new.command_line import main
code = main()
sys.stderr.write(json.dumps([code, sorted(set(sys.modules) - before)]))
"""


def loaded_by(*words):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(words=list(words))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return modules


def test_help_loads_nothing_but_what_is_listed():
    modules = loaded_by("--help")
    ours = {name for name in modules if name.split(".")[0] == "tooling"}
    others = {name.split(".")[0] for name in modules} - {"tooling"}
    unlisted = {
        name
        for name in others - set(STANDARD.split())
        if not name.startswith("_") and name not in sys.builtin_module_names
    }
    assert unlisted == set()
    assert ours <= OURS


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["reward", "--help"], {"yaml"}),
        (["undo", "--help"], set()),
        (["--version"], set()),
        (["list"], set()),
        (["recover"], set()),
    ],
)
def test_heavy_libraries_are_loaded_only_by_who_needs_them(words, allowed):
    heavy = {"copier", "datasets", "git", "importlib.metadata", "jinja2", "libcst", "numpy", "rich", "torch", "yaml"}
    assert heavy & set(loaded_by(*words)) <= allowed


def test_the_reserved_words_of_kinds_are_the_commands():
    assert set(COMMANDS) == kinds.COMMANDS
