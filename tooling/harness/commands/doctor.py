"""Asks whether the copies are in step, and whether the agent programs that are installed see exactly the sources."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import FindingError
from tooling.cli.report import Report, progress
from tooling.harness.clients import ClientError, Seen, ask
from tooling.harness.commands.sync import planned, refuse_problems
from tooling.harness.compile import CopyState
from tooling.harness.context import open_context

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tooling.cli.parser import Parser
    from tooling.harness.context import HarnessContext
    from tooling.harness.platforms import Platform


_MEMORY_LIMIT = 32 * 1024
"""Bytes of AGENTS.md that Codex reads; it drops the rest silently."""


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--clients", type=Path, metavar="FOLDER", help="look for the programs in this folder first")


def run(arguments: argparse.Namespace) -> Report:
    """Answer a question per line; a client that is not installed is reported as unasked, which is not a failure."""
    context = open_context(arguments.repo)
    refuse_problems(context)
    rows = [*_local(context), *(_client(context, platform, arguments.clients) for platform in context.platforms)]
    rows = [row for row in rows if row]
    failed = any(row["state"] == "wrong" for row in rows)
    marks = {"right": "ok     ", "wrong": "WRONG  ", "unasked": "-      "}
    return Report(
        command="areal-harness doctor",
        exit_code=FindingError.exit_code if failed else 0,
        changing=False,
        text="\n".join(f"{marks[row['state']]}{row['what']}: {row['message']}" for row in rows) + "\n",
        data={"results": rows},
    )


def _local(context: HarnessContext) -> Iterator[dict[str, Any]]:
    _, states = planned(context)
    behind = [one.path for one in states if one.state is not CopyState.CURRENT]
    said = (
        f"{len(behind)} of {len(states)} are not in step: `areal-harness sync`" if behind else f"{len(states)} in step"
    )
    yield _row("copies", "wrong" if behind else "right", said)
    memory = context.root / "AGENTS.md"
    size = memory.stat().st_size if memory.is_file() else 0
    state = "right" if 0 < size <= _MEMORY_LIMIT else "wrong"
    yield _row("AGENTS.md", state, f"{size} bytes; Codex reads {_MEMORY_LIMIT}")
    pointer = context.root / "CLAUDE.md"
    text = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else "@AGENTS.md"
    reads = text == "@AGENTS.md"
    yield _row("CLAUDE.md", "right" if reads else "wrong", "leads to AGENTS.md" if reads else "hides AGENTS.md")


def _client(context: HarnessContext, platform: Platform, folder: Path | None) -> dict[str, Any]:
    if not platform.client:
        return {}
    program = which(platform.client, path=os.fspath(folder)) if folder else None
    program = program or which(platform.client)
    if program is None:
        return _row(platform.title, "unasked", f"no program {platform.client} on PATH; scripts/setup_agent_clis.sh")
    try:
        with progress(f"asking {platform.title}"):
            seen = ask(platform.client, Path(program).absolute(), context.root)
    except ClientError as error:
        return _row(platform.title, "wrong", str(error))
    except (KeyError, TypeError, ValueError) as error:  # an answer of another shape than this version knows
        return _row(platform.title, "wrong", f"its answer is not understood: {type(error).__name__}: {error}")
    wanted = Seen(
        frozenset(skill.name for skill in context.sources.skills),
        frozenset(expert.name for expert in context.sources.experts),
    )
    missing, extra = wanted.without(seen), seen.without(wanted)
    found = f"{len(seen.skills)} skills, {len(seen.experts)} experts"
    lost = sorted(missing.skills | missing.experts)
    added = sorted(extra.skills | extra.experts)
    said = [found, *([f"does not see {', '.join(lost)}"] if lost else [])]
    said += [f"also sees {', '.join(added)}, which have no source"] if added else []
    row = _row(platform.title, "wrong" if lost else "right", "; ".join(said))
    return row | {"missing": lost, "extra": added}


def _row(what: str, state: str, message: str) -> dict[str, Any]:
    return {"what": what, "state": state, "message": message}
