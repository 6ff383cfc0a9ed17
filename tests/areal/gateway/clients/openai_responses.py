"""A tool loop with the OpenAI SDK: responses, streamed and not."""

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
client = OpenAI()
items = [{"role": "user", "content": "1 + 2?"}]
with client.responses.stream(model="areal", input=items, tools=[TOOL], store=False) as stream:
    kinds = [event.type for event in stream]
    first = stream.get_final_response()
assert kinds[0] == "response.created"
assert kinds[-1] == "response.completed"
call = next(item for item in first.output if item.type == "function_call")
items += [item.model_dump(exclude_none=True) for item in first.output]
items += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
final = client.responses.create(model="areal", input=items, tools=[TOOL], store=False)
assert final.output_text == "The result is 3.", final
