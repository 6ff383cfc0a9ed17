"""A tool loop of langchain with its OpenAI model."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = create_agent(ChatOpenAI(model="areal"), tools=[add], system_prompt="Use the tool.")
result = agent.invoke({"messages": [{"role": "user", "content": "1 + 2?"}]})
assert result["messages"][-1].content == "The result is 3.", result
