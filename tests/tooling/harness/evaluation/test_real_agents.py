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

PROMPT = "Greet Ann; $(touch owned)"


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


def program(name):
    """The agent as `--agent NAME` starts it."""
    if shutil.which(name, path=str(CLIENTS)) is None:
        pytest.skip(f"no {name} here: run `bash scripts/setup_agent_clis.sh`, or set AREAL_AGENT_CLIS")
    return command_of(name, CLIENTS)


def asked(model):
    """Everything that the model was shown."""
    return json.dumps(model.requests)


@pytest.mark.slow
def test_claude_code_gets_the_prompt_and_may_write(workspace, monkeypatch):
    words = program("claude")
    given = {"file_path": str(workspace / "greeting.txt"), "content": "hello Ann\n"}
    with scripted_model("Write", given) as model:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.address)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "scripted")
        monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        made = attempt(words, PROMPT, workspace, seconds=90)
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["result"] == "Done."
    assert PROMPT in asked(model)
    assert sorted(path.name for path in workspace.iterdir()) == [".git", "greeting.txt"]
    assert (workspace / "greeting.txt").read_text(encoding="utf-8") == "hello Ann\n"


@pytest.mark.slow
def test_codex_gets_the_prompt_and_may_write_and_commit(workspace):
    who = "git -c user.name=A -c user.email=a@example.org"
    given = {"cmd": f"echo hello Ann > greeting.txt && git add --all && {who} commit -qm 'docs: greet'"}
    words = program("codex")
    with scripted_model("exec_command", given) as model:
        provider = f'{{name="scripted", base_url="{model.address}/v1", wire_api="responses"}}'
        settings = ["model_provider=scripted", f"model_providers.scripted={provider}"]
        settings.append("features.enable_request_compression=false")
        options = [word for setting in settings for word in ("-c", setting)]
        made = attempt((*words, "-m", "scripted", *options), PROMPT, workspace, seconds=90)
    assert made.exit_code == 0, made.output
    assert PROMPT in asked(model)
    assert sorted(path.name for path in workspace.iterdir()) == [".git", "greeting.txt"]
    log = subprocess.run(["git", "log", "--format=%s"], cwd=workspace, capture_output=True, text=True, check=False)
    assert log.stdout == "docs: greet\n", made.output


@pytest.mark.slow
def test_opencode_gets_the_prompt_and_may_write(workspace, monkeypatch):
    words = program("opencode")
    given = {"filePath": str(workspace / "greeting.txt"), "content": "hello Ann\n"}
    with scripted_model("write", given) as model:
        options = {"baseURL": f"{model.address}/v1", "apiKey": "scripted"}
        models = {"scripted": {"name": "Scripted", "tool_call": True}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Scripted", "options": options, "models": models}
        settings = {
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "provider": {"scripted": provider},
        }
        monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", json.dumps(settings))
        monkeypatch.setenv("OPENCODE_DISABLE_AUTOUPDATE", "1")
        made = attempt(words, PROMPT, workspace, seconds=110)
    assert made.exit_code == 0, made.output
    assert PROMPT in asked(model)
    assert (workspace / "greeting.txt").is_file(), made.output
    assert (workspace / "greeting.txt").read_text(encoding="utf-8") == "hello Ann\n"


def test_the_prompt_stands_behind_no_option_that_would_swallow_it():
    """`--allowedTools Bash PROMPT` makes the prompt a tool, which a program notices only when it runs."""
    assert AGENTS["claude"][-1] == "-p"
    assert all(words[0] == name for name, words in AGENTS.items())
