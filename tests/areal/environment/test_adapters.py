"""Adapters against the real packages, in the interpreter that scripts/setup_environments.sh makes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from areal.api import ActionCall, AssistantTurn, ConfigError, FaultError, FaultKind
from areal.environment.check import check_environment
from areal.environment.config import HostConfig
from areal.environment.pool import EnvironmentPool
from areal.environment.registry import create_factory

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-environments" / "bin" / "python"
OPENENV = ROOT / ".venv-openenv" / "bin" / "python"
HOST = HostConfig(kind="subprocess", python=str(PYTHON))
LAKE = {
    "id": "FrozenLake-v1",
    "observe": "packages:see",
    "act": "packages:move",
    "make_options": {"is_slippery": False},
}
SERVER = {"command": str(PYTHON), "args": [str(Path(__file__).with_name("packages.py"))]}

QUESTION = {"messages": [{"role": "user", "content": "2 + 3?"}]}

real = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not (ROOT / ".venv-environments" / ".ready").exists(), reason="run `bash scripts/setup_environments.sh` first"
    ),
]


def play(name, options, *turns, row=None, seed=3):
    """(first observation, results) of one episode."""
    pool = EnvironmentPool(name, options, HOST)

    async def episode():
        async with pool.episode() as environment:
            first = await environment.reset(row or {}, seed)
            return first, [await environment.step(turn) for turn in turns]

    return asyncio.run(episode())


def say(text):
    return AssistantTurn(text=text)


def texts(results):
    return [[message["content"] for message in result.observation.messages] for result in results]


class TestGymnasium:
    pytestmark = real

    def test_a_lake_is_crossed_in_words(self):
        path = ["down", "down", "right", "right", "down", "right"]

        first, results = play("gymnasium", LAKE, *map(say, path))

        assert first.messages[0]["content"] == "square 0"
        assert texts(results) == [[f"square {square}"] for square in (4, 8, 9, 10, 14, 15)]
        assert [result.reward for result in results] == [0.0] * 5 + [1.0]
        assert [result.terminated for result in results] == [False] * 5 + [True]

    def test_words_that_are_no_action_and_actions_outside_the_space_are_answered(self):
        _, results = play("gymnasium", LAKE, say("swim"), say("fly"), say("down"))

        assert texts(results) == [
            ["error: say one of left, down, right, up, fly"],
            ["error: 9 is not one of Discrete(4)"],
            ["square 4"],
        ]

    def test_it_keeps_the_contract(self):
        found = asyncio.run(check_environment("gymnasium", LAKE, HOST, answers=["right", "down"]))

        assert [result for result in found if not result.ok] == []


class TestTextArena:
    pytestmark = real

    def test_a_game_shows_what_is_new_and_pays_at_its_end(self):
        first, results = play("textarena", {"id": "GuessTheNumber-v0"}, say("[7]"), say("[8]"))

        assert "between 1 and 20" in first.messages[0]["content"]
        assert texts(results)[0] == ["[GAME] The target number is higher."]
        assert (results[1].reward, results[1].terminated, results[1].info) == (1.0, True, {"invalid_move": 0.0})

    def test_it_keeps_the_contract_with_one_process_per_game(self):
        found = asyncio.run(
            check_environment("textarena", {"id": "GuessTheNumber-v0"}, HOST, answers=["[3]", "[11]", "[18]"])
        )

        assert [result for result in found if not result.ok] == []


class TestMcp:
    pytestmark = real

    def test_tools_of_a_server_are_listed_and_called_in_parallel(self):
        calls = (
            ActionCall(name="add", arguments={"first": 2, "second": 3}),
            ActionCall(name="add", arguments={"first": 2}),
        )

        first, results = play("mcp", SERVER, AssistantTurn(text="", calls=calls), say("5"), row=QUESTION)

        assert [tool["name"] for tool in first.tools] == ["add", "show", "leave"]
        assert first.tools[0]["parameters"]["required"] == ["first"]
        assert texts(results)[0] == ["5", "3"]
        assert results[1].terminated

    def test_images_are_shown_when_asked_for_and_texts_show_none(self):
        show = AssistantTurn(text="", calls=(ActionCall(name="show", arguments={}),))

        _, shown = play("mcp", {**SERVER, "images": True}, show, row=QUESTION)
        _, named = play("mcp", SERVER, show, row=QUESTION)

        assert texts(shown)[0] == ["a (image) here:\n<image>"]
        assert [base64.b64decode(image) for image in shown[0].observation.images] == [b"\x89PNG a picture"]
        assert texts(named)[0] == ["a <image> here:\n(image)"]
        assert not named[0].observation.images

    def test_wrong_arguments_are_errors_that_the_policy_reads(self):
        wrong = AssistantTurn(text="", calls=(ActionCall(name="add", arguments={"first": "two"}),))

        _, results = play("mcp", SERVER, wrong, row=QUESTION)

        assert texts(results)[0][0].startswith("error: ")
        assert results[0].info == {"mcp_errors": 1.0}

    def test_a_server_that_is_gone_is_a_fault(self):
        with pytest.raises(FaultError) as caught:
            play("mcp", SERVER, AssistantTurn(text="", calls=(ActionCall(name="leave", arguments={}),)), row=QUESTION)

        assert caught.value.kind in {FaultKind.ENVIRONMENT_FAILED, FaultKind.ENVIRONMENT_TIMEOUT}


@contextlib.contextmanager
def openenv_server(sessions):
    """Address and process of a server of openenv, in its interpreter."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("openenv_server.py")
    process = subprocess.Popen([str(OPENENV), str(script), str(port), str(sessions)])
    try:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server():
    with openenv_server(4) as (address, _):
        yield address


@pytest.fixture
def options(server):
    return {"base_url": server, "observe": "packages:see_sum", "act": "packages:add"}


with_openenv = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (ROOT / ".venv-openenv" / ".ready").exists(), reason="run `bash scripts/setup_openenv.sh` first"
    ),
]


class TestOpenEnv:
    pytestmark = with_openenv

    def play(self, options, *turns, row=None, pause=0.0):
        pool = EnvironmentPool("openenv", options, HostConfig(kind="subprocess", python=str(OPENENV)))

        async def episode():
            async with pool.episode() as environment:
                first = await environment.reset(row or {}, 7)
                await asyncio.sleep(pause)
                return first, [await environment.step(turn) for turn in turns]

        return asyncio.run(episode())

    def test_an_episode_in_words(self, options):
        first, results = self.play(options, say("3"), say("seven"), say("5"))

        assert first.messages[0]["content"] == "2 of 10"
        assert texts(results)[0] == ["5"]
        assert texts(results)[1][0].startswith("error: ")
        assert [(result.reward, result.terminated) for result in results] == [(0.0, False), (0.0, False), (1.0, True)]

    def test_without_functions_the_policy_reads_and_writes_json(self, server):
        turns = [say('{"number": 3}'), say("3"), say('{"number": "x"}'), say('{"nmber": 3}'), say('{"number": 9}')]

        first, results = self.play({"base_url": server, "reset_columns": ["goal"]}, *turns, row={"goal": 12, "id": 1})

        assert '"text": "2 of 12"' in first.messages[0]["content"]
        refused = "error: the environment does not take such an action"
        assert texts(results)[1:4] == [["error: say a JSON object, and nothing else"], [refused], [refused]]
        assert results[-1].terminated

    def test_it_keeps_the_contract(self, options):
        host = HostConfig(kind="subprocess", python=str(OPENENV))

        found = asyncio.run(check_environment("openenv", options, host, answers=["3", "x"]))

        assert [result for result in found if (result.ok, result.detail) != (True, "")] == []

    def test_the_connection_lives_while_the_policy_thinks(self, options):
        _, results = self.play(options, say("3"), pause=2.5)

        assert texts(results) == [["5"]]

    @pytest.mark.parametrize("action", ["99", "98"])
    def test_what_the_server_does_wrong_is_a_fault(self, options, action):
        with openenv_server(1) as (address, _), pytest.raises(FaultError) as caught:
            self.play(options | {"base_url": address}, say(action))

        assert caught.value.kind is FaultKind.ENVIRONMENT_FAILED

    def test_a_lost_connection_is_a_fault_and_no_other_episode_goes_on(self, options):
        script = (
            "import asyncio\n"
            "from areal.api import AssistantTurn\n"
            "from areal.environment.adapters.openenv import OpenEnvEnvironments\n"
            "async def main():\n"
            f"    episode = OpenEnvEnvironments({options['base_url']!r}).create()\n"
            "    await episode.reset({}, 7)\n"
            "    await episode._client._ws.close()\n"
            "    try:\n"
            "        await episode.step(AssistantTurn(text='{\"number\": 1}'))\n"
            "    except ConnectionError as error:\n"
            "        print(error)\n"
            "    await episode.close()\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run(
            [str(OPENENV), "-c", script], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

        assert done.stdout == "the connection of the episode is lost, and the episode with it\n"

    def test_a_full_server_is_asked_again_and_one_that_stays_full_is_a_fault(self, options):
        with openenv_server(1) as (address, _):
            mine = options | {"base_url": address}
            pool = EnvironmentPool("openenv", mine, HostConfig(kind="subprocess", python=str(OPENENV)))
            late = EnvironmentPool(
                "openenv", mine | {"capacity_seconds": 0.1}, HostConfig(kind="subprocess", python=str(OPENENV))
            )

            async def episode():
                async with pool.episode() as environment:
                    await environment.reset({}, 7)
                    await asyncio.sleep(1.5)

            async def together():
                await asyncio.gather(episode(), episode())
                async with pool.episode() as holding, late.episode() as other:
                    await holding.reset({}, 7)
                    with pytest.raises(FaultError, match="CAPACITY_REACHED"):
                        await other.reset({}, 7)

            asyncio.run(together())


@pytest.mark.parametrize(
    ("distribution", "release", "words"),
    [("openenv-core", "0.3.0", "is that of openenv-core"), ("openenv", "0.9.1", "expected 0.10 or newer")],
)
def test_another_distribution_of_the_package_is_refused_by_name(distribution, release, words, tmp_path, monkeypatch):
    (tmp_path / "openenv").mkdir()
    (tmp_path / "openenv" / "__init__.py").touch()
    folder = tmp_path / f"{distribution.replace('-', '_')}-{release}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {release}\n")
    (folder / "top_level.txt").write_text("openenv\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "openenv", raising=False)

    with pytest.raises(ConfigError, match=words):
        create_factory("openenv", {"base_url": "http://127.0.0.1:1"})


def test_a_missing_openenv_names_its_own_command():
    with pytest.raises(ConfigError, match=r"scripts/setup_openenv\.sh"):
        create_factory("openenv", {"base_url": "http://127.0.0.1:1"})


@pytest.mark.parametrize(("name", "options"), [("textarena", {"id": "GuessTheNumber-v0"}), ("gymnasium", LAKE)])
def test_a_missing_package_names_the_command(name, options):
    with pytest.raises(ConfigError, match=r"scripts/setup_environments\.sh"):
        create_factory(name, options)
