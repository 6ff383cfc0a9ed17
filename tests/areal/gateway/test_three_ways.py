"""The same task by environment, by agent function and by an unmodified program has the same tokens to the last id."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from hashlib import sha256

import pytest
import templates
from serving import renderer_of
from test_clients import CALL, CLIENTS, PYTHON, is_second_turn
from tiny_engine import embedded

from areal.api import GenerationConfig
from areal.testing.scripted import ScriptedEngine
from areal.workflow.assembly import create_workflow

WAYS = {"adds_by_chat", "adds_by_messages", "adds_by_responses"}
ROW = {"messages": [{"role": "user", "content": "1 + 2?"}], "answer": "3"}


class SeededByPrompt:
    """An engine whose randomness depends on the prompt alone; workflows count their requests in different ways."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def agenerate(self, request):
        seed = int.from_bytes(sha256(str(request.input_ids).encode()).digest()[:6], "little")
        return await self._engine.agenerate(replace(request, seed=seed, metadata={}))


async def no_reward(*_, **__):
    raise AssertionError("the episodes bring their own reward")


def episode(name, engine, tokenizer, gconfig, **options):
    async def run():
        workflow = create_workflow(name, reward=no_reward, gconfig=gconfig, tokenizer=tokenizer, options=options)
        return await asyncio.wait_for(workflow.arun_episode(SeededByPrompt(engine), ROW), 120)

    found = asyncio.run(run())
    (leaf,) = found if isinstance(found, list) else [found]
    return leaf


def assert_equal(one, other):
    for what in ("tokens", "loss_mask", "logprobs", "versions", "turn_ids", "total_reward"):
        assert getattr(one, what) == getattr(other, what), what


def says(*calls):
    """Call, then answer with the result."""
    said = "\n".join(CALL % ("add", json.dumps({"a": 1, "b": number})) for number in calls)
    return lambda prompt: "The result is 3." if is_second_turn(prompt) else said


@pytest.mark.sample(2)
@pytest.mark.parametrize("calls", [(2,), (2, 5)], ids=["one call", "two calls"])
@pytest.mark.parametrize("template", ["PLAIN", "MERGED", "EMPTY_THOUGHT"])
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_task_with_a_tool_by_environment_and_by_agents(way, template, calls):
    tokenizer = renderer_of(getattr(templates, template))[1]
    engine, gconfig = ScriptedEngine(says(*calls), tokenizer), GenerationConfig(max_new_tokens=1000)
    options = {"environment": "three_ways:Adding", "strict_template": template != "EMPTY_THOUGHT"}
    expected = episode("environment", engine, tokenizer, gconfig, **options)
    assert max(expected.turn_ids) == 1
    assert_equal(episode("agent", engine, tokenizer, gconfig, agent=f"three_ways:{way}"), expected)


@pytest.mark.parametrize("stop", [{"stop": ["a", "e"]}, {"stop_token_ids": list(range(60, 90))}], ids=["text", "ids"])
def test_what_a_model_samples_by_environment_and_by_agent(model, stop):
    tokenizer, gconfig = renderer_of(templates.PLAIN)[1], GenerationConfig(max_new_tokens=600, **stop)
    engine = embedded(model)
    try:
        expected = episode("environment", engine, tokenizer, gconfig, environment="three_ways:Insisting")
        assert max(expected.turn_ids) == 2
        assert_equal(episode("agent", engine, tokenizer, gconfig, agent="three_ways:insists"), expected)
    finally:
        engine.close()


@pytest.mark.exhaustive
@pytest.mark.skipif(not PYTHON.exists(), reason="needs the SDKs: bash scripts/setup_agent_clients.sh")
@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic_messages"])
def test_a_task_with_a_tool_by_environment_and_by_an_unmodified_program(client):
    tokenizer = renderer_of(templates.PLAIN)[1]
    engine, gconfig = ScriptedEngine(says(2), tokenizer), GenerationConfig(max_new_tokens=1000)
    expected = episode("environment", engine, tokenizer, gconfig, environment="three_ways:Adding")
    command = [str(PYTHON), str(CLIENTS / f"{client}.py")]
    assert_equal(episode("agent", engine, tokenizer, gconfig, command=command, score="three_ways:scores"), expected)
