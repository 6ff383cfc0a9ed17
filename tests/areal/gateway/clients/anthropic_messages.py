"""A tool loop with the Anthropic SDK, streamed and not."""

from anthropic import Anthropic

TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
client = Anthropic()
messages = [{"role": "user", "content": "1 + 2?"}]
counted = client.messages.count_tokens(model="areal", messages=messages, tools=[TOOL])
with client.messages.stream(model="areal", max_tokens=200, messages=messages, tools=[TOOL]) as stream:
    first = stream.get_final_message()
assert first.stop_reason == "tool_use", first
assert first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) == counted.input_tokens
call = next(block for block in first.content if block.type == "tool_use")
messages += [
    {"role": "assistant", "content": first.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "3"}]},
]
final = client.messages.create(model="areal", max_tokens=200, messages=messages, tools=[TOOL])
assert final.content[0].text == "The result is 3.", final
