"""Call a blocking Python function as an agent, in a process of its own.

    python -m areal.workflow.agent_call MODULE:FUNCTION ROW.json RESULT.json

The function gets the row and an `AgentSession`; what it returns is written as JSON. Its exceptions end the process with
a traceback, which the fault shows.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSession:
    """Where an agent finds its model: give it to any client."""

    openai_base_url: str
    """For OpenAI's dialects, chat completions and responses; ends in /v1."""
    anthropic_base_url: str
    """For Anthropic's messages."""
    key: str
    """API key for both; it is the session."""

    def environment(self) -> dict[str, str]:
        """Return it as the variables that clients read."""
        return {
            "ANTHROPIC_AUTH_TOKEN": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "AREAL_SESSION_KEY": self.key,
            "NO_PROXY": "127.0.0.1,localhost,::1",
            "OPENAI_API_KEY": self.key,
            "OPENAI_BASE_URL": self.openai_base_url,
        }

    @classmethod
    def from_environment(cls) -> AgentSession:
        """Return the session of a process that the workflow started."""
        return cls(
            openai_base_url=os.environ["OPENAI_BASE_URL"],
            anthropic_base_url=os.environ["ANTHROPIC_BASE_URL"],
            key=os.environ["AREAL_SESSION_KEY"],
        )


def main(arguments: list[str]) -> None:
    """Call the function and write what it returns."""
    from areal.api import load

    name, row, result = arguments
    function: Any = load("agent", name, {})
    returned = function(json.loads(Path(row).read_text(encoding="utf-8")), AgentSession.from_environment())
    Path(result).write_text(json.dumps(returned), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
