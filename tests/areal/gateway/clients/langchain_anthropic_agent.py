"""A tool loop of langchain with its Anthropic model."""

import os

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = ChatAnthropic(
    model="areal", base_url=os.environ["ANTHROPIC_BASE_URL"], api_key=os.environ["ANTHROPIC_AUTH_TOKEN"]
)
agent = create_agent(model, tools=[add], system_prompt="Use the tool.")
result = agent.invoke({"messages": [{"role": "user", "content": "1 + 2?"}]})
assert result["messages"][-1].content == "The result is 3.", result
