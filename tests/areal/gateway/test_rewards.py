"""Rewards over HTTP: while a session is open, after its end, and too late."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
import templates
from serving import renderer_of, run, serving, user

from areal.api import GenerationConfig, UsageError
from areal.gateway.config import GatewayConfig
from areal.gateway.server import Gateway
from areal.testing.scripted import ScriptedEngine


def test_a_closed_session_is_scored_until_it_is_finished_and_the_last_reward_counts():
    async def talk():
        async with serving(lambda _: "x", may_score=True, reward_deadline=300.0) as served:
            said = await served.chat([user("go")])
            assert (await served.post("/rl/reward", {"reward": 0.25}))[0] == 200
            await served.gateway.close(served.session)
            # Its key is dead for answers, and not for rewards.
            assert (await served.post("/v1/chat/completions", {"messages": [user("go")]}))[0] == 400
            assert (await served.post("/rl/reward", {"answer": said["id"], "reward": 2.0}))[0] == 200
            assert served.session.awaits_reward
            for value in (0.5, 0.75):
                assert (await served.post("/rl/reward", {"reward": value}))[0] == 200
            await asyncio.wait_for(served.gateway.finish(served.session), 60)
            status, refused = await served.post("/rl/reward", {"reward": 1.0})
            assert (status, refused["error"]["code"]) == (400, "session_closed")
            with pytest.raises(UsageError, match="too late"):
                served.session.set_reward(1.0)
            assert served.session.reward == 0.75
            assert served.session.state == "finished"
            assert served.session.trajectories(served.session.reward)[0].reward == 2.75

    run(talk())


def test_rewards_of_answers_end_with_a_word_or_the_deadline():
    async def talk():
        async with serving(lambda _: "x", may_score=True, reward_deadline=300.0) as served:
            said = await served.chat([user("go")])
            await served.gateway.close(served.session)
            finishing = asyncio.create_task(served.gateway.finish(served.session))
            await served.post("/rl/reward", {"answer": said["id"], "reward": 1})
            await asyncio.sleep(0.05)
            assert not finishing.done()
            await served.post("/rl/reward", {"final": True})
            await asyncio.wait_for(finishing, 60)
            assert served.session.is_scored
        async with serving(lambda _: "x", may_score=True, reward_deadline=0.3) as served:
            await served.gateway.close(served.session)
            await asyncio.wait_for(served.gateway.finish(served.session), 60)
            assert not served.session.is_scored

    run(talk())


@pytest.mark.parametrize("options", [{"may_score": False, "reward_deadline": 5.0}, {"may_score": True}])
def test_without_deadline_or_leave_a_closed_session_takes_no_reward(options):
    async def talk():
        async with serving(lambda _: "x", **options) as served:
            await served.gateway.close(served.session)
            assert (await served.post("/rl/reward", {"reward": 1.0}))[0] == 400
            assert served.session.reward is None

    run(talk())


def test_a_server_of_the_user_scores_with_the_admin_key_and_no_other():
    async def talk():
        renderer, tokenizer = renderer_of(templates.PLAIN)
        engine, admin = ScriptedEngine(lambda _: "x", tokenizer), "a" * 40
        gateway = Gateway(renderer, GatewayConfig(reward_deadline=5.0), admin_key=admin)
        async with gateway.running(), aiohttp.ClientSession() as http:
            session = gateway.open(engine, GenerationConfig(max_new_tokens=20))

            async def score(value, key):
                url, headers = (
                    f"{gateway.address}/rl/sessions/{session.name}/reward",
                    {"Authorization": f"Bearer {key}"},
                )
                async with http.post(url, data=json.dumps({"reward": value}), headers=headers) as response:
                    return response.status

            assert await score(0.5, session.key) == 401
            assert await score(0.5, admin) == 200
            assert await score(float("nan"), admin) == 400
            await gateway.close(session)
            assert await score(0.75, admin) == 200
            await gateway.finish(session)
            assert await score(1.0, admin) == 404
            assert session.reward == 0.75

    run(talk())
