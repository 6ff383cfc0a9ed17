"""Conversations that continue nothing: where they part from what was answered, and the warning about their clients."""

from __future__ import annotations

import logging

import pytest
from serving import CALL, TOOLS, run, serving, user

from areal.gateway.continuation import SESSIONS


def call(**arguments):
    function = {"name": "add", "arguments": str(arguments).replace("'", '"')}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


RESULT = {"role": "tool", "tool_call_id": "1", "content": "3"}
EDITS = {
    "a word": (
        "the answer",
        {"role": "assistant", "content": "the Answer is"},
        "message 1 (assistant): its text has 13 characters for 10, and differs from character 4 on",
    ),
    "a turn": ("the answer", user("no"), "message 1 (assistant) is one of role user"),
    "a call": (CALL, call(a=1, b=3), "message 1 (assistant): its calls differ"),
    "no call": (CALL, {"role": "assistant", "content": " "}, "message 1 (assistant)"),
}


@pytest.mark.parametrize("name", EDITS)
def test_the_first_difference_of_an_edited_conversation_is_known_without_its_text(name):
    said, echoed, expected = EDITS[name]

    async def talk():
        async with serving(lambda _: said) as served:
            await served.say([user("go")], tools=TOOLS)
            after = [RESULT] if name == "a call" else [user("on")]
            await served.say([user("go"), echoed, *after], tools=TOOLS)
            assert served.session.placed["root/edited"] == 1
            assert str(served.session.differences["edited"]).startswith(expected)

    run(talk())


def test_what_continues_or_begins_has_no_difference():
    async def talk():
        async with serving(lambda _: "the answer") as served:
            messages = await served.say([user("go")], tools=TOOLS)
            await served.say([*messages, user("on")], tools=TOOLS)
            await served.say([user("a title, please")])
            assert served.session.differences == {}

    run(talk())


async def sessions(served, count, *, edits):
    """Hold `count` sessions of three turns, each of which writes earlier answers anew or does not."""
    for _ in range(count):
        session = served.session = served.gateway.open(served.engine, served.session._gconfig)
        messages = [user("the secret question")]
        for turn in range(3):
            messages = await served.say(messages)
            if edits:
                messages[-1]["content"] += " (edited)"
            messages.append(user(f"on {turn}"))
        await served.gateway.close(session)


def test_ten_sessions_that_continue_little_are_warned_of_once(caplog):
    async def talk():
        async with serving(lambda _: "the secret answer") as served:
            await sessions(served, SESSIONS - 1, edits=True)
            assert not caplog.records
            await sessions(served, SESSIONS, edits=True)

    with caplog.at_level(logging.WARNING):
        run(talk())
    (record,) = caplog.records
    text = record.getMessage()
    assert "only 0 %" in text
    assert "'edited' (20 times)" in text
    assert "message 1 (assistant): its text has 26 characters for 17, and differs from character 17 on" in text
    assert "secret" not in text


def test_sessions_that_continue_are_not_warned_of(caplog):
    async def talk():
        async with serving(lambda _: "the answer") as served:
            await sessions(served, SESSIONS, edits=False)
            # One client in ten may do what it likes.
            await sessions(served, 4, edits=True)

    with caplog.at_level(logging.WARNING):
        run(talk())
    assert not caplog.records
