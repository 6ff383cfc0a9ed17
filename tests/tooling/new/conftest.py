"""A small real repository with a small real kind, "rule": a module, its test, a registry line and a docs line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from remembered_ruff import ruff_is_remembered  # noqa: F401 - for every test here

from tooling.cli.parser import split
from tooling.kit.kind import CheckResult
from tooling.kit.receipts import read_receipt
from tooling.new.change import UnitRequest, with_proof
from tooling.new.command_line import VALUE_OPTIONS, answer, main
from tooling.new.commands.generate import plan_unit
from tooling.new.matrix import Sandbox
from tooling.new.proof import hash_files, proof_of

ROOT = Path(__file__).resolve().parents[3]
PROJECT = {
    "pyproject.toml": """\
[tool.areal.new]
package = "shop"
tests = "tests"
templates = ["templates"]

[tool.ruff]
line-length = 100

[tool.ruff.lint]
select = ["E", "F", "I"]
""",
    ".gitignore": "__pycache__/\n.venv/\n",
    "shop/__init__.py": '"""A shop."""\n',
    "shop/rules/__init__.py": '"""Rules on prices."""\n',
    "shop/rules/free.py": '"""A rule."""\n\n\ndef free_rule(price: float) -> float:\n    return 0.0 * price\n',
    "shop/rules/registry.py": """\
\"\"\"Which rules there are.\"\"\"

from typing import Final

RULES: Final[dict[str, str]] = {
    # sorted
    "free": "shop.rules.free:free_rule",
    "zero": "shop.rules.zero:zero_rule",  # the last one
}
""",
    "docs/extensions.md": """\
# Extensions

<!-- areal-new:rules -->
| rule | what |
| --- | --- |
| `free` | nothing costs anything |
<!-- /areal-new:rules -->

The end.
""",
}

KIND = {
    "copier.yml": """\
_subdirectory: template
_templates_suffix: .jinja

percent:
  type: int
  default: 10
  help: How much is taken off
  validator: "{% if percent > 100 %}at most 100{% endif %}"

style:
  type: str
  choices: [plain, rounded]
  default: plain
  help: How the result is given

summary:
  type: str
  default: "{{ words }}, a rule"
  help: One line of prose
""",
    "template.toml": """\
name = "rule"
summary = "a rule on prices"
symbols = ["{{ snake }}_rule"]
commit = "feat(rules): add {{ kebab }}"
next = ["use rule={{ key }}"]
reserved = ["registry"]

[[files]]
path = "{{ package_path }}/rules/{{ snake }}.py"
purpose = "the rule {{ words }}"
contract = "shop/rules/free.py:free_rule"
todo = ["say what the rule is for"]

[[files]]
path = "{{ tests }}/test_{{ snake }}.py"
purpose = "worked examples"
test = true

[[registry]]
file = "{{ package_path }}/rules/registry.py"
shape = "mapping"
table = "RULES"
key = "{{ key }}"
value = "{{ package }}.rules.{{ snake }}:{{ snake }}_rule"

[[documents]]
file = "docs/extensions.md"
section = "rules"
key = "{{ key }}"
line = "| `{{ key }}` | {{ summary }} |"
""",
    "template/{{ package_path }}/rules/{{ snake }}.py.jinja": """\
\"\"\"{{ summary }}.\"\"\"

# TODO: say what {{ words }} is for


def {{ snake }}_rule(price: float) -> float:
    \"\"\"Takes {{ percent }} percent off.\"\"\"
    result = price * (100 - {{ percent }}) / 100
{%- if style == "rounded" %}
    result = round(result, 2)
{%- endif %}

    # Whoever calls decides on the currency.
    return result
""",
    "template/{{ tests }}/test_{{ snake }}.py.jinja": """\
from {{ package }}.rules.{{ snake }} import {{ snake }}_rule


def test_{{ snake }}_takes_its_share_off():
    assert {{ snake }}_rule(200.0) == 200.0 - 2.0 * {{ percent }}
""",
}

MODULE_TEMPLATE = "templates/rule/template/{{ package_path }}/rules/{{ snake }}.py.jinja"
TEST_TEMPLATE = "templates/rule/template/{{ tests }}/test_{{ snake }}.py.jinja"


class World(Sandbox):
    """The repository, and what a user does in it."""

    module_template = MODULE_TEMPLATE
    test_template = TEST_TEMPLATE

    def write(self, path: str, text: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
        return target

    def read(self, path: str) -> str:
        return (self.root / path).read_bytes().decode()

    def edit(self, path: str, old: str, new: str) -> None:
        text = self.read(path)
        assert old in text, f"{old!r} is not in {path}: {text}"
        self.write(path, text.replace(old, new, 1))

    def interpreter(self, script: str) -> Path:
        """Let a shell script run the tests of units, in place of Python and pytest."""
        path = self.write(".venv/bin/python", f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def interrupted(self, *words: str) -> tuple[int, str]:
        """Exit code and output of a command that got Ctrl-C while it ran tests: in a fork, which imports nothing."""
        self.interpreter("touch started; sleep 60")
        said = self.root.parent / "said.txt"
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                with contextlib.chdir(self.root), contextlib.redirect_stdout(io.StringIO()) as out:
                    code = main(list(words))
                said.write_text(out.getvalue(), encoding="utf-8")
                os._exit(code)
            finally:
                os._exit(99)
        deadline = time.monotonic() + 60
        while not (self.root / "started").exists():
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(child, signal.SIGINT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (self.root / "started").unlink()
        return code, said.read_text(encoding="utf-8")

    def commit(self, message: str = "work") -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def status(self) -> str:
        return self.git("status", "--porcelain")

    def call(self, *words):
        """The report of a command, called in this process."""
        return answer(split([*map(str, words), "--repo", str(self.root)], VALUE_OPTIONS))

    def units(self, *words):
        """What `areal-new status` says of the units, with its JSON objects as namespaces."""
        return self.as_namespaces(self.call("status", *words).data["units"])

    @staticmethod
    def as_namespaces(data):
        """JSON values, with attributes in place of keys."""
        return json.loads(json.dumps(data), object_hook=lambda item: SimpleNamespace(**item))

    def plan(self, name="half_off", *, register=True, **answers):
        return plan_unit(self.project, UnitRequest(kind="rule", name=name, answers=answers, register=register))

    def apply(self, change, **options):
        super().apply(change, **options)
        return change

    def generate(self, name="half_off", **answers):
        return self.apply(self.plan(name, **answers))

    def prove(self, name="half_off", **outcomes):
        """Note in the unit's receipt that its tests ended so, without running them."""
        change = self.project.change(UnitRequest(kind="rule", name=name))
        receipt = read_receipt(self.root, "rule", name)
        result = CheckResult("tests", "failed" not in outcomes, 1.0, outcomes=outcomes)
        with_proof(change.plan, receipt, proof_of(receipt.tests_of_unit, result, hash_files(change.plan, receipt)))
        self.apply(change)


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """The project without a unit and with one, each made once and copied for every test."""
    world = World(tmp_path_factory.mktemp("original") / "shop")
    for path, text in PROJECT.items():
        world.write(path, text)
    for path, text in KIND.items():
        world.write(f"templates/rule/{path}", text)
    world.git("init", "--quiet", "--initial-branch=main", "--template=")
    world.commit("start")
    made = World(world.root.parent / "made")
    shutil.copytree(world.root, made.root, symlinks=True)
    made.generate()
    made.prove(passed=1)
    return world, made


@pytest.fixture
def world(originals, tmp_path):
    """The project, without a unit."""
    return World(shutil.copytree(originals[0].root, tmp_path / "shop", symlinks=True))


@pytest.fixture
def made(originals, tmp_path):
    """The project in which the unit half_off was generated and proven, not committed."""
    return World(shutil.copytree(originals[1].root, tmp_path / "shop", symlinks=True))


@pytest.fixture
def run(run_command):
    """`run(folder, "rule", "x", stdin="")`: a command line in this process."""
    return lambda folder, *words, stdin="": run_command(main, words, cwd=folder, stdin=stdin)
