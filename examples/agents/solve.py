"""The agent of arithmetic_grpo.yaml: a tool loop as it is written for any model, with the OpenAI SDK.

It knows nothing of training: an address, a key, messages and tools. Needs `pip install openai`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

    from areal.workflow.agent_call import AgentSession

TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate a sum or a product of two digits.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
MAX_TURNS = 3


def calculate(expression: object) -> str:
    """Return the value of "7*8" or "7+8" as text, and "?" for anything else."""
    text = str(expression)
    if len(text) != 3 or not (text[0] + text[2]).isdecimal() or text[1] not in "+*":
        return "?"
    left, right = int(text[0]), int(text[2])
    return str(left + right if text[1] == "+" else left * right)


@functools.cache
def certificates() -> ssl.SSLContext:
    """Return what every client would else read from files at its start: 20 ms, more than a whole episode takes here."""
    import ssl

    return ssl.create_default_context()


async def solve(row: dict[str, Any], session: AgentSession) -> str:
    """Answer the question of a row; the model may call the calculator first."""
    import json

    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    messages: list[Any] = list(row["messages"])
    http = DefaultAsyncHttpxClient(verify=certificates())
    async with AsyncOpenAI(base_url=session.openai_base_url, api_key=session.key, http_client=http) as client:
        for _ in range(MAX_TURNS):
            answer = await client.chat.completions.create(model="areal", messages=messages, tools=[TOOL])
            said = answer.choices[0].message
            messages.append(said)
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = calculate(json.loads(call.function.arguments).get("expression"))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return said.content or ""


def chance(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any) -> float:
    """Return a reward that says nothing about the answer, for comparison: what rises under it was not learned."""
    import random

    return float(random.random() < 0.5)
