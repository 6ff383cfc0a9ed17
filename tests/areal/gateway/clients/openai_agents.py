"""A tool loop of the OpenAI Agents SDK."""

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = Agent(name="adder", instructions="Use the tool.", model="areal", tools=[add])
result = Runner.run_sync(agent, "1 + 2?")
assert result.final_output == "The result is 3.", result
