"""Names the entry point where installed scripts look for it."""

from tooling.review.__main__ import main

__all__ = ["main"]
