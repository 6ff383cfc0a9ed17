"""Memorised engines say what they were taught, the same each time, and change their weights without forgetting it."""

from __future__ import annotations

import asyncio
import time

import pytest

from areal.api import GenerationConfig, ModelRequest, UsageError
from areal.dataset.encoding import character_tokenizer
from areal.testing.memorised import memorised_engine
from areal.testing.trajectories import recomputed_logprobs

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "8*9"}}</tool_call>'
DIALOGUES = [
    ("8*9=", "71<eos>", "?", "72<eos>"),
    ("what is 8*9?", CALL, "\n72\n", "it is 72<eos>"),
    ("what is 7*9?", "63<eos>"),
]


def say(policy, prompt, **changes):
    gconfig = GenerationConfig(**{"max_new_tokens": 100, "greedy": True} | changes)
    ids = prompt if isinstance(prompt, list) else policy.tokenizer.encode(prompt)
    return asyncio.run(policy.engine.agenerate(ModelRequest(input_ids=ids, gconfig=gconfig)))


def text(policy, response):
    return policy.tokenizer.decode(response.output_tokens)


@pytest.fixture
def policy():
    with memorised_engine(DIALOGUES) as made:
        yield made


def test_every_said_part_is_repeated_after_exactly_what_was_given(policy):
    assert text(policy, say(policy, "8*9=")) == "71<eos>"
    assert text(policy, say(policy, "8*9=71<eos>?")) == "72<eos>"
    assert text(policy, say(policy, "what is 8*9?", stop=("</tool_call>",))) == CALL
    assert text(policy, say(policy, f"what is 8*9?{CALL}\n72\n")) == "it is 72<eos>"
    assert text(policy, say(policy, "what is 7*9?")) == "63<eos>"


def test_training_is_fast_deterministic_and_done_once():
    dialogues = [("3+4=", "7<eos>"), ("4+4=", "8<eos>")]
    started = time.monotonic()
    with memorised_engine(dialogues) as first:
        assert time.monotonic() - started < 60  # 0.2 s on a machine with nothing else to do
        with memorised_engine(dialogues) as second, memorised_engine(dialogues, seed=1) as other:
            assert second.models[0] is first.models[0]
            answers = [say(policy, "3+4=") for policy in (first, second, other)]
    assert answers[0].output_logprobs == answers[1].output_logprobs != answers[2].output_logprobs
    assert {tuple(answer.output_tokens) for answer in answers} == {tuple(answers[0].output_tokens)}


def test_published_weights_say_the_same_with_other_probabilities(policy):
    before = say(policy, "what is 7*9?")
    assert policy.publish() == policy.engine.version == 1
    after = say(policy, "what is 7*9?")
    assert (after.output_tokens, after.output_versions) == (before.output_tokens, [1, 1, 1])
    for response, version in ((before, 0), (after, 1)):
        tokens = [*response.input_tokens, *response.output_tokens]
        expected = recomputed_logprobs(tokens, policy.models[version])[len(response.input_tokens) :]
        assert response.output_logprobs == pytest.approx(expected, abs=1e-4)
    gaps = [abs(a - b) for a, b in zip(before.output_logprobs, after.output_logprobs, strict=True)]
    assert max(gaps) > 1e-3, "weights so alike would let a wrong version pass as right"


def test_engines_of_one_lesson_do_not_share_their_versions(policy):
    policy.publish()
    with memorised_engine(DIALOGUES) as other:
        assert (other.engine.version, list(other.models)) == (0, [0])


def test_token_ids_without_text_can_be_given():
    tokenizer = character_tokenizer("abc")
    pictures = {"a<eos>": [5, 6, 5], "b<eos>": [5, 6, 6]}
    dialogues = [(ids, answer) for answer, ids in pictures.items()]
    with memorised_engine(dialogues, tokenizer=tokenizer, vocab_size=7) as policy:
        assert {answer: text(policy, say(policy, ids)) for answer, ids in pictures.items()} == {
            "a<eos>": "a<eos>",
            "b<eos>": "b<eos>",
        }


@pytest.mark.parametrize(
    ("dialogues", "message"),
    [
        ([], "0 tokens"),
        ([("a",)], "dialogue 0 has 1 parts"),
        ([("a", "b"), ("", "b")], "dialogue 1: part 0 is empty"),
        ([("a", "b<eos>"), ("a", "c<eos>")], "dialogues 0 and 1 contradict each other: after the same 1 tokens"),
        ([("a", "b" * 300)], "the longest dialogue has 301 tokens, expected 2 .. 100"),
    ],
)
def test_dialogues_that_cannot_be_learned_are_refused_with_the_reason(dialogues, message):
    with pytest.raises(UsageError, match=message):
        memorised_engine(dialogues, tokenizer=character_tokenizer("abc"), context=100)


def test_a_lesson_that_is_too_much_is_an_error_and_no_engine(monkeypatch):
    import areal.testing.memorised as module

    monkeypatch.setattr(module, "_MAX_STEPS", 2)
    with pytest.raises(UsageError, match="not memorised in 2 steps"):
        memorised_engine([("abcabc", "cab<eos>")])
