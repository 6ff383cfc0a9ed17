"""An agent of pydantic-ai with a tool; it writes the arguments of calls anew."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("areal"))


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


result = agent.run_sync("1 + 2?")
assert result.output == "The result is 3.", result
