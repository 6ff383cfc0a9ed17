"""Unmodified clients: each does a task with a tool, and what it caused is exact.

Each runs twice. First against a scripted engine, whose tokens are random spellings of its texts. Then a tiny model is
trained to say the same after the same prompts, and the client talks to the real embedded engine around it: the
log-probabilities of what it sampled are those that the training engine computes. The prompts of smolagents have ten
thousand bytes, too many for a model that is trained here: they run against the script alone.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import templates
from serving import assert_exact, serving

from areal.algorithm.packing import collate
from areal.api import GenerationConfig
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.testing.memorised import memorised_engine
from areal.testing.scripted import ScriptedEngine

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-agents/bin/python"
CLIENTS = Path(__file__).with_name("clients")
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
SMALL = (
    "anthropic_messages",
    "langchain_agent",
    "langchain_anthropic_agent",
    "litellm_tools",
    "openai_agents",
    "openai_chat",
    "openai_responses",
    "pydantic_agent",
)

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the SDKs: bash scripts/setup_agent_clients.sh"),
]


def adds(prompt):
    """Call the tool, then answer with its result."""
    return "The result is 3." if "<|tool|>" in prompt else CALL % ("add", '{"a": 1, "b": 2}')


def is_second_turn(prompt):
    return prompt.count("<|assistant|>") > 1


def writes_code(prompt):
    code = "final_answer(x)" if is_second_turn(prompt) else "x = add(1, 2)\nprint(x)"
    return f"Thought: I add.\n<code>\n{code}\n</code>"


def calls_then_ends(prompt):
    return CALL % (("final_answer", '{"answer": 3}') if is_second_turn(prompt) else ("add", '{"a": 1, "b": 2}'))


async def run_client(name, session, python=PYTHON, arguments=(), cwd=None, more=None):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "OPENAI_BASE_URL": session.urls.openai,
        "OPENAI_API_KEY": session.key,
        "ANTHROPIC_BASE_URL": session.urls.anthropic,
        "ANTHROPIC_AUTH_TOKEN": session.key,
        "NO_PROXY": "127.0.0.1",
        **(more or {}),
    }
    process = await asyncio.create_subprocess_exec(
        str(python), *(arguments or [str(CLIENTS / f"{name}.py")]), env=environment, cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 240)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, output.decode(errors="replace")


async def talk(name, rule, **served):
    async with serving(rule, **served) as place:
        code, output = await run_client(name, place.session)
        assert code == 0, output[-3000:]
        await place.gateway.close(place.session)
        return place.session, place.session.trajectories(1.0)


def run_long(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 300))


@pytest.mark.parametrize("name", SMALL)
def test_sdks_are_one_exact_conversation_with_the_log_probabilities_of_the_trainer(name):
    session, leaves = run_long(talk(name, adds))
    assert session.statistics()["exact_continuation"] == 1.0
    assert len(leaves) == 1
    assert_exact(session, leaves)
    dialogue = [part for answer in session.answers for part in (list(answer.added), list(answer.output))]
    tokenizer = ScriptedEngine(adds, serving_tokenizer()).tokenizer
    greedy = GenerationConfig(max_new_tokens=200, greedy=True)
    with memorised_engine([dialogue], tokenizer=tokenizer) as policy:
        session, leaves = run_long(talk(name, None, engine=policy.engine, gconfig=greedy))
        assert [answer.how for answer in session.answers] == ["root", "message"]
        (leaf,) = leaves
        trainer = TrainingEngine(policy.models[0], config=TrainEngineConfig(device="cpu"))
        batch = collate(leaves)
        computed = trainer.forward_logp(batch)
        worst = ((computed - batch.logp_behave) * batch.loss_mask).abs().max().item()
        assert worst < 1e-5
        assert sum(leaf.loss_mask) == sum(len(answer.output) for answer in session.answers)


def serving_tokenizer():
    from serving import renderer_of

    return renderer_of(templates.PLAIN)[1]


@pytest.mark.parametrize(
    ("name", "rule", "second"),
    [("smolagents_code", writes_code, "extension"), ("smolagents_tools", calls_then_ends, "root")],
)
def test_smolagents_is_exact(name, rule, second):
    """Its code agent writes on after a stop string, which continues; its tool agent turns calls into other text."""
    session, leaves = run_long(talk(name, rule))
    assert [answer.how for answer in session.answers] == ["root", second]
    assert_exact(session, leaves)
    assert session.trained_tokens == sum(len(answer.output) for answer in session.answers)
