"""Conversations go on from the tokens that were sampled, and each answer is trained once."""

from __future__ import annotations

import asyncio
import random
from array import array

import pytest
import templates
from serving import CALL, TOOLS, assert_exact, renderer_of, run, serving, user

from areal.api import NO_VERSION, GenerationConfig, StopReason
from areal.gateway.conversation import Conversation, FunctionCall, Turn, digest

ALL = {name: text for name, text in vars(templates).items() if name.isupper() and not name.startswith("_")}


def tool(message, result, call=0):
    return {"role": "tool", "tool_call_id": message["tool_calls"][call]["id"], "content": result}


# ------------------------------------------------------------------------------------------------- continuation


def test_a_tool_conversation_is_one_leaf_of_the_sampled_tokens():
    async def talk():
        async with serving(
            lambda prompt: "It is 3, the end." if "<|tool|>" in prompt else f"Let me see. {CALL}"
        ) as served:
            messages = await served.say([user("1 + 2?")], tools=TOOLS)
            messages = await served.say([*messages, tool(messages[-1], "3")], tools=TOOLS)
            await served.say([*messages, user("Sure?")], tools=TOOLS)
            first, second, third = served.session.answers
            assert second.parent is first
            assert third.parent is second
            assert [answer.how for answer in (first, second, third)] == ["root", "message", "message"]
            assert served.session.statistics()["exact_continuation"] == 1.0
            (leaf,) = served.session.trajectories(0.5)
            assert leaf.reward == 0.5
            assert leaf.stop_reason is StopReason.STOP
            assert sorted(set(leaf.turn_ids)) == [NO_VERSION, 0, 1, 2]
            sampled = [token for token, mask in zip(leaf.tokens, leaf.loss_mask, strict=True) if mask]
            assert sampled == [*first.output, *second.output, *third.output]
            assert leaf.num_sampled == sum(len(request) for request in (first.output, second.output, third.output))
            # What the engine was given is what is trained on, and its text is what a plain render shows.
            assert served.engine.requests[-1].input_ids == leaf.tokens[: len(served.engine.requests[-1].input_ids)]
            assert leaf.text["completion"].endswith("<|user|>Sure?<eos>\n<|assistant|>It is 3, the end.<eos>")
            assert_exact(served.session, [leaf])

    run(talk())


def test_echoes_that_mean_the_same_continue():
    """Arguments with other spacing and key order, null for empty text, parts for a string, other call ids."""

    async def talk():
        call = CALL.replace('{"a": 1, "b": 2}', '{"b": {"y": [1, 2], "x": null}, "a": "Ä"}')
        async with serving(lambda prompt: "done" if "<|tool|>" in prompt else call) as served:
            *_, said = await served.say([user("go")], tools=TOOLS)
            function = {"name": "add", "arguments": '{ "a":"\\u00c4","b":{"x":null,\n"y":[1,2]} }'}
            echo = {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": function}]}
            question = {"role": "user", "content": [{"type": "text", "text": "go"}]}
            result = {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "3"}]}
            assert said["content"] is None
            await served.say([question, echo, result], tools=TOOLS)
            assert served.session.answers[1].parent is served.session.answers[0]

    run(talk())


def test_an_answer_that_was_cut_goes_on_with_a_masked_end_of_turn():
    async def talk():
        gconfig = GenerationConfig(max_new_tokens=6)
        async with serving(lambda _: "the the the the the the", gconfig=gconfig) as served:
            messages = await served.say([user("go")])
            await served.say([*messages, user("on")])
            first, second = served.session.answers
            assert first.stop_reason is StopReason.LENGTH
            assert second.parent is first
            eos = served.engine.tokenizer.eos_token_id
            assert second.added[0] == eos
            assert first.output[-1] != eos
            (leaf,) = served.session.trajectories(1.0)
            assert leaf.truncated

    run(talk())


@pytest.mark.parametrize("history", ["keep", "template"])
def test_reasoning_that_the_template_forgets(history):
    """Kept, the conversation stays one leaf; shown as the template does, it begins a new one. Both are exact."""

    async def talk():
        def rule(prompt):
            return "<think>\nhm\n</think>\n\nfour" if prompt.count("<|user|>") == 1 else "five"

        async with serving(rule, template=templates.FORGETFUL, history=history) as served:
            messages = await served.say([user("2+2?")])
            assert messages[-1]["reasoning_content"] == "hm"
            assert messages[-1]["content"] == "four"
            await served.say([*messages, user("and one more?")])
            shown = served.engine.tokenizer.decode(served.engine.requests[-1].input_ids)
            assert ("hm" in shown) is (history == "keep")
            leaves = served.session.trajectories(1.0)
            assert len(leaves) == (1 if history == "keep" else 2)
            assert_exact(served.session, leaves)
            if history == "template":
                assert served.session.placed["root/edited"] + served.session.placed["root/unbridgeable"] == 1

    run(talk())


def test_clients_that_cannot_echo_reasoning_continue_and_those_that_change_it_do_not():
    async def talk():
        async with serving(lambda _: "<think>\nhm\n</think>\n\nfour") as served:
            messages = await served.say([user("2+2?")])
            without = {"role": "assistant", "content": "four"}
            changed = {**messages[-1], "reasoning_content": "something else"}
            await served.say([user("2+2?"), without, user("so?")])
            await served.say([user("2+2?"), changed, user("so?")])
            first, second, third = served.session.answers
            assert second.parent is first
            assert third.parent is None

    run(talk())


def test_text_that_a_client_writes_after_a_stop_string_is_masked_and_continues():
    async def talk():
        async with serving(lambda _: "<code>f(1)</code> and more") as served:
            body = await served.chat([user("go")], stop=["</code>"])
            said = body["choices"][0]["message"]["content"]
            assert said == "<code>f(1)"
            assert body["choices"][0]["finish_reason"] == "stop"
            echo = {"role": "assistant", "content": "<code>f(1)</code>\nCalling tools: f"}
            await served.say([user("go"), echo, user("Observation: 7")], stop=["</code>"])
            await served.say([user("go"), {**echo, "content": "<code>f(2)</code>"}, user("Observation: 7")])
            first, second, third = served.session.answers
            assert second.parent is first
            assert second.how == "extension"
            assert third.reason == "edited"
            assert third.parent is None
            text = served.engine.tokenizer.decode(served.engine.requests[1].input_ids)
            assert text.count("f(1)</code>\nCalling tools: f<eos>") == 1

    run(talk())


REASONS = {
    "edited": [user("go"), {"role": "assistant", "content": "another"}, user("on")],
    "other": [user("a different task"), {"role": "assistant", "content": "ok"}, user("on")],
    "side": [user("Write a title.")],
    "system_changed": [
        {"role": "system", "content": "be nice"},
        user("go"),
        {"role": "assistant", "content": "x"},
        user("on"),
    ],
}


@pytest.mark.parametrize("reason", REASONS)
def test_roots_are_counted_by_their_reason(reason):
    async def talk():
        async with serving(lambda _: "fine") as served:
            await served.say([user("go")])
            await served.say(REASONS[reason])
            assert served.session.answers[1].parent is None
            assert served.session.answers[1].reason == reason

    run(talk())


def test_other_tools_make_another_conversation():
    async def talk():
        async with serving(lambda _: "fine") as served:
            messages = await served.say([user("go")], tools=TOOLS)
            await served.say([*messages, user("on")])
            assert served.session.answers[1].reason == "tools_changed"

    run(talk())


def test_a_template_whose_bridge_depends_on_the_history_is_rendered_and_compared():
    async def talk():
        async with serving(lambda _: "fine", template=templates.COUNTING) as served:
            messages = await served.say([user("go")])
            await served.say([*messages, user("on")])
            assert served.session.answers[1].parent is None
            assert served.session.answers[1].reason == "unbridgeable"
            assert_exact(served.session, served.session.trajectories(1.0))

    run(talk())


# ------------------------------------------------------------------------------------------------------ templates


SHAPES = [("user",), ("tool",), ("tool", "tool"), ("tool", "user"), ("user", "user"), ("system", "user")]


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("roles", SHAPES, ids=" ".join)
def test_bridges_agree_with_full_renders(name, roles):
    """By brute force: random histories and texts; the prompt, the answer and the bridge are the whole render."""
    renderer, _ = renderer_of(ALL[name])
    generator = random.Random(repr(roles))
    kind = renderer.shape(roles)
    words = ["ab", "the", "<", "\n", " ", "é", "12", "{}", "tool_call"]

    def text():
        return "".join(generator.choice(words) for _ in range(generator.randrange(1, 8)))

    for _ in range(6):
        history = [Turn("user", text())]
        for _ in range(generator.randrange(3)):
            history += [Turn("assistant", text()), Turn("user", text())]
        calls = tuple(FunctionCall("f", {"x": text()}) for _ in range(sum(role == "tool" for role in roles)))
        answer = Turn("assistant", text(), calls=calls)
        new = [Turn(role, text()) for role in roles]
        prompt = renderer.render(Conversation(tuple(history)))
        ended = renderer.render(Conversation((*history, answer)), add_generation_prompt=False)
        said = ended[ended.rindex("<|assistant|>") + len("<|assistant|>") :].removesuffix("<eos>\n")
        bridge = renderer.bridge(new, ())
        full = renderer.render(Conversation((*history, answer, *new)))
        if kind == "append_only":
            assert f"{prompt}{said}{bridge}" == full
        elif kind == "rewriting":
            assert full.endswith(f"{said}{bridge}")
        else:
            assert bridge is None


def test_shapes_of_templates_are_known():
    shapes = {name: set(renderer_of(text)[0].shapes.values()) for name, text in ALL.items()}
    assert shapes["PLAIN"] == shapes["MERGED"] == shapes["DATED"] == shapes["STRICT"] == {"append_only"}
    assert shapes["FORGETFUL"] == {"append_only", "rewriting"}
    assert shapes["EMPTY_THOUGHT"] == {"rewriting"}
    assert shapes["COUNTING"] == {"unbridgeable"}
    assert renderer_of(templates.STRICT)[0].renders_system_as_user


def test_a_template_that_reads_the_clock_is_frozen():
    renderer, _ = renderer_of(templates.DATED)
    assert renderer.render(Conversation((Turn("user", "hi"),))).startswith("<|system|>Today is 01 Jan 2026<eos>")


# ------------------------------------------------------------------------------------- retries, siblings, leaves


def test_n_answers_are_siblings_that_only_their_own_rewards_train():
    async def talk():
        async with serving(lambda _: "the answer is 42") as served:
            body = await served.chat([user("go")], n=3)
            ids = [choice["answer_id"] for choice in body["choices"]]
            assert len({tuple(answer.output) for answer in served.session.answers}) > 1
            assert served.session.trajectories(1.0) == []
            assert served.session.left_out["choice_without_reward"] == 3
            served.session.set_reward(0.25, ids[1])
            (leaf,) = served.session.trajectories(None)
            assert leaf.reward == 0.25
            assert leaf.tokens[-len(served.session.answers[1].output) :] == list(served.session.answers[1].output)

    run(talk())


def test_siblings_of_equal_text_are_told_apart_by_what_was_delivered_last():
    async def talk():
        async with serving(lambda _: "the the the answer") as served:
            await served.say([user("go")])
            messages = await served.say([user("go")])
            await served.say([*messages, user("on")])
            first, second, third = served.session.answers
            assert first.output != second.output
            assert third.parent is second
            (leaf,) = served.session.trajectories(1.0)
            assert served.session.left_out["dropped_attempt"] == 1
            assert_exact(served.session, [leaf])

    run(talk())


def test_each_answer_is_trained_in_the_first_leaf_that_has_it():
    async def talk():
        async with serving(lambda _: "the answer") as served:
            messages = await served.say([user("go")])
            await served.say([*messages, user("left")])
            await served.say([*messages, user("right")])
            left, right = served.session.trajectories(1.0)
            assert sorted({turn for turn in left.turn_ids if turn >= 0}) == [0, 1]
            assert {turn for turn in right.turn_ids if turn >= 0} == {1}
            shared = served.session.answers[0].length
            assert left.tokens[:shared] == right.tokens[:shared]
            assert sum(left.loss_mask) + sum(right.loss_mask) == served.session.trained_tokens
            assert_exact(served.session, [left, right])

    run(talk())


def test_a_side_request_is_not_trained_beside_a_conversation_and_is_by_itself():
    async def talk():
        async with serving(lambda _: "a fine title for it") as served:
            await served.say([user("Title?")])
            assert len(served.session.trajectories(1.0)) == 1
            messages = await served.say([user("go")], tools=TOOLS)
            await served.say([*messages, user("on")], tools=TOOLS)
            assert len(served.session.trajectories(1.0)) == 1
            assert served.session.left_out == {"auxiliary": 1}
            assert served.session.trajectories(1.0, keep=lambda leaf: len(leaf.path) > 5) == []

    run(talk())


def test_a_summary_that_the_next_window_begins_with_is_trained():
    async def talk():
        summary = "Summary: the files were read and the test of the parser fails."

        def rule(prompt):
            return summary if "Summarise" in prompt else "ok then"

        async with serving(rule) as served:
            messages = await served.say([user("go")], tools=TOOLS)
            await served.say([*messages, user("Summarise.")], tools=TOOLS)
            await served.say([*messages, user("go on")], tools=TOOLS)
            window = await served.say([user(f"Before: {summary}")], tools=TOOLS)
            await served.say([*window, user("on")], tools=TOOLS)
            leaves = served.session.trajectories(1.0)
            assert len(leaves) == 2
            assert any(leaf.text["completion"].endswith(f"{summary}<eos>") for leaf in leaves)

    run(talk())


# --------------------------------------------------------------------------------------------------------- random


async def assert_wandering_is_exact(seed, template):
    """Talk as a client that branches, retries, asks for several answers, edits and drops turns at random."""
    generator = random.Random(seed)
    words = ["the", "ab", "12 ", "é", " ", "\n", "<|user|>", "<eos>", "\ud83d", "</tool_call>", "x" * 30, "<think>"]

    def text():
        return "".join(generator.choice(words) for _ in range(generator.randrange(6)))

    def rule(prompt):
        local = random.Random(f"{seed} {len(prompt)}")
        said = "".join(local.choice(words[:6]) for _ in range(local.randrange(6)))
        kind = local.randrange(6)
        called = f"{said}{CALL}{CALL if kind == 2 else ''}"
        return {0: f"<think>{said}</think>{said}", 1: called, 2: called, 3: f"{said}<tool_call>{{"}.get(kind, said)

    async with serving(
        rule, template=template, gconfig=GenerationConfig(max_new_tokens=generator.choice([5, 60, 400]))
    ) as served:
        known = [[]]
        for _ in range(generator.randrange(2, 9)):
            base = list(generator.choice(known))
            if base and base[-1].get("tool_calls"):
                base += [tool(base[-1], text(), number) for number in range(len(base[-1]["tool_calls"]))]
            if not base or base[-1]["role"] != "tool" or generator.random() < 0.2:
                base.append(user(text()))
            if len(base) > 3 and generator.random() < 0.2:
                del base[generator.randrange(1, len(base) - 1)]
            n = generator.choice([1, 1, 1, 2])
            served.engine.version += generator.randrange(2)
            body = await served.chat(base, tools=TOOLS if generator.random() < 0.9 else None, n=n)
            known += [[*base, choice["message"]] for choice in body["choices"]]
        for answer in served.session.answers:
            if generator.random() < 0.3:
                served.session.set_reward(generator.random(), answer.id)
        leaves = served.session.trajectories(1.0)
        assert_exact(served.session, leaves)
        seen = set()
        for request in served.engine.requests:
            seen.add(tuple(request.input_ids))
        for leaf in leaves:
            starts = [i for i, mask in enumerate(leaf.loss_mask) if mask and not leaf.loss_mask[i - 1]]
            assert all(tuple(leaf.tokens[:start]) in seen for start in starts)


@pytest.mark.parametrize("name", ["PLAIN", "FORGETFUL", "MERGED"])
def test_random_sessions_are_exact(name):
    for seed in range(4):
        run(assert_wandering_is_exact(seed, ALL[name]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ALL)
def test_many_random_sessions_are_exact(name):
    for seed in range(64):
        run(assert_wandering_is_exact(1000 + seed, ALL[name]))


def test_parallel_requests_of_one_session_have_the_seeds_of_their_prompts():
    async def keys(order):
        async with serving(lambda _: "fine") as served:
            await asyncio.gather(*(served.say([user(text)]) for text in order))
            return {tuple(request.input_ids): request.metadata["seed_key"] for request in served.engine.requests}

    assert run(keys(["one", "two", "three"])) == run(keys(["three", "one", "two"]))


def test_seeds_depend_on_the_tokens_of_a_prompt_and_on_nothing_else():
    async def talk():
        async with serving(lambda prompt: "3" if "<|tool|>" in prompt else CALL) as served:
            messages = await served.say([user("1 + 2?")], tools=TOOLS)
            messages = await served.say([*messages, tool(messages[-1], "3")], tools=TOOLS)
            await served.say([*messages, user("Sure?")], tools=TOOLS)
            await served.say([user("1 + 2?")], tools=TOOLS)
            keys = [request.metadata["seed_key"] for request in served.engine.requests]
            names = [digest(array("i", request.input_ids).tobytes()).hex() for request in served.engine.requests]
            assert keys == [f"{name}-{earlier}" for name, earlier in zip(names, (0, 0, 0, 1), strict=True)]

    run(talk())
