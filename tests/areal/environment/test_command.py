"""`areal env`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from areal.api import AssistantTurn, FaultError, FaultKind
from areal.cli.main import main
from areal.environment import registry, subprocess_host
from areal.environment.config import HostConfig
from areal.environment.pool import EnvironmentPool


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


def test_a_module_of_the_current_folder_is_found(areal, tmp_path, monkeypatch):
    (tmp_path / "mine_alone.py").write_text("from worlds import Counter\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert areal("env", "check", "mine_alone:Counter", "--answer", "2")[0] == 0


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


@pytest.mark.exhaustive
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


@contextlib.contextmanager
def served(*arguments, folder, **variables):
    """(address, process) of `areal env serve`, in a process of its own."""
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "areal", "env", "serve", *arguments, "--ready-file", str(ready)]
    paths = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parent)])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths, **variables}, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ready.exists(), process.communicate()[1].decode()
        yield json.loads(ready.read_text())["address"], process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worlds:Nothing"], "Nothing"),
        (["gymnasiun"], "did you mean 'gymnasium'"),
        (["worlds:Counter", "--options", '{"height": 1}'], "height"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anybody_asks_for_it(areal, arguments, words):
    code, _, err = areal("env", "serve", *arguments)

    assert code == 2
    assert words in err
    assert "serving" not in err


def test_a_served_environment_is_checked_from_elsewhere_and_ends_when_asked(areal, tmp_path):
    with served("worlds:Counter", "--options", '{"goal": 4}', folder=tmp_path) as (address, process):
        where = ("--host", "http", "--url", address, "--answer", "2")
        code, out, _ = areal("env", "check", "worlds:Counter", *where, "--options", '{"goal": 4}')
        refused, _, error = areal("env", "check", "worlds:Counter", *where)
        process.terminate()

        assert (code, "FAILED" in out) == (0, False)
        assert "ok     equal_seeds" in out
        assert refused == 2
        assert "serves 'worlds:Counter' with options {'goal': 4}" in error
        assert process.wait(60) == 143


@pytest.mark.exhaustive
def test_a_server_whose_environment_blocks_it_and_one_that_is_killed_are_faults(tmp_path):
    options = {"what": "spin"}
    arguments = ("worlds:Misbehaving", "--options", json.dumps(options), "--host", "process")
    kinds, clean = [], []
    with served(*arguments, folder=tmp_path) as (address, process):
        config = HostConfig(kind="http", url=address, step_seconds=0.5, close_seconds=0.5)
        pool = EnvironmentPool("worlds:Misbehaving", options, config)

        async def episode():
            async with pool.episode() as environment:
                await environment.reset({}, 0)
                await environment.step(AssistantTurn(text="1"))

        for _ in range(2):
            with pytest.raises(FaultError) as caught:
                asyncio.run(asyncio.wait_for(episode(), 30))
            kinds.append(caught.value.kind)
            clean.append(pool.num_leaked)
            if len(kinds) == 1:
                process.send_signal(signal.SIGKILL)

    assert kinds == [FaultKind.ENVIRONMENT_TIMEOUT, FaultKind.ENVIRONMENT_FAILED]
    assert clean == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--address", "0.0.0.0"], "there is no key"),
        (["--key-variable", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["--host", "http"], "a server runs environments itself"),
        (["--port", "99999"], "port is 99999"),
        (["--seed", "3"], "--seed has no effect with serve"),
    ],
)
def test_what_cannot_be_served_is_refused(areal, arguments, words):
    code, _, err = areal("env", "serve", "worlds:Counter", *arguments)

    assert code == 2
    assert words in err
