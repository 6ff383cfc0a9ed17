"""A tool-calling agent of smolagents, which rewrites each turn into text."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


model = OpenAIModel("areal", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
result = ToolCallingAgent(tools=[add], model=model, max_steps=3).run("1 + 2?")
assert str(result) == "3", result
