"""Multi-turn: tokens of earlier turns never change, feedback is masked, later successes are discounted."""

from __future__ import annotations

import asyncio

import pytest
from scripted import Judge, ScriptedEngine

from areal.api import NO_VERSION, ConfigError, FaultError, FaultKind, GenerationConfig, StopReason
from areal.testing.episodes import run_episodes
from areal.workflow.multi_turn import MultiTurnWorkflow

GCONFIG = GenerationConfig(max_new_tokens=8)
ROW = {"messages": "8*9=", "answer": "72"}
CHAT_ROW = {"messages": [{"role": "user", "content": "8*9?"}], "answer": "72"}


def run(tokenizer, engine, row=ROW, judge=None, **options):
    workflow = MultiTurnWorkflow(judge or Judge(_72=1.0), GCONFIG, tokenizer, **options)
    (trajectory,) = run_episodes(workflow, engine, [row])
    return trajectory


def answers(tokenizer, *texts):
    return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]


def test_a_later_success_is_discounted_and_ends_the_episode(digits):
    engine = ScriptedEngine(*answers(digits, "71", "70", "72", "73"), stop_token=1)
    trajectory = run(digits, engine, max_turns=4, turn_discount=0.5, feedback="?")
    assert trajectory.tokens == [
        *digits.encode("8*9=71"), 1, *digits.encode("?70"), 1, *digits.encode("?72"), 1,
    ]  # fmt: skip
    assert trajectory.loss_mask == [0] * 4 + [1, 1, 1, 0] + [1, 1, 1, 0] + [1, 1, 1]
    assert trajectory.turn_ids == [NO_VERSION] * 4 + [0, 0, 0, NO_VERSION, 1, 1, 1, NO_VERSION, 2, 2, 2]
    assert trajectory.versions == [NO_VERSION] * 4 + [4, 4, 5, NO_VERSION] * 2 + [4, 4, 5]
    assert trajectory.reward == 0.25
    assert (trajectory.reward_components, trajectory.stats) == ({"outcome": 1.0}, {"num_turns": 3.0})
    assert trajectory.text["completion"] == "71<eos>?70<eos>?72<eos>"


def test_a_first_success_is_worth_everything(digits):
    trajectory = run(digits, ScriptedEngine(*answers(digits, "72"), stop_token=1), turn_discount=0.5, feedback="?")
    assert (trajectory.reward, trajectory.stats["num_turns"]) == (1.0, 1.0)


def test_failure_in_all_turns_keeps_the_last_score(digits):
    engine = ScriptedEngine(*answers(digits, "1", "2"), stop_token=1)
    trajectory = run(digits, engine, max_turns=2, turn_discount=0.5, feedback="?", judge=Judge(_2=0.5))
    assert (trajectory.reward, trajectory.stop_reason) == (0.25, StopReason.STOP)


def test_each_turn_is_judged_alone_against_the_original_prompt(digits):
    judge = Judge(_72=1.0)
    run(digits, ScriptedEngine(*answers(digits, "71", "72"), stop_token=1), judge=judge, feedback="?")
    assert [call[:2] for call in judge.calls] == [("8*9=", "71"), ("8*9=", "72")]
    assert all(call[2] == digits.encode("8*9=") and call[4] == {"answer": "72"} for call in judge.calls)


def test_the_second_request_is_the_first_episode_plus_feedback_and_nothing_else(chat):
    # "7" + "1" as two tokens that a fresh tokenisation might merge elsewhere: requests must repeat what was sampled.
    engine = ScriptedEngine(*answers(chat, "71", "72"), stop_token=chat.eos_token_id)
    trajectory = run(chat, engine, row=CHAT_ROW, feedback="Wrong.")
    first, second = (request.input_ids for request in engine.requests)
    sampled = answers(chat, "71")[0]
    assert second[: len(first) + len(sampled)] == first + sampled
    assert chat.decode(second) == "<|user|>8*9?<eos>\n<|assistant|>71<eos>\n<|user|>Wrong.<eos>\n<|assistant|>"
    assert trajectory.tokens == second + answers(chat, "72")[0]


def test_the_rendered_conversation_equals_the_template(chat):
    engine = ScriptedEngine(*answers(chat, "71", "72"), stop_token=chat.eos_token_id)
    run(chat, engine, row=CHAT_ROW, feedback="Wrong.")
    turns = [*CHAT_ROW["messages"], {"role": "assistant", "content": "71"}, {"role": "user", "content": "Wrong."}]
    rendered = chat.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert engine.requests[1].input_ids == rendered


def test_an_answer_ended_by_another_stop_token_still_gets_its_end_of_turn(chat):
    engine = ScriptedEngine(chat.encode("71."), answers(chat, "72")[0], stop_token=ord("."))
    workflow_row = dict(CHAT_ROW)
    engine.changes = {"stop_reason": StopReason.STOP}
    run(chat, engine, row=workflow_row, feedback="Wrong.")
    assert chat.decode(engine.requests[1].input_ids).endswith("71.<eos>\n<|user|>Wrong.<eos>\n<|assistant|>")


def test_a_cut_off_answer_ends_the_episode_as_truncated(digits):
    engine = ScriptedEngine(answers(digits, "71")[0], digits.encode("7"), stop_token=1)
    trajectory = run(digits, engine, max_turns=5, feedback="?")
    assert trajectory.truncated
    assert trajectory.stats["num_turns"] == 2.0


def test_a_full_context_ends_the_episode_before_the_feedback(digits):
    engine = ScriptedEngine(*answers(digits, "71", "70"), stop_token=1, context=8)
    trajectory = run(digits, engine, max_turns=5, feedback="?")
    assert trajectory.tokens == [*digits.encode("8*9=71"), 1]
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.LENGTH, 0.0)


def test_a_prompt_that_fills_the_context_is_a_data_fault(digits):
    with pytest.raises(FaultError) as caught:
        run(digits, ScriptedEngine(stop_token=1, context=4), feedback="?")
    assert caught.value.kind is FaultKind.DATA_INVALID


def test_concurrent_episodes_of_one_instance_do_not_mix(digits):
    workflow = MultiTurnWorkflow(Judge(_72=1.0), GCONFIG, digits, feedback="?", turn_discount=0.5)
    scripts = (["72"], ["71", "72"], ["1", "2", "3"])

    async def run_all():
        engines = [ScriptedEngine(*answers(digits, *texts), stop_token=1) for texts in scripts]
        return await asyncio.gather(*(workflow.arun_episode(engine, ROW) for engine in engines))

    assert [trajectory.reward for trajectory in asyncio.run(run_all())] == [1.0, 0.5, 0.0]


def test_templates_that_rewrite_history_are_refused_unless_asked_for(forgetful):
    with pytest.raises(ConfigError, match=r"not prefix-preserving.*strict_template=false"):
        MultiTurnWorkflow(Judge(), GCONFIG, forgetful)
    engine = ScriptedEngine(*answers(forgetful, "71", "72"), stop_token=forgetful.eos_token_id)
    run(forgetful, engine, row=CHAT_ROW, feedback="Wrong.", strict_template=False)
    assert forgetful.decode(engine.requests[1].input_ids) == (
        "<|user|>8*9?<eos>\n<|assistant|><think></think>71<eos>\n<|user|>Wrong.<eos>\n<|assistant|><think></think>"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "max_turns is 0"),
        ({"turn_discount": 1.5}, "turn_discount is 1.5"),
        ({"feedback": ""}, "feedback is empty"),
        ({}, "feedback cannot be encoded"),
    ],
)
def test_options_that_cannot_work_are_refused_at_construction(digits, options, message):
    with pytest.raises(ConfigError, match=message):
        MultiTurnWorkflow(Judge(), GCONFIG, digits, **options)
