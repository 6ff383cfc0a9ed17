"""Two tasks, each as an environment and as agents: what test_three_ways compares."""

from __future__ import annotations

import json

import aiohttp

from areal.api import StepResult, TurnObservation

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
QUESTION = "1 + 2?"
TURNS = 3


def asked(text, role="user"):
    return {"role": role, "content": text}


class Adding:
    """A sum that is worked out with a tool; an answer without a call ends it."""

    def create(self):
        return self

    async def reset(self, row, seed):
        return TurnObservation(messages=(asked(QUESTION),), tools=(ADD,))

    async def step(self, answer):
        results = tuple(asked(str(call.arguments["a"] + call.arguments["b"]), "tool") for call in answer.calls)
        return StepResult(observation=TurnObservation(messages=results), reward=not results, terminated=not results)

    async def close(self):
        pass


class Insisting:
    """Asks for more, whatever was said."""

    def create(self):
        return InsistingEpisode()


class InsistingEpisode:
    async def reset(self, row, seed):
        self.turns = 0
        return TurnObservation(messages=(asked("tell me"),))

    async def step(self, answer):
        self.turns += 1
        over = self.turns == TURNS
        return StepResult(observation=TurnObservation(messages=(asked(f"more {self.turns}"),)), terminated=over)

    async def close(self):
        pass


async def posted(url, session, body):
    headers = {"Authorization": f"Bearer {session.key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json={"model": "m", **body}, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.json()


async def adds_by_chat(row, session):
    messages, tools = [asked(QUESTION)], [{"type": "function", "function": ADD}]
    while True:
        body = {"messages": messages, "tools": tools}
        said = (await posted(f"{session.openai_base_url}/chat/completions", session, body))["choices"][0]["message"]
        if not said.get("tool_calls"):
            return 1.0
        messages.append(said)
        for call in said["tool_calls"]:
            numbers = json.loads(call["function"]["arguments"])
            result = asked(str(numbers["a"] + numbers["b"]), "tool")
            messages.append({**result, "tool_call_id": call["id"]})


async def adds_by_messages(row, session):
    schema = {"name": ADD["name"], "description": ADD["description"], "input_schema": ADD["parameters"]}
    messages = [asked(QUESTION)]
    while True:
        body = {"messages": messages, "tools": [schema], "max_tokens": 1000}
        said = (await posted(f"{session.anthropic_base_url}/v1/messages", session, body))["content"]
        calls = [block for block in said if block["type"] == "tool_use"]
        if not calls:
            return 1.0
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": str(call["input"]["a"] + call["input"]["b"])}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": results}]


async def adds_by_responses(row, session):
    items = [asked(QUESTION)]
    while True:
        body = {"input": items, "tools": [{"type": "function", **ADD}]}
        said = (await posted(f"{session.openai_base_url}/responses", session, body))["output"]
        calls = [item for item in said if item["type"] == "function_call"]
        if not calls:
            return 1.0
        items += said
        for call in calls:
            numbers = json.loads(call["arguments"])
            output = str(numbers["a"] + numbers["b"])
            items.append({"type": "function_call_output", "call_id": call["call_id"], "output": output})


async def insists(row, session):
    messages = [asked("tell me")]
    for turn in range(TURNS):
        body = {"messages": messages}
        reply = await posted(f"{session.openai_base_url}/chat/completions", session, body)
        messages += [reply["choices"][0]["message"], asked(f"more {turn + 1}")]
    return 0.0


def scores(run):
    """The reward of a program, which cannot return one."""
    return 1.0
