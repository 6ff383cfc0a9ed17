"""The one table of tools: what a client sees, and the command line that a call becomes, both follow from it.

Of a tool that writes, the table offers two: itself, and a preview that is the same command with --dry-run. So a client
can be told to allow the one without asking, and never the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from tooling.mcp.tools.records import Tool
from tooling.mcp.tools.rows import commit, documentation, harness, new, pull_request, review, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROWS: Final[tuple[Tool, ...]] = (
    *new.TOOLS,
    *upgrade.TOOLS,
    *review.TOOLS,
    *commit.TOOLS,
    *harness.TOOLS,
    *documentation.TOOLS,
    *pull_request.TOOLS,
)
DRY_RUN: Final = "--dry-run"
_PREVIEWED: Final = "Shows what {name} would do, and writes nothing. {help}"


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one server, by name, and those that it does not have."""

    tools: dict[str, Tool]
    withheld: dict[str, str]
    """Why, and what to do, by name."""


def families() -> tuple[str, ...]:
    """First words of the names: "new", "upgrade", ..."""
    return tuple(dict.fromkeys(family_of(tool) for tool in ROWS))


def family_of(tool: Tool) -> str:
    """The first word of its name."""
    return tool.name.partition("_")[0]


def offered(*, writes: bool, only: Sequence[str] = ()) -> Offer:
    """The tools that can be called here. `writes`: also those that change files; `only`: of these families."""
    programs = {entry.name: entry.value for entry in entry_points(group="console_scripts")}
    tools, withheld = dict[str, Tool](), dict[str, str]()
    for tool in every_tool():
        main = tool.main or programs.get(tool.program, "")
        if only and family_of(tool) not in only:
            withheld[tool.name] = f"this server was started with --only {','.join(only)}"
        elif not main:
            withheld[tool.name] = f"{tool.program} is not installed"
        elif tool.writes and not writes:
            preview = f"; {tool.preview} shows what it would do" if tool.preview else ""
            withheld[tool.name] = f"it writes, and this server was started without --allow-writes{preview}"
        else:
            tools[tool.name] = replace(tool, main=main)
    return Offer(tools, withheld)


def every_tool() -> Iterator[Tool]:
    """All rows, each followed by its preview."""
    for tool in ROWS:
        if tool.preview:
            yield preview_of(tool)
        yield tool


def preview_of(tool: Tool) -> Tool:
    """The same command with --dry-run."""
    return replace(
        tool,
        name=tool.preview,
        preview="",
        title=f"Preview: {tool.title[0].lower()}{tool.title[1:]}",
        help=_PREVIEWED.format(name=tool.name, help=tool.help),
        words=(*tool.words, DRY_RUN),
        parameters=tuple(each for each in tool.parameters if not each.writing_only),
        writes=False,
        destructive=False,
    )
