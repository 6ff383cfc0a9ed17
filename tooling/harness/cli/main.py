"""Names the entry point where installed scripts look for it."""

from tooling.harness.__main__ import main

__all__ = ["main"]
