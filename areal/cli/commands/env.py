"""Check that an environment keeps its contract: equal seeds, equal episodes; no episode disturbs another.

examples:
  areal env check my_package.maze:Maze
  areal env check gymnasium --options '{"id": "FrozenLake-v1", "observe": "my_games:see", "act": "my_games:move"}'
  areal env check my_package.maze:Maze --host subprocess --answer north --answer south --json
  areal env check my_shop --answer '<tool_call>{"name": "price", "arguments": {"item": "bolt"}}</tool_call>'

Checks: equal_seeds (two episodes with one seed give equal bytes), concurrent_episodes (two, turn about, against each
alone), step_after_end (is an error), other_seed (a note when nothing depends on it), close (twice, and without reset),
leaks. Exit code 0: all hold; 10: one does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.cli.output import Report

if TYPE_CHECKING:
    import argparse

    from areal.api import AssistantTurn

FOUND: Final = 10
"""Exit code of a check that found something, the same as in the harness's programs."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal env`."""
    parser.add_argument("action", choices=("check",), help="what to do")
    parser.add_argument("name", metavar="NAME", help="a registered environment, or module:Factory")
    parser.add_argument("--options", default="{}", metavar="JSON", help="arguments of the factory (default: none)")
    parser.add_argument("--row", default="{}", metavar="JSON", help="dataset row of the episodes (default: empty)")
    parser.add_argument("--host", choices=("process", "subprocess"), default="process", help="where it runs")
    parser.add_argument("--python", default="", metavar="FILE", help="interpreter of host subprocess (default: ours)")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes (default: 0)")
    parser.add_argument(
        "--answer",
        action="append",
        metavar="TEXT",
        help="a turn, as the policy writes it; repeat for several (default: guesses)",
    )


def run(arguments: argparse.Namespace) -> Report:
    """Play the episodes and compare them."""
    import asyncio

    from areal.environment.check import DEFAULT_ANSWERS, check_environment
    from areal.environment.config import host_config
    from areal.trainer.configuration.project import use_project

    use_project(Path.cwd())
    host: dict[str, Any] = {"kind": arguments.host} | ({"python": arguments.python} if arguments.python else {})
    options, row = _mapping("--options", arguments.options), _mapping("--row", arguments.row)
    answers = [_turn(text) for text in arguments.answer or DEFAULT_ANSWERS]
    results = asyncio.run(
        check_environment(arguments.name, options, host_config(host), row=row, seed=arguments.seed, answers=answers)
    )
    failed = [result.name for result in results if not result.ok]
    lines = [
        f"{'ok    ' if result.ok else 'FAILED'} {result.name}{f': {result.detail}' if result.detail else ''}"
        for result in results
    ]
    data = {
        "environment": arguments.name,
        "checks": [{"name": result.name, "ok": result.ok, "detail": result.detail} for result in results],
    }
    return Report(text="\n".join(lines), data=data, exit_code=FOUND if failed else 0)


def _turn(text: str) -> AssistantTurn:
    """Return a turn with the tools it calls, read as the workflow reads them."""
    from areal.api import ActionCall, AssistantTurn, UsageError
    from areal.workflow.tool_calls import ToolError, read_calls

    try:
        calls = [ActionCall(name=call.name, arguments=call.arguments) for call in read_calls(text)]
    except ToolError as error:
        raise UsageError(f"{error}, in {text[:60]!r}", where="--answer") from error
    return AssistantTurn(text=text, calls=calls)


def _mapping(name: str, text: str) -> dict[str, Any]:
    from areal.api import UsageError

    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}", where=name, fix=f"quote it: {name} '{{...}}'") from error
    if not isinstance(found, dict):
        raise UsageError(f"{name} is {text[:60]!r}, expected a JSON object", where=name)
    return found
