"""A tool loop with the OpenAI SDK: chat completions, streamed and not."""

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
client = OpenAI()
assert [model.id for model in client.models.list()] == ["areal"]
messages = [{"role": "user", "content": "1 + 2?"}]
first = client.chat.completions.create(model="areal", messages=messages, tools=[TOOL], logprobs=True)
call = first.choices[0].message.tool_calls[0]
assert first.choices[0].finish_reason == "tool_calls"
assert len(first.choices[0].logprobs.content) == first.usage.completion_tokens
messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
with client.chat.completions.stream(
    model="areal", messages=messages, tools=[TOOL], stream_options={"include_usage": True}
) as stream:
    for _ in stream:
        pass
    final = stream.get_final_completion()
assert final.choices[0].message.content == "The result is 3.", final
assert final.usage.prompt_tokens_details.cached_tokens > 0
