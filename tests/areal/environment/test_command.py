"""`areal env check`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json

import pytest

from areal.cli.main import main


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
