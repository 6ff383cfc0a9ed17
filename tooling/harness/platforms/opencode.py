"""OpenCode reads `.agents/skills` (and `.claude/skills`, which holds the same bytes); experts are its subagents.

A wrong value in a head ends OpenCode's start for the whole repository, so hints are held to a short list. What an
expert may do is enforced here: everything is denied first, and of several rules the last one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.harness.platforms.records import Platform
from tooling.harness.platforms.text import head, instructions
from tooling.harness.sources.records import RUN

if TYPE_CHECKING:
    from tooling.harness.sources.records import Expert


def render(expert: Expert) -> str:
    """A subagent's page."""
    permission: dict[str, Any] = {"*": "deny", "read": "allow", "grep": "allow", "glob": "allow"}
    if expert.scope == RUN:
        permission["bash"] = {"*": "deny"} | dict.fromkeys(expert.commands, "allow")
    values = [
        ("description", expert.description),
        ("mode", "subagent"),
        *sorted(expert.hints.get("opencode", {}).items()),
        ("permission", permission),
    ]
    return head(values) + "\n" + instructions(expert)


PLATFORM: Final = Platform(
    name="opencode",
    title="OpenCode",
    agents=".opencode/agents",
    render=render,
    hints=frozenset({"model", "temperature", "top_p", "steps", "color"}),
    client="opencode",
)
