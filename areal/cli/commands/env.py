"""Check that an environment keeps its contract, or serve it over HTTP for runs on other machines.

examples:
  areal env check my_package.maze:Maze
  areal env check gymnasium --options '{"id": "FrozenLake-v1", "observe": "my_games:see", "act": "my_games:move"}'
  areal env check my_package.maze:Maze --host subprocess --answer north --answer south --json
  areal env check my_shop --answer '<tool_call>{"name": "price", "arguments": {"item": "bolt"}}</tool_call>'
  areal env serve my_package.maze:Maze --port 8300
  areal env check my_package.maze:Maze --host http --url http://127.0.0.1:8300

check: equal_seeds (two episodes with one seed give equal bytes), concurrent_episodes (two, turn about, against each
alone), step_after_end (is an error), other_seed (a note when nothing depends on it), close (twice, and without reset),
leaks. Exit code 0: all hold; 10: one does not.

serve: listens at loopback, or with --address and --key-variable for others, until Ctrl-C or SIGTERM; a run uses it with
`host: {kind: http, url: ...}`. Each environment gets a process of its own, unless --host process. Episodes that nobody
asks for are closed. Connections are not encrypted: between machines that others share, put a TLS proxy before it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

    from areal.api import AssistantTurn

FOUND: Final = 10
"""Exit code of a check that found something, the same as in the harness's programs."""
_LOOK_SECONDS: Final = 0.1
_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "check": ("row", "seed", "answer", "url"),
    "serve": (
        "address",
        "port",
        "max_environments",
        "reset_seconds",
        "step_seconds",
        "lease_seconds",
        "ready_file",
    ),
}
"""Options of one action alone; None where nothing was given."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal env`."""
    parser.add_argument("action", choices=("check", "serve"), help="what to do")
    parser.add_argument("name", metavar="NAME", help="a registered environment, or module:Factory")
    parser.add_argument("--options", default="{}", metavar="JSON", help="arguments of the factory (default: none)")
    parser.add_argument(
        "--host",
        choices=("process", "subprocess", "http"),
        help="where it runs (default: process for check, subprocess for serve)",
    )
    parser.add_argument("--python", default="", metavar="FILE", help="interpreter of host subprocess (default: ours)")
    parser.add_argument(
        "--reuse", action="store_true", help="host subprocess: one environment for several episodes, if it resets fully"
    )
    parser.add_argument(
        "--key-variable", default="", metavar="NAME", help="environment variable with the key of a server"
    )
    checking = parser.add_argument_group("check")
    checking.add_argument("--row", metavar="JSON", help="dataset row of the episodes (default: empty)")
    checking.add_argument("--seed", type=int, help="of the episodes (default: 0)")
    checking.add_argument(
        "--answer",
        action="append",
        metavar="TEXT",
        help="a turn, as the policy writes it; repeat for several (default: guesses)",
    )
    checking.add_argument("--url", help="server of host http")
    serving = parser.add_argument_group("serve")
    serving.add_argument("--address", help="where to listen (default: 127.0.0.1)")
    serving.add_argument("--port", type=int, metavar="N", help="port to listen at (default: a free one)")
    serving.add_argument(
        "--max-environments",
        type=int,
        metavar="N",
        help="episodes at once (default: 16)",
    )
    serving.add_argument(
        "--step-seconds",
        type=float,
        metavar="S",
        help="limit of a step (default: 30)",
    )
    serving.add_argument(
        "--reset-seconds",
        type=float,
        metavar="S",
        help="limit of a reset (default: 60)",
    )
    serving.add_argument(
        "--lease-seconds",
        type=float,
        metavar="S",
        help="until an episode is given up (default: 120)",
    )
    serving.add_argument("--ready-file", type=Path, metavar="FILE", help="gets the address as JSON when it serves")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Do what was asked for."""
    from areal.api import UsageError
    from areal.trainer.configuration.project import use_project

    for action, names in _ONLY.items():
        for name in names:
            if action != arguments.action and getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} has no effect with {arguments.action}; it belongs to {action}", where=option
                )
    # `my_module:MyEnvironment` finds my_module.py in the current folder; last, so that it shadows nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    use_project(Path.cwd())
    return serve(arguments) if arguments.action == "serve" else check(arguments)


def check(arguments: argparse.Namespace) -> CommandReport:
    """Play the episodes and compare them."""
    import asyncio

    from areal.environment.check import DEFAULT_ANSWERS, check_environment
    from areal.environment.config import host_config

    host: dict[str, Any] = {"kind": arguments.host or "process"}
    host |= {name: value for name in ("python", "reuse", "url", "key_variable") if (value := getattr(arguments, name))}
    options, row = _mapping("--options", arguments.options), _mapping("--row", arguments.row or "{}")
    answers = [_turn(text) for text in arguments.answer or DEFAULT_ANSWERS]
    results = asyncio.run(
        check_environment(
            arguments.name, options, host_config(host), row=row, seed=arguments.seed or 0, answers=answers
        )
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
    return CommandReport(text="\n".join(lines), data=data, exit_code=FOUND if failed else 0)


def serve(arguments: argparse.Namespace) -> CommandReport:
    """Serve until somebody ends it."""
    import asyncio

    from areal.api import UsageError
    from areal.environment.config import HostConfig
    from areal.environment.server import EnvironmentServer, ServerConfig
    from areal.infra.checkpoint.run_control import StopRequest

    if arguments.host == "http":
        raise UsageError("a server runs environments itself: process or subprocess", where="--host")
    given = {name: value for name in _ONLY["serve"] if (value := getattr(arguments, name)) is not None}
    limits = {name: given[name] for name in ("max_environments", "reset_seconds", "step_seconds") if name in given}
    host = HostConfig(kind=arguments.host or "subprocess", python=arguments.python, reuse=arguments.reuse, **limits)
    names = {"host": "address", "port": "port", "lease_seconds": "lease_seconds"}
    listening = {field: given[name] for field, name in names.items() if name in given}
    key = os.environ.get(arguments.key_variable, "")
    if arguments.key_variable and not key:
        raise UsageError(f"the environment variable {arguments.key_variable} is not set", where="--key-variable")
    config = ServerConfig(key=key, **listening)
    server = EnvironmentServer(arguments.name, _mapping("--options", arguments.options), host, config)

    async def serve_until_stopped() -> None:
        async with server.running():
            sys.stderr.write(f"serving {arguments.name} at {server.address}\n")
            sys.stderr.flush()
            if arguments.ready_file is not None:
                part = arguments.ready_file.with_name(f"{arguments.ready_file.name}.part")
                part.write_text(json.dumps({"address": server.address}), encoding="utf-8")
                part.replace(arguments.ready_file)
            while not stop.requested:
                await asyncio.sleep(_LOOK_SECONDS)

    with StopRequest() as stop:
        asyncio.run(serve_until_stopped())
    expired = server.num_expired
    text = f"ended; {expired} episode{'s were' if expired != 1 else ' was'} given up by clients"
    return CommandReport(text=text, data={"expired": expired}, exit_code=stop.exit_code)


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
