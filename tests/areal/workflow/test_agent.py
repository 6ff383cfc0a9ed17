"""Agents run as they are: functions and commands, scored, ended, and turned into trajectories."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import agents_for_tests
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
ROW = {"messages": [{"role": "user", "content": "six times seven"}], "answer": "42"}
HERE = "agents_for_tests"
SCRIPT = str(Path(__file__).with_name("agents_for_tests.py"))
SHELL = {"pass_environment": ["PYTHONPATH"]}


@pytest.fixture(scope="module")
def tokenizer():
    return ambiguous_tokenizer(TEMPLATE)


def build(tokenizer, *, judge=None, gconfig=None, **options):
    return create_workflow(
        "agent",
        reward=judge or Judge(),
        gconfig=gconfig or GenerationConfig(max_new_tokens=50),
        tokenizer=tokenizer,
        options=options,
    )


def episode(workflow, tokenizer, *, said="the answer is 42", row=ROW, **engine):
    async def run():
        return await asyncio.wait_for(
            workflow.arun_episode(ScriptedEngine(lambda _: said, tokenizer, **engine), row), 40
        )

    return asyncio.run(run())


def faulty(workflow, tokenizer, **options):
    with pytest.raises(FaultError) as caught:
        episode(workflow, tokenizer, **options)
    return caught.value


def test_an_async_function_is_scored_by_the_reward_of_the_run(tokenizer):
    judge = Judge(_the_answer=1.0)
    workflow = build(tokenizer, judge=judge, agent=f"{HERE}:asks_twice")
    with stats.scope() as recorded:
        (leaf,) = episode(workflow, tokenizer, said="the_answer")
    assert leaf.reward == 1.0
    assert judge.calls[0][:2] == ("six times seven", "the_answer")
    assert judge.calls[0][4] == {"answer": "42"}
    assert sorted(set(leaf.turn_ids)) == [-1, 0, 1]
    assert recorded["agent/exact_continuation"] == [1.0]
    assert recorded["agent/answers"] == [2]
    assert recorded["agent/tokens_wasted"] == [0]


def test_the_number_that_an_agent_returns_is_its_reward(tokenizer):
    (leaf,) = episode(build(tokenizer, agent=f"{HERE}:rewards_itself"), tokenizer)
    assert leaf.reward == 0.75


def test_a_blocking_function_runs_in_a_process_of_its_own(tokenizer):
    judge = Judge(**{"_the answer is 42 for 42": 1.0})
    (leaf,) = episode(build(tokenizer, judge=judge, agent=f"{HERE}:blocks"), tokenizer)
    assert leaf.reward == 1.0


def test_a_command_gets_its_model_a_folder_and_little_else(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("SECRET_OF_THE_TRAINER", "x")
    (tmp_path / "given.txt").write_text("x")
    judge = Judge(**{"_THE ANSWER IS 42": 1.0})
    kept = tmp_path / "kept"
    process = {**SHELL, "folder": str(tmp_path), "answer_file": "answer.txt"}
    # What the shell is given as text of a row stays one argument.
    command = ["sh", "-c", f'"$0" "$@" > {kept}; ls >> {kept}', "{python}", SCRIPT, "{prompt}"]
    workflow = build(tokenizer, judge=judge, command=command, process=process)
    row = {**ROW, "messages": [{"role": "user", "content": "$(touch evil); {row} `x` 'quoted'"}]}
    (leaf,) = episode(workflow, tokenizer, row=row)
    assert leaf.reward == 1.0
    assert "$(touch evil); {row} `x` 'quoted'" in leaf.text["prompt"]
    folder, home, *variables = kept.read_text().split()
    assert "given.txt" in kept.read_text()
    assert "evil\n" not in kept.read_text()
    assert not os.path.exists(folder)
    assert not os.path.exists(home)
    assert "SECRET_OF_THE_TRAINER" not in " ".join(variables)


def test_a_folder_is_prepared_and_scored(tokenizer):
    workflow = build(
        tokenizer,
        agent=f"{HERE}:asks_twice",
        score=f"{HERE}:score_by_folder",
        process={"prepare": f"{HERE}:write_task"},
    )
    (leaf,) = episode(workflow, tokenizer)
    assert leaf.reward == 1.0


FAULTS = {
    "never_calls": (FaultKind.AGENT_FAILED, "never called the model"),
    "raises": (FaultKind.AGENT_FAILED, "RuntimeError: the agent is broken"),
    "hangs": (FaultKind.AGENT_TIMEOUT, "did not end within 0.5 seconds"),
}


@pytest.mark.fault(
    row=50,
    injected="an agent that returns without a request, one that raises after its first, one that hangs",
    seen="agent_failed, which asks about its base URL; agent_failed with what was raised; agent_timeout; none is "
    "retried",
)
@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_with_an_agent_is_a_fault_and_no_reward(tokenizer, name):
    process = {"seconds": 0.5 if name == "hangs" else 60.0}
    fault = faulty(build(tokenizer, agent=f"{HERE}:{name}", process=process), tokenizer)
    kind, message = FAULTS[name]
    assert fault.kind is kind
    assert message in fault.message
    assert not fault.kind.retryable


def test_a_slow_agent_can_be_graded_on_what_it_did(tokenizer):
    judge = Judge(**{"_the answer is 42": 0.5})
    process = {"seconds": 3.0, "grade_timeouts": True}
    (leaf,) = episode(build(tokenizer, judge=judge, agent=f"{HERE}:hangs", process=process), tokenizer)
    assert leaf.reward == 0.5


def test_an_agent_that_failed_because_of_the_engine_is_retried(tokenizer):
    fault = faulty(
        build(tokenizer, agent=f"{HERE}:asks_twice"),
        tokenizer,
        fault=FaultError(FaultKind.GENERATION_FAILED, "server gone"),
    )
    assert fault.kind is FaultKind.GENERATION_FAILED


LATER = {"process": {"allow_agent_reward": True}, "gateway": {"reward_deadline": 60.0}}


def test_a_reward_may_come_after_the_agent_has_ended(tokenizer):
    judge = Judge()
    (leaf,) = episode(build(tokenizer, judge=judge, agent=f"{HERE}:is_scored_later", **LATER), tokenizer)
    assert leaf.reward == 0.25
    assert not judge.calls


@pytest.mark.fault(
    row=54,
    injected="an agent ends without a reward, and none comes until reward_deadline",
    seen="reward_missing, which is not retried: the agent does not run again",
)
def test_a_reward_that_does_not_come_is_a_fault_and_never_zero(tokenizer):
    options = {**LATER, "gateway": {"reward_deadline": 0.2}}
    fault = faulty(build(tokenizer, agent=f"{HERE}:asks_twice", **options), tokenizer)
    assert fault.kind is FaultKind.REWARD_MISSING
    assert not fault.kind.retryable
    assert "within 0.2 s" in fault.message


def test_a_full_context_ends_the_episode_and_is_scored(tokenizer):
    (leaf,) = episode(build(tokenizer, agent=f"{HERE}:fills_the_context"), tokenizer, context_length=400)
    assert leaf.truncated
    assert len(leaf.tokens) <= 400


@pytest.mark.fault(
    row=51,
    injected="what an agent started goes on after it and asks once more with its key, while another agent is at work",
    seen="refused with `session_closed`; nothing is sampled, and neither episode has a token of it",
)
def test_a_straggler_of_an_agent_gets_nothing_and_disturbs_nobody(tokenizer):
    async def both():
        engine = ScriptedEngine(lambda _: "the answer is 42", tokenizer)
        workflow = build(tokenizer, agent=f"{HERE}:leaves_a_straggler")
        over, at_work = asyncio.Event(), asyncio.Event()
        shared = {**ROW, "session_is_over": over, "other_is_at_work": at_work}
        rows = ({**shared, "straggler": True}, {**shared, "straggler": False})
        first, second = (asyncio.create_task(workflow.arun_episode(engine, row)) for row in rows)
        async with asyncio.timeout(60):
            found = [await first]
            over.set()
            return engine, [*found, await second]

    agents_for_tests.STRAGGLERS.clear()
    engine, ((first,), (second,)) = asyncio.run(both())
    ((status, body),) = agents_for_tests.STRAGGLERS
    assert (status, body["error"]["code"]) == (400, "session_closed")
    assert len(engine.requests) == 3
    assert [max(leaf.turn_ids) for leaf in (first, second)] == [0, 1]


# ------------------------------------------------------------------------------------------------ hostile commands


HOSTILE = {
    "exits at once": ("exit 0", "never called the model"),
    "exits with an error": ("echo it broke; exit 3", "exit code 3; it said: it broke"),
    "is killed": ("kill -9 $$", "exit code 137"),
    "fills its folder": ("while true; do head -c 1000000 /dev/zero >> big; done", "wrote more than 5000000 bytes"),
}


@pytest.mark.sample(2)
@pytest.mark.fault(
    row=49,
    injected="a command that kills itself with SIGKILL, exits with an error, exits at once, or writes without end",
    seen="agent_failed with exit code and last words; nothing is scored",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_commands_that_misbehave(tokenizer, name):
    script, message = HOSTILE[name]
    process = {"seconds": 20, "max_folder_bytes": 5_000_000}
    fault = faulty(build(tokenizer, command=["sh", "-c", script], process=process), tokenizer)
    assert fault.kind is FaultKind.AGENT_FAILED
    assert message in fault.message


@pytest.mark.fault(
    row=49,
    injected="an agent that ignores SIGTERM and has a child in a session of its own is too slow",
    seen="agent_timeout; both processes are killed",
)
@pytest.mark.exhaustive
def test_an_agent_that_ignores_its_end_and_forks_twice_leaves_nothing(tokenizer, tmp_path):
    pids = tmp_path / "pids"
    stay = f"echo $$ >> {pids}; while true; do sleep 1; done"
    script = f"trap '' TERM; (setsid sh -c 'trap \"\" TERM; {stay}' &) ; {stay}"
    workflow = build(tokenizer, command=["sh", "-c", script], process={"seconds": 4.0})
    started = time.monotonic()
    assert faulty(workflow, tokenizer).kind is FaultKind.AGENT_TIMEOUT
    assert time.monotonic() - started < 20
    found = pids.read_text().split()
    assert len(found) == 2
    assert [pid for pid in found if alive(int(pid))] == []


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# ------------------------------------------------------------------------------------------------- configuration


WRONG = {
    "nothing to run": ({}, "exactly one of them"),
    "both": ({"agent": f"{HERE}:hangs", "command": ["true"]}, "exactly one of them"),
    "unknown program": ({"command": ["no-such-program-here"]}, "not installed"),
    "unknown folder": ({"command": ["true"], "process": {"folder": "/no/such"}}, "an existing folder"),
    "unknown field": ({"command": ["true"], "process": {"second": 3}}, r"process\.second"),
    "a wrong limit": (
        {"command": ["true"], "gateway": {"limits": {"max_roots": "many"}}},
        r"gateway\.limits\.max_roots",
    ),
    "a remote host": ({"command": ["true"], "gateway": {"host": "0.0.0.0"}}, "other machines may reach"),
    "rewards that nobody may give": (
        {"command": ["true"], "gateway": {"reward_deadline": 5}},
        "which nobody may give",
    ),
    "rewards from two sides": (
        {"command": ["true"], "score": f"{HERE}:score_by_folder", **LATER},
        "which score gives instead",
    ),
    "an answer elsewhere": ({"command": ["true"], "process": {"answer_file": "../x"}}, "inside of the working folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused_with_what_to_write(tokenizer, name):
    options, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        build(tokenizer, **options)


def test_a_tokenizer_without_a_chat_template_is_refused(digits):
    with pytest.raises(ConfigError, match="no chat template"):
        build(digits, command=["true"])


TRAINER = """
import asyncio, sys
sys.path.append({here!r})
import test_agent
tokenizer = test_agent.ambiguous_tokenizer(test_agent.TEMPLATE)
stay = "echo $$ >> {pids}; while true; do sleep 1; done"
script = f"(setsid sh -c '{{stay}}' &) ; {{stay}}"
test_agent.episode(test_agent.build(tokenizer, command=["sh", "-c", script]), tokenizer)
"""


@pytest.mark.fault(
    row=47,
    injected="SIGKILL of a process that runs an agent, which has started another one in a session of its own",
    seen="both are gone within 10 s",
)
@pytest.mark.exhaustive
def test_no_agent_survives_a_trainer_that_is_killed(tmp_path):
    pids = tmp_path / "pids"
    program = TRAINER.format(here=str(Path(__file__).parent), pids=pids)
    trainer = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
    finally:
        trainer.kill()
        trainer.wait()
    found = pids.read_text().split()
    assert until(lambda: not any(alive(int(pid)) for pid in found), 10)


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
