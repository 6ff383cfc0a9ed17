"""RLVR: what ends up in the trajectory, what the reward sees, and which failure is whose."""

from __future__ import annotations

import asyncio
import math

import pytest
from scripted import Judge, ScriptedEngine

from areal.api import NO_VERSION, FaultError, FaultKind, GenerationConfig, StopReason
from areal.workflow.rlvr import RLVRWorkflow

ROW = {"messages": "8*9=", "answer": "72", "problem": 3}


def run(tokenizer, engine, row=ROW, judge=None, gconfig=None):
    workflow = RLVRWorkflow(judge or Judge(_72=1.0), gconfig or GenerationConfig(max_new_tokens=8), tokenizer)
    return asyncio.run(workflow.arun_episode(engine, row))


def fault_of(*args, **kwargs):
    with pytest.raises(FaultError) as caught:
        run(*args, **kwargs)
    return caught.value


def test_prompt_is_masked_and_answer_carries_what_it_was_sampled_with(digits):
    answer = [*digits.encode("72"), digits.eos_token_id]
    trajectory = run(digits, ScriptedEngine(answer, stop_token=digits.eos_token_id))
    assert trajectory.tokens == digits.encode("8*9=") + answer
    assert trajectory.loss_mask == [0, 0, 0, 0, 1, 1, 1]
    assert trajectory.logprobs == [0.0, 0.0, 0.0, 0.0, -0.5, -0.625, -0.75]
    assert trajectory.versions == [NO_VERSION] * 4 + [4, 4, 5]
    assert trajectory.turn_ids == [NO_VERSION] * 4 + [0, 0, 0]
    assert (trajectory.reward, trajectory.stop_reason) == (1.0, StopReason.STOP)
    assert trajectory.text == {"prompt": "8*9=", "completion": "72"}


def test_the_reward_gets_clean_text_all_ids_and_the_other_columns(digits):
    judge = Judge(_72=1.0)
    answer = [*digits.encode("72"), digits.eos_token_id]
    run(digits, ScriptedEngine(answer, stop_token=digits.eos_token_id), judge=judge)
    assert judge.calls == [("8*9=", "72", digits.encode("8*9="), answer, {"answer": "72", "problem": 3})]


def test_special_tokens_inside_an_answer_stay_visible(digits):
    seven, two = digits.encode("72")
    hidden = [seven, digits.pad_token_id, two, digits.eos_token_id]
    trajectory = run(digits, ScriptedEngine(hidden, stop_token=digits.eos_token_id))
    assert trajectory.text["completion"] == "7<pad>2"
    assert trajectory.reward == 0.0


def test_a_truncated_answer_is_marked_and_keeps_its_last_token(digits):
    trajectory = run(digits, ScriptedEngine(digits.encode("72"), stop_token=digits.eos_token_id))
    assert trajectory.truncated
    assert trajectory.text["completion"] == "72"


def test_configured_stop_tokens_are_not_part_of_the_text(digits):
    (mark,) = digits.encode("?")
    gconfig = GenerationConfig(max_new_tokens=8, stop_token_ids=(mark,))
    trajectory = run(digits, ScriptedEngine(digits.encode("72?"), stop_token=mark), gconfig=gconfig)
    assert (trajectory.text["completion"], trajectory.reward) == ("72", 1.0)
    assert trajectory.tokens[-1] == mark


def test_chats_are_rendered_with_the_generation_prompt(chat):
    engine = ScriptedEngine(chat.encode("72<eos>"), stop_token=chat.eos_token_id)
    trajectory = run(chat, engine, row={"messages": [{"role": "user", "content": "8*9?"}], "answer": "72"})
    assert trajectory.text == {"prompt": "<|user|>8*9?<eos>\n<|assistant|>", "completion": "72"}


def test_thinking_reaches_the_template(forgetful):
    row = {"messages": [{"role": "user", "content": "8*9?"}]}
    for thinking, ending in ((True, "<|assistant|>"), (False, "<think></think>")):
        workflow = RLVRWorkflow(Judge(), GenerationConfig(), forgetful, enable_thinking=thinking)
        engine = ScriptedEngine(forgetful.encode("1<eos>"), stop_token=forgetful.eos_token_id)
        assert asyncio.run(workflow.arun_episode(engine, row)).text["prompt"].endswith(ending)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": ""}, "empty prompt"),
        ({"messages": []}, "messages is empty"),
        ({"prompt_text": "8*9="}, "no column 'messages'; found prompt_text"),
        ({"messages": [{"role": "user", "content": "8"}]}, "no chat template"),
        ({"messages": "eight"}, "cannot encode"),
        ({"messages": "8*9=", "prompt": "x"}, "columns prompt are parameters of every reward"),
    ],
)
def test_unusable_rows_are_data_faults_and_never_reach_the_engine(digits, row, message):
    engine = ScriptedEngine(stop_token=digits.eos_token_id)
    fault = fault_of(digits, engine, row=row)
    assert fault.kind is FaultKind.DATA_INVALID
    assert message in fault.message
    assert not engine.requests


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_logprobs": [-0.1, math.nan, -0.1]}, "log-probability 1 is nan"),
        ({"output_logprobs": [-0.1, -math.inf, -0.1]}, "log-probability 1 is -inf"),
        ({"output_logprobs": [0.5, -0.1, -0.1]}, "log-probability 0 is 0.5"),
        ({"output_logprobs": [None, -0.1, -0.1]}, "log-probability 0 is None"),
        ({"output_versions": [4, -1, 4]}, "version of token 1 is -1"),
        ({"input_tokens": [1, 2, 3]}, "answered another prompt"),
        ({"stop_reason": StopReason.ABORT}, "aborted"),
        ({"output_tokens": [], "output_logprobs": [], "output_versions": []}, "no tokens"),
    ],
)
def test_responses_that_cannot_be_trained_on_are_generation_faults(digits, changes, message):
    judge = Judge()
    engine = ScriptedEngine([*digits.encode("72"), 1], stop_token=1, **changes)
    fault = fault_of(digits, engine, judge=judge)
    assert fault.kind is FaultKind.GENERATION_FAILED
    assert message in fault.message
    assert not judge.calls


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", [1.0]])
def test_a_score_that_is_no_finite_number_is_a_reward_fault(digits, value):
    engine = ScriptedEngine([*digits.encode("72"), 1], stop_token=1)
    assert fault_of(digits, engine, judge=Judge(_72=value)).kind is FaultKind.REWARD_INVALID


def test_boolean_scores_count_as_numbers(digits):
    engine = ScriptedEngine([*digits.encode("72"), 1], stop_token=1)
    assert run(digits, engine, judge=Judge(_72=True)).reward == 1.0
