"""What the tests of adapters give to packages of others; runs in their interpreter, where there is neither torch nor
pytest.
"""

from __future__ import annotations


def see(observation, info):
    return f"square {int(observation)}"


def move(text, space):
    words = {"left": 0, "down": 1, "right": 2, "up": 3, "fly": 9}
    if text not in words:
        raise ValueError(f"say one of {', '.join(words)}")
    return words[text]


def see_sum(observation):
    return observation["text"]


def add(text):
    return {"number": int(text)}


def serve():
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Image

    server = MCPServer("sums")

    @server.tool()
    def add(first: int, second: int = 1) -> str:
        """Add two numbers."""
        return str(first + second)

    @server.tool()
    def show():
        """Show a picture."""
        return ["a <image> here:", Image(data=b"\x89PNG a picture", format="png")]

    @server.tool()
    def leave() -> str:
        """End the server."""
        import os

        os._exit(3)

    server.run()


if __name__ == "__main__":
    serve()
