"""Adapters against the real packages, in the interpreter that scripts/setup_environments.sh makes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from areal.api import ActionCall, AssistantTurn, ConfigError, FaultError, FaultKind
from areal.environment.check import check_environment
from areal.environment.config import HostConfig
from areal.environment.pool import EnvironmentPool
from areal.environment.registry import create_factory

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-environments" / "bin" / "python"
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

        assert [tool["name"] for tool in first.tools] == ["add", "leave"]
        assert first.tools[0]["parameters"]["required"] == ["first"]
        assert texts(results)[0] == ["5", "3"]
        assert results[1].terminated

    def test_wrong_arguments_are_errors_that_the_policy_reads(self):
        wrong = AssistantTurn(text="", calls=(ActionCall(name="add", arguments={"first": "two"}),))

        _, results = play("mcp", SERVER, wrong, row=QUESTION)

        assert texts(results)[0][0].startswith("error: ")
        assert results[0].info == {"mcp_errors": 1.0}

    def test_a_server_that_is_gone_is_a_fault(self):
        with pytest.raises(FaultError) as caught:
            play("mcp", SERVER, AssistantTurn(text="", calls=(ActionCall(name="leave", arguments={}),)), row=QUESTION)

        assert caught.value.kind in {FaultKind.ENVIRONMENT_FAILED, FaultKind.ENVIRONMENT_TIMEOUT}


@pytest.mark.parametrize(("name", "options"), [("textarena", {"id": "GuessTheNumber-v0"}), ("gymnasium", LAKE)])
def test_a_missing_package_names_the_command(name, options):
    with pytest.raises(ConfigError, match=r"scripts/setup_environments\.sh"):
        create_factory(name, options)
