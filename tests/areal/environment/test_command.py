"""`areal env check`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
import sys

import pytest

from areal.cli.main import main
from areal.environment import registry, subprocess_host


@pytest.fixture
def areal(capsys):
    """Run a command line in this process; returns exit code, stdout and stderr."""

    def run(*argv):
        code = main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_right_environment_passes_every_check(areal):
    code, out, _ = areal("env", "check", "worlds:Counter", "--answer", "2", "--json")

    found = json.loads(out)
    assert code == found["exit_code"] == 0
    assert [check["name"] for check in found["checks"] if not check["ok"]] == []
    assert {check["name"] for check in found["checks"]} == {
        "equal_seeds", "concurrent_episodes", "step_after_end", "other_seed", "close", "leaks",
    }  # fmt: skip


def test_what_breaks_the_contract_is_named_with_exit_code_10(areal):
    code, out, _ = areal("env", "check", "worlds:Misbehaving", "--options", '{"what": "random"}')

    assert code == 10
    assert "FAILED equal_seeds: two episodes with one seed differ after turn 0" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worlds:Nothing"], "Nothing"),
        (["worlds:Counter", "--options", "{"], "--options is not JSON"),
        (["worlds:Counter", "--row", "[1]"], "expected a JSON object"),
    ],
)
def test_wrong_arguments_end_with_exit_code_2(areal, arguments, words):
    code, _, err = areal("env", "check", *arguments)

    assert code == 2
    assert words in err


def test_answers_call_tools_as_a_policy_does(areal):
    call = '<tool_call>{"name": "add", "arguments": {"number": 2}}</tool_call>'

    code, out, _ = areal("env", "check", "worlds:Adder", "--answer", call, "--json")

    assert code == 0, out
    assert [check["detail"] for check in json.loads(out)["checks"] if check["detail"]] == []


def test_a_call_that_cannot_be_read_is_a_wrong_argument(areal):
    code, _, err = areal("env", "check", "worlds:Adder", "--answer", '<tool_call>{"name"')

    assert code == 2
    assert "not closed" in err


def test_an_environment_of_a_project_is_listed_and_runs_by_its_name_in_a_process(areal, tmp_path, monkeypatch):
    package = tmp_path / "shop" / "environment"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.areal.new]\npackage = "shop"\n')
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "registry.py").write_text('ENVIRONMENTS = {"tills": "shop.environment.tills:Counter"}\n')
    (package / "tills.py").write_text("from worlds import Counter\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "ENVIRONMENTS", dict(registry.ENVIRONMENTS))
    monkeypatch.setattr(subprocess_host, "ENVIRONMENTS", registry.ENVIRONMENTS)

    assert "tills" in areal("list", "environments")[1]
    code, out, _ = areal("env", "check", "tills", "--host", "subprocess", "--answer", "2")

    assert code == 0, out
