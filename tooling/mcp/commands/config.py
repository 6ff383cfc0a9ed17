"""Prints what to tell an agent program so that it starts the server. Writes nothing.

Nothing is put into the repository either: a file there would start a program on the machine of everybody who opens a
clone, before they have set anything up.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.mcp.tools.records import ANSWER_LENGTH
from tooling.mcp.tools.table import TOOLS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


SERVER: Final = "areal"
_START_SECONDS: Final = 60
"""A busy machine may need more than the few seconds that clients wait for a server to start."""


def run(arguments: argparse.Namespace) -> Report:
    """Return the snippet, with the interpreter and the repository of this very call."""
    root = find_repository(arguments.repo).root.resolve()
    # The script beside this interpreter: clients start servers without the environment of a shell
    folder, suffix = Path(sys.executable).parent, ".exe" if sys.platform == "win32" else ""
    script = folder / f"areal-mcp{suffix}"
    start = [os.fspath(script)] if script.is_file() else [sys.executable, "-P", "-m", "areal_harness", "tooling.mcp"]
    options = ["--allow-writes"] if arguments.allow_writes else []
    options += [f"--only={','.join(arguments.only)}"] if arguments.only else []
    options += [f"--timeout={arguments.timeout:g}"] if arguments.timeout is not None else []
    options += [f"--max-output={arguments.max_output}"] if arguments.max_output != ANSWER_LENGTH else []
    command = [*start, f"--repo={root}", *options]
    file, text, verify = snippet(arguments.client, command)
    return Report(
        command="areal-mcp config",
        dry_run=arguments.dry_run,
        changing=False,
        text=f"{text}\nPut it into {file}; then `{verify}` shows it.\n",
        data={
            "client": arguments.client,
            "file": file,
            "snippet": text,
            "server": {"name": SERVER, "command": command},
            "verify": verify,
        },
    )


def snippet(client: str, command: Sequence[str]) -> tuple[str, str, str]:
    """Return the file that a client reads, what to write there, and a command of the client that checks it."""
    document: dict[str, Any]
    if client == "claude":
        server: dict[str, Any] = {"type": "stdio", "command": command[0], "args": list(command[1:])}
        added = shlex.join(["claude", "mcp", "add-json", SERVER, json.dumps(server)])
        file, document = f".mcp.json of the project, or run: {added}", {"mcpServers": {SERVER: server}}
    elif client == "opencode":
        server = {"type": "local", "command": list(command), "enabled": True, "timeout": _START_SECONDS * 1000}
        file = "opencode.json of the project"
        document = {"$schema": "https://opencode.ai/config.json", "mcp": {SERVER: server}}
    else:
        listed = ", ".join(json.dumps(word) for word in command[1:])  # JSON's quotes are TOML's too
        longest = max(tool.seconds for tool in TOOLS)  # Codex gives a call one minute by default
        text = (
            f"[mcp_servers.{SERVER}]\ncommand = {json.dumps(command[0])}\nargs = [{listed}]\n"
            f"startup_timeout_sec = {_START_SECONDS}\ntool_timeout_sec = {longest:.0f}\n"
        )
        return "~/.codex/config.toml", text, "codex mcp list"
    return file, json.dumps(document, indent=2) + "\n", f"{client} mcp list"
