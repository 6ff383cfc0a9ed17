"""Claude Code, Codex and OpenCode do a task with a tool through the gateway, and what they caused is exact.

Their prompts have 30 to 60 kB, which no model that runs here could follow: a scripted engine answers, with random
spellings of its texts. Nothing leaves the machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from serving import assert_exact, serving
from test_clients import CALL, run_client, run_long

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / ".areal-cache/agent-clis/node_modules/.bin"
TASK = "Run echo 42 and say what it printed."
END = "The program printed 42, the answer."
TOOLS = {
    "claude": ("Bash", {"command": "echo 42", "description": "Print it"}),
    "codex": ("exec_command", {"cmd": "echo 42"}),
    "opencode": ("bash", {"command": "echo 42", "description": "Print it"}),
}

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not PROGRAMS.is_dir(), reason="needs the programs: bash scripts/setup_agent_clis.sh"),
]


def rule(name):
    tool, arguments = TOOLS[name]

    def answer(prompt):
        if f'"name": "{tool}"' not in prompt:
            return "A title"
        return END if "<|tool|>" in prompt else CALL % (tool, json.dumps(arguments))

    return answer


def claude(session):
    variables = {
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "200000",
    }
    return ["-p", TASK, "--model", "areal", "--allowedTools", "Bash"], variables


def codex(session):
    provider = {
        "name": "areal",
        "base_url": session.urls.openai,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    options = [f"model_providers.areal.{key}={json.dumps(value)}" for key, value in provider.items()]
    options += ['model_provider="areal"', 'model="areal"', "model_context_window=200000"]
    flags = ["--skip-git-repo-check", "--sandbox", "danger-full-access"]
    return ["exec", *flags, *(part for option in options for part in ("-c", option)), TASK], {}


def opencode(session):
    model = {"name": "areal", "tool_call": True, "limit": {"context": 200000, "output": 4000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": session.urls.openai, "apiKey": session.key},
        "models": {"areal": model},
    }
    config = {"provider": {"areal": provider}, "permission": "allow", "autoupdate": False, "share": "disabled"}
    return ["run", TASK, "-m", "areal/areal"], {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


@pytest.mark.parametrize("start", [claude, codex, opencode], ids=lambda start: start.__name__)
def test_command_line_agents_are_one_exact_conversation(start, tmp_path):
    async def talk():
        name = start.__name__
        async with serving(rule(name)) as served:
            served.engine.context_length = 1_000_000
            arguments, variables = start(served.session)
            work = tmp_path / "work"
            work.mkdir()
            path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
            more = {"HOME": str(tmp_path), "PATH": path, **variables}
            code, output = await run_client(name, served.session, PROGRAMS / name, arguments, work, more)
            told = f"{output[-3000:]}\n{served.session.placed} {served.session.unknown} {served.session.counts}"
            assert code == 0, told
            assert END in output, told
            await served.gateway.close(served.session)
            leaves = served.session.trajectories(1.0)
            assert_exact(served.session, leaves)
            assert served.session.statistics()["exact_continuation"] == 1.0, told
            assert len(leaves) == 1, told

    run_long(talk())
