"""What clients of each dialect see: order of events, stop reasons, usage, and errors in their own form."""

from __future__ import annotations

import json

import pytest
from serving import CALL, TOOLS, run, serving, user

from areal.api import FaultError, FaultKind, GenerationConfig

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
RESPONSE_TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
MESSAGE_TOOLS = [{"name": "add", "input_schema": {"type": "object"}}]


def bodies(text="go", **fields):
    return {
        "chat": {"model": "m", "messages": [user(text)], **fields},
        "responses": {"model": "m", "input": text, **fields},
        "messages": {"model": "m", "max_tokens": 500, "messages": [user(text)], **fields},
    }


def parsed(stream):
    """Return the events of a stream as (name, data)."""
    found = []
    for block in stream.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            data = lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])
            found.append((lines.get("event", ""), data))
    return found


def said(prompt):
    return f"<think>\nhm\n</think>\n\nI add. {CALL}"


def test_a_chat_stream_is_role_then_pieces_then_finish_then_usage():
    async def talk():
        async with serving(said) as served:
            options = {"stream": True, "stream_options": {"include_usage": True}, "tools": TOOLS}
            _, stream = await served.post(PATHS["chat"], bodies(**options)["chat"])
            *chunks, usage, (_, done) = parsed(stream)
            assert done == "[DONE]"
            assert usage[1]["choices"] == []
            assert usage[1]["usage"]["completion_tokens"] == len(served.session.answers[0].output)
            deltas = [chunk["choices"][0]["delta"] for _, chunk in chunks]
            assert deltas[0] == {"role": "assistant", "content": ""}
            calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
            assert calls[0]["function"] == {"name": "add", "arguments": ""}
            assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"a": 1, "b": 2}
            assert "".join(delta.get("content", "") for delta in deltas) == "I add."
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
            assert [chunk["choices"][0]["finish_reason"] for _, chunk in chunks][-2:] == [None, "tool_calls"]

    run(talk())


def test_a_responses_stream_ends_with_the_items_that_went_before():
    async def talk():
        async with serving(said) as served:
            body = bodies(stream=True, tools=RESPONSE_TOOLS)["responses"]
            _, stream = await served.post(PATHS["responses"], body)
            events = parsed(stream)
            assert all(name == data["type"] for name, data in events)
            assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
            assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
            assert events[-1][0] == "response.completed"
            done = [data["item"] for name, data in events if name == "response.output_item.done"]
            assert done == events[-1][1]["response"]["output"]
            assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
            added = [data["item"]["id"] for name, data in events if name == "response.output_item.added"]
            assert added == [item["id"] for item in done]

    run(talk())


def test_a_messages_stream_has_its_blocks_in_order():
    async def talk():
        async with serving(said) as served:
            body = bodies(stream=True, tools=MESSAGE_TOOLS)["messages"]
            _, stream = await served.post(f"{PATHS['messages']}?beta=true", body)
            events = parsed(stream)
            assert [events[0][0], events[-2][0], events[-1][0]] == ["message_start", "message_delta", "message_stop"]
            assert events[0][1]["message"]["stop_reason"] is None
            started = [data["content_block"] for name, data in events if name == "content_block_start"]
            assert [block["type"] for block in started] == ["thinking", "text", "tool_use"]
            assert started[2]["input"] == {}
            deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
            assert [delta["type"] for delta in deltas][:2] == ["thinking_delta", "signature_delta"]
            arguments = "".join(delta.get("partial_json", "") for delta in deltas)
            assert json.loads(arguments) == {"a": 1, "b": 2}
            assert events[-2][1]["delta"]["stop_reason"] == "tool_use"

    run(talk())


def test_signs_of_life_go_out_while_the_engine_works():
    async def talk():
        async with serving(lambda _: "done", keep_alive_seconds=0.02) as served:
            served.engine.seconds = 0.6
            _, chat = await served.post(PATHS["chat"], bodies(stream=True)["chat"])
            _, responses = await served.post(PATHS["responses"], bodies(stream=True)["responses"])
            _, messages = await served.post(PATHS["messages"], bodies(stream=True)["messages"])
            assert chat.startswith(": ")
            events = parsed(responses)
            assert [name for name, _ in events[:3]] == ["response.created", *["response.in_progress"] * 2]
            numbers = [data["sequence_number"] for _, data in events]
            assert numbers == list(range(len(events)))
            assert len({data["response"]["id"] for _, data in events if "response" in data}) == 1
            assert [name for name, _ in parsed(messages)][:2] == ["ping", "ping"]

    run(talk())


STOPS = {
    "chat": ("length", lambda body: body["choices"][0]["finish_reason"]),
    "responses": ("max_output_tokens", lambda body: body["incomplete_details"]["reason"]),
    "messages": ("max_tokens", lambda body: body["stop_reason"]),
}


@pytest.mark.parametrize("dialect", STOPS)
def test_cut_answers_say_so(dialect):
    async def talk():
        async with serving(lambda _: "the " * 50, gconfig=GenerationConfig(max_new_tokens=5)) as served:
            _, body = await served.post(PATHS[dialect], bodies()[dialect])
            expected, reason = STOPS[dialect]
            assert reason(body) == expected

    run(talk())


def test_the_dialects_mean_the_same_conversation():
    """One begun in chat goes on in responses and in messages, and all report the same tokens."""

    async def talk():
        async with serving(lambda prompt: "3" if "<|tool|>" in prompt else CALL) as served:
            chat = await served.chat([user("go")], tools=TOOLS)
            tokens = chat["usage"]["prompt_tokens"]
            call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"b":2,"a":1}'}
            result = {"type": "function_call_output", "call_id": "c", "output": "3"}
            tools = [{**RESPONSE_TOOLS[0], "description": ""}]
            body = {"model": "m", "input": [user("go"), call, result], "tools": tools}
            status, responses = await served.post(PATHS["responses"], body)
            assert status == 200, responses
            blocks = [{"type": "tool_use", "id": "toolu_c", "name": "add", "input": {"a": 1, "b": 2}}]
            results = [{"type": "tool_result", "tool_use_id": "toolu_c", "content": [{"type": "text", "text": "3"}]}]
            history = [user("go"), {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
            body = {"model": "m", "max_tokens": 99, "messages": history, "tools": MESSAGE_TOOLS}
            _, counted = await served.post(f"{PATHS['messages']}/count_tokens", body)
            _, messages = await served.post(PATHS["messages"], body)
            first, second, third = served.session.answers
            assert second.parent is first
            assert third.parent is first
            assert second.request == third.request
            used = messages["usage"]["input_tokens"] + messages["usage"]["cache_read_input_tokens"]
            assert used == counted["input_tokens"] == responses["usage"]["input_tokens"] > tokens

    run(talk())


def test_claude_codes_billing_line_breaks_no_prefix():
    async def talk():
        async with serving(lambda _: "fine") as served:
            history = [user("go")]
            for turn, line in enumerate(["cc=1", "cc=2"]):
                system = [
                    {"type": "text", "text": f"x-anthropic-billing-header: {line}"},
                    {"type": "text", "text": "Help.", "cache_control": {"type": "ephemeral"}},
                ]
                _, body = await served.post(
                    PATHS["messages"], {"model": "m", "max_tokens": 9, "messages": history, "system": system}
                )
                history = [*history, {"role": "assistant", "content": body["content"]}, user(f"on {turn}")]
            assert [answer.how for answer in served.session.answers] == ["root", "message"]

    run(talk())


# --------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("dialect", "status"), [("chat", 401), ("responses", 401), ("messages", 403)])
def test_a_wrong_key_is_refused_in_the_form_of_the_dialect(dialect, status):
    async def talk():
        async with serving(lambda _: "x") as served:
            found, body = await served.post(PATHS[dialect], bodies()[dialect], key="areal-nobody")
            assert found == status
            assert body["error"]["message"]
            assert (body.get("type") == "error") is (dialect == "messages")

    run(talk())


@pytest.mark.parametrize(("dialect", "status"), [("chat", 400), ("responses", 400), ("messages", 403)])
def test_a_closed_session_is_refused_without_inviting_retries(dialect, status):
    async def talk():
        async with serving(lambda _: "x") as served:
            await served.gateway.close(served.session)
            found, body = await served.post(PATHS[dialect], bodies()[dialect])
            assert found == status
            assert "closed" in body["error"]["message"]

    run(talk())


@pytest.mark.parametrize("dialect", PATHS)
def test_a_prompt_that_does_not_fit_says_how_long_it_is(dialect):
    async def talk():
        async with serving(lambda _: "x", max_leaf_tokens=100) as served:
            status, body = await served.post(PATHS[dialect], bodies("x" * 500)[dialect])
            assert status == 400
            assert body["error"]["message"].startswith("prompt is too long: ")
            assert body["error"]["message"].endswith(" tokens > 99 maximum")
            assert body["error"].get("code", "") in ("context_length_exceeded", "")
            assert served.session.context_full
            assert served.engine.requests == []

    run(talk())


@pytest.mark.parametrize(("dialect", "status"), [("chat", 503), ("responses", 503), ("messages", 529)])
def test_a_failing_engine_asks_to_come_again(dialect, status):
    async def talk():
        async with serving(lambda _: "x") as served:
            served.engine.fault = FaultError(FaultKind.GENERATION_FAILED, "gone")
            assert (await served.post(PATHS[dialect], bodies()[dialect]))[0] == status
            assert served.session.answers == []
            served.engine.fault = None
            assert (await served.post(PATHS[dialect], bodies()[dialect]))[0] == 200

    run(talk())


UNSUPPORTED = {
    "chat": [
        {"response_format": {"type": "json_object"}},
        {"n": 9},
        {"logit_bias": {"5": 1}},
        {"audio": {"voice": "x"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [user("go"), {"role": "assistant", "content": "prefill"}]},
        {"messages": []},
        {"tools": [{"type": "function", "function": {"name": ""}}]},
        {"temperature": "hot"},
    ],
    "responses": [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"text": {"format": {"type": "json_schema"}}},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": 5},
    ],
    "messages": [
        {"top_k": 5},
        {"mcp_servers": [{"url": "http://x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "robot", "content": "x"}]},
    ],
}


@pytest.mark.parametrize("dialect", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(dialect):
    async def talk():
        async with serving(lambda _: "x") as served:
            for changes in UNSUPPORTED[dialect]:
                status, body = await served.post(PATHS[dialect], {**bodies()[dialect], **changes})
                assert status == 400, changes
                assert next(iter(changes)).split("_")[0] in body["error"]["message"], (changes, body)
            assert served.engine.requests == []

    run(talk())


def test_sampling_is_the_sessions_and_budgets_and_stop_strings_are_the_clients_too():
    async def talk():
        gconfig = GenerationConfig(max_new_tokens=50, temperature=0.8, stop=("END",))
        async with serving(lambda _: "one two", gconfig=gconfig) as served:
            await served.chat([user("go")], temperature=0.1, top_p=0.5, max_tokens=7, stop="two")
            used = served.engine.requests[0].gconfig
            assert (used.temperature, used.top_p) == (0.8, 1.0)
            assert used.max_new_tokens == 7
            assert used.stop == ("END", "two")

    run(talk())
