"""Names the entry point where installed scripts look for it."""

from tooling.mcp.__main__ import main

__all__ = ["main"]
