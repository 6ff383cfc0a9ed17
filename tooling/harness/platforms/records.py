"""What an adapter is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.harness.sources.records import Expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One platform. To add one: write a module with such a record, and its line in `table.py`."""

    name: str
    title: str
    """For people."""
    skills: str = ""
    """Folder that skills are copied to; "" when the platform reads a folder that another one has already."""
    agents: str = ""
    """Folder of its experts; "" when it has none."""
    suffix: str = ".md"
    """Of an expert's file."""
    render: Callable[[Expert], str] | None = None
    """An expert as the platform's text, without the line that says it is generated."""
    hints: frozenset[str] = frozenset()
    """Settings that an expert's `hints` may hold for it."""
    client: str = ""
    """Its program, for `doctor`."""

    def expert_path(self, expert: Expert) -> str:
        """Where an expert goes. Example: ".codex/agents/planner.toml"."""
        return f"{self.agents}/{expert.name}{self.suffix}"
