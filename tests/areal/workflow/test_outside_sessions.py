"""Sessions that others open: a place each, within the limits of the run, scored from outside or not at all."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest
from scripted import Judge

from areal.api import ConfigError, FaultError, FaultKind, GenerationConfig
from areal.testing.scripted import ScriptedEngine, ambiguous_tokenizer
from areal.utils import stats
from areal.workflow.assembly import create_workflow

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ADMIN = "a" * 40
ROW = {"messages": [{"role": "user", "content": "six times seven"}], "answer": "42"}


class Outside:
    """Somebody with the admin key, and places of a run."""

    def __init__(self, workflow, engine, http, ready):
        self.workflow, self.engine, self.http, self.ready = workflow, engine, http, ready

    def place(self, row=ROW):
        """An episode that waits for a session."""
        return asyncio.create_task(self.workflow.arun_episode(self.engine, row))

    async def ask(self, method, path, body=None, *, key=ADMIN):
        while not self.ready.exists():
            await asyncio.sleep(0.01)
        address = json.loads(self.ready.read_text())["address"]
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.request(method, f"{address}{path}", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def open(self):
        while (answer := await self.ask("POST", "/rl/sessions"))[0] == 429:  # no place is free yet
            await asyncio.sleep(0.01)
        assert answer[0] == 200, answer
        return answer[1]

    async def say(self, session, text="hello"):
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return await self.ask("POST", "/v1/chat/completions", body, key=session["key"])

    async def close(self, session):
        return await self.ask("DELETE", f"/rl/sessions/{session['name']}")

    async def score(self, session, value, *, key=ADMIN, **more):
        return await self.ask("POST", f"/rl/sessions/{session['name']}/reward", {"reward": value, **more}, key=key)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Run a coroutine function with an `Outside`; options are those of the gateway."""
    monkeypatch.setenv("KEY_OF_TESTS", ADMIN)
    tokenizer = ambiguous_tokenizer(TEMPLATE)

    def run(talk, *, judge=None, **gateway):
        async def all_of_it():
            ready = tmp_path / "ready.json"
            workflow = create_workflow(
                "outside_sessions",
                reward=judge or Judge(),
                gconfig=GenerationConfig(max_new_tokens=50),
                tokenizer=tokenizer,
                options={"key_variable": "KEY_OF_TESTS", "ready_file": str(ready), "gateway": gateway},
            )
            engine = ScriptedEngine(lambda _: "the answer is 42", tokenizer)
            async with aiohttp.ClientSession() as http:
                return await asyncio.wait_for(talk(Outside(workflow, engine, http, ready)), 60)

        return asyncio.run(all_of_it())

    return run


def test_a_session_from_outside_is_told_its_row_and_scored_after_its_end(outside):
    async def talk(run):
        place = run.place()
        session = await run.open()
        assert session["row"] == ROW
        assert (await run.say(session))[0] == 200
        assert (await run.ask("POST", "/rl/reward", {"reward": 1.0}, key=session["key"]))[0] == 400
        await run.close(session)
        assert not place.done()
        assert (await run.score(session, 0.75, components={"clicks": 3}))[0] == 200
        return await place

    judge = Judge()
    with stats.scope() as recorded:
        (leaf,) = outside(talk, judge=judge, reward_deadline=20.0)
    assert (leaf.reward, leaf.reward_components) == (0.75, {"clicks": 3.0})
    assert sum(leaf.loss_mask) == recorded["agent/tokens_generated"][0]
    assert not judge.calls


def test_without_a_deadline_the_reward_of_the_run_scores_the_last_answer(outside):
    async def talk(run):
        place = run.place()
        session = await run.open()
        await run.say(session)
        await run.close(session)
        return await place

    judge = Judge(**{"_the answer is 42": 0.5})
    (leaf,) = outside(talk, judge=judge)
    assert leaf.reward == 0.5
    assert judge.calls[0][:2] == ("six times seven", "the answer is 42")


def test_there_is_one_session_for_each_place_and_an_unused_one_gives_it_back(outside):
    async def talk(run):
        places = [run.place({**ROW, "answer": str(number)}) for number in range(2)]
        first, second = await run.open(), await run.open()
        assert [session["row"]["answer"] for session in (first, second)] == ["0", "1"]
        assert (await run.ask("POST", "/rl/sessions"))[0] == 429
        assert (await run.ask("POST", "/rl/sessions", key=first["key"]))[0] == 401
        await run.close(first)  # it asked for nothing
        again = await run.open()
        assert again["row"]["answer"] == "0"
        assert again["key"] != first["key"]
        for session in (again, second):
            await run.say(session)
            await run.close(session)
            await run.score(session, 1.0)
        return await asyncio.gather(*places)

    with stats.scope() as recorded:
        found = outside(talk, reward_deadline=20.0)
    assert [len(leaves) for leaves in found] == [1, 1]
    assert sorted(recorded["agent/unused"]) == [0, 1]


@pytest.mark.fault(
    row=54,
    injected="a session that somebody opened in a training run ends, and is scored by nobody until reward_deadline",
    seen="reward_missing; the reward that comes then is refused",
)
def test_a_session_that_nobody_scores_is_a_fault(outside):
    async def talk(run):
        place = run.place()
        session = await run.open()
        await run.say(session)
        await run.close(session)
        with pytest.raises(FaultError) as caught:
            await place
        assert caught.value.kind is FaultKind.REWARD_MISSING
        assert (await run.score(session, 1.0))[0] == 404

    outside(talk, reward_deadline=0.2)


@pytest.mark.fault(
    row=11,
    injected="a session that somebody opened in a training run goes on until its prompt is given up as too old",
    seen="its next request and its reward are refused; nothing of it is trained",
)
def test_a_session_that_is_given_up_is_over_for_everybody(outside):
    async def talk(run):
        place, free = run.place(), run.place()
        session = await run.open()
        await run.say(session)
        for task in (place, free):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        status, body = await run.say(session)
        assert (status, body["error"]["code"]) == (400, "session_closed")
        assert (await run.score(session, 1.0))[0] in (400, 404)
        assert (await run.ask("POST", "/rl/sessions"))[0] == 429, "the other place is gone as well"

    outside(talk, reward_deadline=20.0)


@pytest.mark.exhaustive
def test_a_session_that_nobody_closes_ends_at_its_limit_and_is_scored(outside):
    async def talk(run):
        place = run.place()
        session = await run.open()
        await run.say(session)
        await run.score(session, 0.25)
        return await place

    (leaf,) = outside(talk, reward_deadline=20.0, header_seconds=5.0, limits={"idle_seconds": 2.5})
    assert leaf.reward == 0.25
    assert leaf.truncated


def test_a_port_that_is_taken_ends_the_run_with_advice(outside):
    async def talk(run):
        with pytest.raises(ConfigError, match="cannot listen"):
            await run.place()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        outside(talk, port=taken.getsockname()[1])


def test_a_run_without_an_admin_key_is_refused(monkeypatch):
    monkeypatch.setenv("KEY_OF_TESTS", "short")
    with pytest.raises(ConfigError, match="holds 5 characters, expected a key of at least 32"):
        create_workflow(
            "outside_sessions",
            reward=Judge(),
            gconfig=GenerationConfig(),
            tokenizer=ambiguous_tokenizer(TEMPLATE),
            options={"key_variable": "KEY_OF_TESTS"},
        )
