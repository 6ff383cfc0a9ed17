"""Tools of `areal-pr`; they are offered where that command is installed, and found by its entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tooling.mcp.tools.records import Tool

TOOLS: Final[tuple[Tool, ...]] = ()
