"""The agent programs themselves, told what `areal-mcp config` prints, start the server and see its tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tooling.mcp.__main__ import main
from tooling.mcp.tools.table import offered

ROOT = Path(__file__).resolve().parents[3]
CLIENTS = Path(os.environ.get("AREAL_AGENT_CLIS", ROOT / ".areal-cache" / "agent-clis" / "node_modules" / ".bin"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def told(original, tmp_path, capsys):
    """told(client): a run of a client that was configured, in a project and a home of its own."""
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".codex").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(project)], check=True)

    def configured(client):
        if shutil.which(client, path=str(CLIENTS)) is None:
            hint = "run `bash scripts/setup_agent_clis.sh`, or set AREAL_AGENT_CLIS"
            pytest.skip(f"no {client} in {CLIENTS.name}: {hint}")
        capsys.readouterr()
        assert main(["config", client, "--repo", str(original), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)

        def run(*words, answer=subprocess.PIPE, standard_input=None):
            path = os.pathsep.join([str(CLIENTS), os.environ["PATH"]])
            environment = {"PATH": path, "HOME": str(home), "CODEX_HOME": str(home / ".codex"), "NO_COLOR": "1"}
            return subprocess.Popen(
                [str(CLIENTS / client), *words],
                cwd=project,
                env=environment,
                stdin=standard_input or subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                text=True,
            )

        return document, project, home, run

    return configured


def test_claude_code_connects(told):
    document, _, _, run = told("claude")
    server = json.loads(document["snippet"])["mcpServers"]["areal"]
    with run("mcp", "add-json", "areal", json.dumps(server)) as adding:
        adding.communicate(timeout=120)
    assert adding.returncode == 0
    with run("mcp", "list") as listing:
        output, _ = listing.communicate(timeout=120)
    [line] = [line for line in output.splitlines() if line.startswith("areal:")]
    assert line.endswith("Connected")


def test_opencode_connects(told, tmp_path):
    document, project, _, run = told("opencode")
    (project / "opencode.json").write_text(document["snippet"], encoding="utf-8")
    shown = tmp_path / "shown.txt"
    with shown.open("w", encoding="utf-8") as stream, run("mcp", "list", answer=stream) as listing:  # cut in a pipe
        listing.wait(timeout=120)
    assert "areal" in shown.read_text(encoding="utf-8")
    assert "connected" in shown.read_text(encoding="utf-8")
    assert "failed" not in shown.read_text(encoding="utf-8")


def test_codex_sees_every_tool(told):
    """Its app server is asked, since nothing else of it starts a server without a model."""
    document, _, home, run = told("codex")
    (home / ".codex" / "config.toml").write_text(document["snippet"], encoding="utf-8")
    asked = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "test", "version": "1"}}},
        {"method": "initialized"},
        {"id": 2, "method": "mcpServerStatus/list", "params": {}},
    ]
    with run("app-server", standard_input=subprocess.PIPE) as server:
        for message in asked:
            server.stdin.write(json.dumps(message) + "\n")
        server.stdin.flush()
        answer = next(found for found in map(json.loads, server.stdout) if found.get("id") == 2)
        server.stdin.close()
        server.kill()
    [seen] = [one for one in answer["result"]["data"] if one["name"] == "areal"]
    assert set(seen["tools"]) == {*offered(writes=False).tools, "more"}
    assert {"skill://add-reward", "expert://fsdp"} <= {one["uri"] for one in seen["resources"]}
