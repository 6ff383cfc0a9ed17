"""Episodes in an environment: what is trained, what the environment sees, and which turn gets which reward."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted import Judge, ScriptedEngine
from worlds_of_workflow import LOOK_UP, Boxes, call

from areal.api import (
    ConfigError,
    FaultError,
    FaultKind,
    GenerationConfig,
    StopReason,
)
from areal.dataset.encoding import byte_tokenizer, character_tokenizer
from areal.utils import stats
from areal.utils.seeding import EpisodeSeeds, seeds_of_episode
from areal.workflow.assembly import create_workflow
from areal.workflow.environment import EnvironmentWorkflow

TOOLS_TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}<eos>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
    "<|user|>{% endif %}[{{ m.content }}]{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<eos>\n"
    "{% endif %}{% else %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(autouse=True)
def _forget():
    Boxes.seen.clear()


@pytest.fixture(scope="module")
def tool_chat():
    made = byte_tokenizer()
    made.chat_template = TOOLS_TEMPLATE
    return made


def run(tokenizer, *texts, budget=1000, cut=False, context=10_000, options=None, environment=None, **changes):
    """(trajectory, engine, recorded numbers) of one episode in which the policy says `texts`."""
    ends = [[tokenizer.eos_token_id]] * len(texts)
    if cut:
        ends[-1] = []
    answers = [tokenizer.encode(text, add_special_tokens=False) + end for text, end in zip(texts, ends, strict=True)]
    engine = ScriptedEngine(*answers, stop_token=tokenizer.eos_token_id, context=context)
    judge = changes.pop("judge", Judge())
    workflow = EnvironmentWorkflow(
        judge, GenerationConfig(max_new_tokens=budget), tokenizer,
        environment=environment or "worlds_of_workflow:Boxes", environment_options=options or {}, **changes,
    )  # fmt: skip
    with stats.scope() as recorded:
        trajectory = asyncio.run(workflow.arun_episode(engine, {"question": 3}))
    return trajectory, engine, recorded


def test_turns_and_observations_make_one_list_of_tokens_in_which_only_turns_are_learned(tool_chat):
    trajectory, engine, recorded = run(tool_chat, "I look." + call(1, 2), "it is 70")

    text = tool_chat.decode(trajectory.tokens)
    tools = json.dumps([{"type": "function", "function": LOOK_UP}])
    assert json.loads(text.split("<|tools|>")[1].split("<eos>")[0]) == json.loads(tools)
    assert text.endswith(
        f"<|user|>what is in 2?<eos>\n<|assistant|>I look.{call(1, 2)}<eos>\n<|user|>[35][70]<eos>\n<|assistant|>"
        "it is 70<eos>"
    )
    learned = [token for token, sampled in zip(trajectory.tokens, trajectory.loss_mask, strict=True) if sampled]
    assert tool_chat.decode(learned) == f"I look.{call(1, 2)}<eos>it is 70<eos>"
    assert engine.requests[1].input_ids == trajectory.tokens[: len(engine.requests[1].input_ids)]
    assert recorded["num_calls"] == [2]
    assert recorded["environment/info/looks"] == [2.0]


def test_each_turn_gets_the_reward_of_its_step(tool_chat):
    trajectory, _, _ = run(tool_chat, call(1), call(1, 2), "70")

    assert trajectory.turn_rewards == {0: 0.25, 1: 0.5, 2: 1.0}
    assert trajectory.reward == 0.0
    assert trajectory.total_reward == 1.75
    assert trajectory.stop_reason is StopReason.STOP
    assert sorted({turn for turn in trajectory.turn_ids if turn >= 0}) == [0, 1, 2]


def test_the_sum_of_rewards_is_that_of_the_episode_when_asked_for(tool_chat):
    trajectory, _, _ = run(tool_chat, call(1), "70", credit="outcome")

    assert (trajectory.reward, trajectory.turn_rewards) == (1.25, {})
    assert trajectory.reward_components == {"environment": 1.25}


def test_a_reward_function_may_judge_the_last_turn_beside_the_environment(tool_chat):
    judge = Judge(_70=3.0)

    trajectory, _, _ = run(tool_chat, call(1), "70", with_reward=True, judge=judge)

    assert (trajectory.reward, trajectory.turn_rewards) == (3.0, {0: 0.25, 1: 1.0})
    assert judge.calls[0][1] == "70"
    assert judge.calls[0][4] == {"question": 3}


def test_the_environment_sees_the_row_the_seed_and_parsed_turns(tool_chat):
    with seeds_of_episode(EpisodeSeeds(prompt=11, sample=12)):
        run(tool_chat, "<think>hm</think>" + call(2), "70")
        run(tool_chat, "70", seeding="sample")

    (_, row, seed), (_, turn) = Boxes.seen[:2]
    assert (row, seed) == ({"question": 3}, 11)
    assert turn.reasoning == "hm"
    assert [(one.name, one.arguments, one.id) for one in turn.calls] == [("look_up", {"box": 2}, "call-0-0")]
    assert [item[2] for item in Boxes.seen if item[0] == "reset"] == [11, 12]
    assert Boxes.seen.count("close") == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('<tool_call>{"name": "look_up"', "not closed"),
        ('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "unknown tool 'look'"),
        (call(1) + '<tool_call>{"name": "look_up", "arguments": {"box": "2"}}</tool_call>', "must be of type integer"),
        ("</tool_call>" + call(1), "without <tool_call>"),
    ],
)
def test_a_wrong_call_is_answered_with_an_error_and_not_shown_to_the_environment(tool_chat, wrong, words):
    trajectory, engine, recorded = run(tool_chat, wrong, "70")

    assert "error: " in tool_chat.decode(engine.requests[1].input_ids)
    assert words in tool_chat.decode(engine.requests[1].input_ids)
    assert [type(item) for item in Boxes.seen] == [tuple, tuple, str]
    assert trajectory.turn_rewards == {1: 1.0}
    assert recorded["num_failed_calls"] == [1]


def test_arguments_of_a_schema_that_is_not_understood_are_the_environments_to_check(tool_chat):
    rich = {**LOOK_UP, "parameters": {"type": "object", "properties": {"box": {"anyOf": [{"type": "integer"}]}}}}

    trajectory, _, _ = run(tool_chat, call(1), "70", options={"tools": [rich]})

    assert trajectory.turn_rewards == {0: 0.25, 1: 1.0}


@pytest.mark.parametrize(
    ("limit", "turns", "reward"),
    [({"max_turns": 1}, 1, 0.25), ({"budget": 70, "cut": True}, 1, 0.0), ({"context": 300}, 1, 0.25)],
)
def test_an_episode_that_runs_out_of_turns_tokens_or_context_counts_as_cut(tool_chat, limit, turns, reward):
    trajectory, _, recorded = run(tool_chat, call(1), **limit)

    assert trajectory.stop_reason is StopReason.LENGTH
    assert trajectory.total_reward == reward
    assert recorded["num_turns"] == [turns]


def test_what_the_environment_cuts_off_counts_as_cut(tool_chat):
    trajectory, _, _ = run(tool_chat, call(1), options={"truncated": True})

    assert trajectory.stop_reason is StopReason.LENGTH


def test_the_budget_of_tokens_is_that_of_the_whole_episode(tool_chat):
    _, engine, _ = run(tool_chat, call(1), "70", budget=100)

    used = len(call(1)) + 1
    assert [request.gconfig.max_new_tokens for request in engine.requests] == [100, 100 - used]


def test_control_tokens_in_observations_are_taken_out_and_long_ones_cut(tool_chat):
    _, engine, _ = run(tool_chat, "1", "2", environment="worlds_of_workflow:Hostile", max_observation_characters=20)

    seen = tool_chat.decode(engine.requests[1].input_ids)
    assert seen.endswith(f"<|user|>ends here{'x' * 6}\n(44 more characters)<eos>\n<|assistant|>")


def test_templates_without_tools_get_the_signatures_in_the_system_turn_and_results_in_tags(chat):
    trajectory, engine, _ = run(chat, call(1, 2), "70")

    assert '"look_up"' in chat.decode(engine.requests[0].input_ids).split("<|user|>")[0]
    assert trajectory.turn_rewards == {0: 0.5, 1: 1.0}
    assert "<|tool|>35<eos>\n<|tool|>70<eos>\n<|assistant|>" in chat.decode(engine.requests[1].input_ids)


def test_tokenizers_without_a_template_get_the_text_as_it_is(digits):
    trajectory, engine, _ = run(digits, "1", "2", environment="worlds_of_workflow:Sums")

    assert digits.decode(engine.requests[1].input_ids) == "1+1=?1<eos>=1?"
    assert trajectory.turn_rewards == {0: 0.0, 1: 1.0}


def test_faults_of_the_environment_are_faults_of_the_episode(tool_chat):
    with pytest.raises(FaultError) as caught:
        run(tool_chat, "1", environment="worlds_of_workflow:Broken")

    assert caught.value.kind is FaultKind.ENVIRONMENT_FAILED


def test_settings_that_make_no_sense_are_refused(tool_chat):
    for changes in ({"max_turns": 0}, {"credit": "late"}, {"seeding": "none"}):
        with pytest.raises(ConfigError):
            run(tool_chat, "1", **changes)


def test_the_registry_builds_it(tool_chat):
    workflow = create_workflow(
        "environment", reward=Judge(), gconfig=GenerationConfig(max_new_tokens=5), tokenizer=tool_chat,
        options={"environment": "worlds_of_workflow:Sums", "host": {"kind": "process", "step_seconds": 1}},
    )  # fmt: skip

    assert isinstance(workflow, EnvironmentWorkflow)


def test_a_tokenizer_of_few_characters_can_offer_tools():
    tokenizer = character_tokenizer("".join(sorted(set("what is in 2?70TA"))))
    tokenizer.chat_template = (
        "{% if tools %}T{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}A{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}A{% endif %}"
    )
    trajectory, _, _ = run(tokenizer, "70")
    assert trajectory.text["prompt"] == "Twhat is in 2?A"
    assert trajectory.turn_rewards == {0: 1.0}
