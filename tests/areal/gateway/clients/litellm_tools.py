"""A tool loop with litellm, which translates its own calls into those of the OpenAI SDK."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices
import litellm

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
litellm.telemetry = False
messages = [{"role": "user", "content": "1 + 2?"}]
first = litellm.completion(model="openai/areal", messages=messages, tools=[TOOL])
call = first.choices[0].message.tool_calls[0]
messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
parts = list(litellm.completion(model="openai/areal", messages=messages, tools=[TOOL], stream=True))
final = litellm.stream_chunk_builder(parts)
assert final.choices[0].message.content == "The result is 3.", final
