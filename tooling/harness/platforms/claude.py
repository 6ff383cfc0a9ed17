"""Claude Code reads `.claude` only. It makes a slash command of every skill, so no commands are written: a skill hides
a command of its name. Its list of tools is enforced; which commands an expert of scope `run` may run stands in its
text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.harness.platforms.records import Platform
from tooling.harness.platforms.text import head, instructions
from tooling.harness.sources.records import RUN

if TYPE_CHECKING:
    from tooling.harness.sources.records import Expert


def render(expert: Expert) -> str:
    """A subagent's page."""
    tools = "Read, Grep, Glob, Bash" if expert.scope == RUN else "Read, Grep, Glob"
    hints = sorted(expert.hints.get("claude", {}).items())
    values = [("name", expert.name), ("description", expert.description), ("tools", tools), *hints]
    return head(values) + "\n" + instructions(expert)


PLATFORM: Final = Platform(
    name="claude",
    title="Claude Code",
    skills=".claude/skills",
    agents=".claude/agents",
    render=render,
    hints=frozenset({"model", "color", "maxTurns"}),
    client="claude",
)
