"""Says for each agent platform where files go, and writes an expert as the platform wants it.

To add a platform: a function that renders an expert, and its entry in `PLATFORMS`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.harness.sources import RUN, PageFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tooling.harness.sources import Expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One platform."""

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
        """Return where an expert goes. Example: ".codex/agents/planner.toml"."""
        return f"{self.agents}/{expert.name}{self.suffix}"


def instructions(expert: Expert) -> str:
    """Return the expert's text, ending with what it owns and may do: no platform enforces all of it."""
    parts = [expert.page.body.strip("\n")]
    if expert.owns:
        parts.append(f"Files you answer for: {', '.join(f'`{glob}`' for glob in expert.owns)}.")
    if expert.scope == RUN:
        allowed = ", ".join(f"`{command}`" for command in expert.commands)
        parts.append(f"You edit nothing. You run these commands and no others: {allowed}.")
    else:
        parts.append("You are read-only: read and search. Edit nothing, run nothing, fetch nothing.")
    return "\n\n".join(parts) + "\n"


def quoted(value: Any) -> str:
    """Return a text, number, list or mapping as JSON with only printable characters as themselves.

    TOML and YAML read it as the same value.
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)


def head(values: Sequence[tuple[str, Any]]) -> str:
    """Return a head of YAML. Each value is written as JSON, which is YAML too: no text can be read as anything else."""
    lines = [f"{key}: {quoted(value)}" for key, value in values]
    return "---\n" + "\n".join(lines) + "\n---\n"


def render_claude(expert: Expert) -> str:
    """Write a subagent's page for Claude Code.

    Its list of tools is enforced; which commands an expert of scope `run` may run is said in its text.
    """
    tools = "Read, Grep, Glob, Bash" if expert.scope == RUN else "Read, Grep, Glob"
    hints = sorted(expert.hints.get("claude", {}).items())
    values = [("name", expert.name), ("description", expert.description), ("tools", tools), *hints]
    return head(values) + "\n" + instructions(expert)


def render_codex(expert: Expert) -> str:
    """Write a role file for Codex.

    A role needs `name`, `description` and `developer_instructions`; any unknown key drops it. Codex does not apply a
    role's own sandbox, so that what an expert may do is said in its text only.
    """
    rows = [("name", expert.name), ("description", expert.description), *sorted(expert.hints.get("codex", {}).items())]
    lines = [f"{key} = {quoted(value)}" for key, value in rows]
    # Line breaks of the text stay, so that the file can be read and compared.
    escaped = "\n".join(quoted(line)[1:-1].replace('\\"', '"') for line in instructions(expert).split("\n"))
    text = '"""\n' + escaped.replace('"""', '""\\"') + '"""'
    return "\n".join([*lines, f"developer_instructions = {text}"]) + "\n"


def render_opencode(expert: Expert) -> str:
    """Write a subagent's page for OpenCode.

    A wrong value in a head ends OpenCode's start for the whole repository, so hints are held to a short list. What an
    expert may do is enforced here: everything is denied first, and of several rules the last one counts.
    """
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


PLATFORMS: Final[dict[str, Platform]] = {
    # The folder that most agents read skills from (agentskills.io). It has no experts.
    "agents": Platform(name="agents", title="the .agents standard", skills=".agents/skills"),
    # Claude Code reads `.claude` only. It makes a slash command of every skill, so no commands are written: a skill
    # hides a command of its name.
    "claude": Platform(
        name="claude",
        title="Claude Code",
        skills=".claude/skills",
        agents=".claude/agents",
        render=render_claude,
        hints=frozenset({"model", "color", "maxTurns"}),
        client="claude",
    ),
    # Codex reads `.agents/skills`, and finds every role below `.codex/agents` by itself. No `.codex/config.toml` is
    # written: a role that is declared there as well is refused as a duplicate, and the file is its user's.
    "codex": Platform(
        name="codex",
        title="Codex",
        agents=".codex/agents",
        suffix=".toml",
        render=render_codex,
        hints=frozenset({"model", "model_reasoning_effort"}),
        client="codex",
    ),
    # OpenCode reads `.agents/skills` (and `.claude/skills`, which holds the same bytes).
    "opencode": Platform(
        name="opencode",
        title="OpenCode",
        agents=".opencode/agents",
        render=render_opencode,
        hints=frozenset({"model", "temperature", "top_p", "steps", "color"}),
        client="opencode",
    ),
}


def chosen(names: Sequence[str], *, where: str) -> tuple[Platform, ...]:
    """Return the platforms of these names; all when none is named. Raises UsageError for an unknown one."""
    for name in names:
        if name not in PLATFORMS:
            fix = did_you_mean(name, PLATFORMS) or f"known: {', '.join(PLATFORMS)}"
            raise UsageError(f"there is no platform {name!r}", where=where, fix=fix)
    return tuple(PLATFORMS[name] for name in sorted(names or PLATFORMS))


def hint_problems(experts: Sequence[Expert]) -> Iterator[PageFinding]:
    """Find hints for platforms or settings that nobody reads, or that would end a platform's start."""
    for expert in experts:
        line = 1 + next((n for n, text in enumerate(expert.page.head.splitlines(), 1) if text.startswith("hints")), 0)
        for name, hint in expert.hints.items():
            if name not in PLATFORMS:
                fix = did_you_mean(name, PLATFORMS) or f"known: {', '.join(PLATFORMS)}"
                yield PageFinding(
                    expert.page.path, line, "expert-format", f"hints for {name!r}, which is not a platform", fix
                )
                continue
            for key in sorted(hint.keys() - PLATFORMS[name].hints):
                known = ", ".join(sorted(PLATFORMS[name].hints)) or "none"
                yield PageFinding(
                    expert.page.path, line, "expert-format", f"{name} takes no hint {key!r}", f"known: {known}"
                )
