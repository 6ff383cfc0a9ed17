"""The real agent programs, started as `eval` starts them, with a model that answers from a script.

It shows that the command lines are right: the prompt arrives, the agent may write without asking, and what it wrote is
judged. Nothing leaves this machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tooling.harness.evaluation.agents import AGENTS, attempt, command_of

ROOT = Path(__file__).resolve().parents[4]
CLIENTS = Path(os.environ.get("AREAL_AGENT_CLIS", ROOT / ".areal-cache" / "agent-clis" / "node_modules" / ".bin"))


def scripted_model(*arguments):
    """The helper beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location("scripted_model", Path(__file__).with_name("scripted_model.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ScriptedModel(*arguments)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty repository, and a home without settings."""
    root = tmp_path / "workspace"
    (tmp_path / "home").mkdir()
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.mark.slow
def test_claude_code_gets_the_prompt_and_may_write(workspace, monkeypatch):
    if shutil.which("claude", path=str(CLIENTS)) is None:
        pytest.skip("no claude here: run `bash scripts/setup_agent_clis.sh`, or set AREAL_AGENT_CLIS")
    given = {"file_path": str(workspace / "greeting.txt"), "content": "hello Ann\n"}
    with scripted_model("Write", given) as model:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.address)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "scripted")
        monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        made = attempt(command_of("claude", CLIENTS), "Greet Ann; $(touch owned)", workspace, seconds=90)
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["result"] == "Done."
    assert "Greet Ann; $(touch owned)" in json.dumps(model.requests[0]["messages"])
    assert [path.name for path in sorted(workspace.iterdir())] == [".git", "greeting.txt"]
    assert (workspace / "greeting.txt").read_text(encoding="utf-8") == "hello Ann\n"


def test_the_prompt_stands_behind_no_option_that_would_swallow_it():
    """`--allowedTools Bash PROMPT` makes the prompt a tool, which a program notices only when it runs."""
    assert AGENTS["claude"][-1] == "-p"
    assert all(words[0] == name for name, words in AGENTS.items())
