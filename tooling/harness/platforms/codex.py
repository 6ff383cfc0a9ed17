"""Codex reads `.agents/skills`, and finds every role below `.codex/agents` by itself.

No `.codex/config.toml` is written: a role that is declared there as well is refused as a duplicate, and the file is its
user's. A role needs `name`, `description` and `developer_instructions`; any unknown key drops it. Codex does not
apply a role's own sandbox, so that what an expert may do stands in its text only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.harness.platforms.records import Platform
from tooling.harness.platforms.text import instructions, quoted

if TYPE_CHECKING:
    from tooling.harness.sources.records import Expert


def render(expert: Expert) -> str:
    """A role file."""
    hints = [(key, value) for key, value in sorted(expert.hints.get("codex", {}).items())]
    rows = [("name", expert.name), ("description", expert.description), *hints]
    lines = [f"{key} = {quoted(value)}" for key, value in rows]
    return "\n".join([*lines, f"developer_instructions = {_multi_line(instructions(expert))}"]) + "\n"


def _multi_line(text: str) -> str:
    """Line breaks stay, so that the file can be read and compared."""
    escaped = "\n".join(quoted(line)[1:-1].replace('\\"', '"') for line in text.split("\n"))
    return '"""\n' + escaped.replace('"""', '""\\"') + '"""'


PLATFORM: Final = Platform(
    name="codex",
    title="Codex",
    agents=".codex/agents",
    suffix=".toml",
    render=render,
    hints=frozenset({"model", "model_reasoning_effort"}),
    client="codex",
)
