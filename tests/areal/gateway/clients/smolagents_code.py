"""A code agent of smolagents: it rewrites each answer, and ends answers by stop strings."""

import os

from smolagents import CodeAgent, OpenAIModel, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


model = OpenAIModel("areal", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = CodeAgent(tools=[add], model=model, max_steps=3)
result = agent.run("1 + 2?")
assert result == 3, result
