"""`areal-mcp` itself: start-up, lists, configuration, errors."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tooling.mcp.__main__ import main

HEAVY = {"anyio", "copier", "git", "jsonschema", "libcst", "mcp", "mcp_types", "pydantic", "rich", "torch", "yaml"}
READ = {"pydantic", "yaml"}
"""What reading settings and templates takes."""


def answer(capsys, *words):
    capsys.readouterr()
    code = main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return document


def test_little_is_loaded_to_print_something():
    """Parsers of commands may need the settings they read; nothing needs the SDK."""
    program = (
        "import sys\nfrom tooling.mcp.__main__ import main\n"
        f"heavy, read = {HEAVY!r}, {READ!r}\nmain(['--help'])\nmain(['config', 'codex'])\n"
        "first = heavy & set(sys.modules)\nmain(['--list'])\nthen = (heavy - read) & set(sys.modules)\n"
        "sys.stderr.write(f'LOADED {sorted(first)} {sorted(then)}')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.rpartition("LOADED ")[2] == "[] []"
    assert "exit codes:" in done.stdout
    assert "--allow-writes" in done.stdout


def test_the_list_says_what_is_offered_and_what_is_not(capsys):
    document = answer(capsys, "--list")
    tools = {tool["name"]: tool for tool in document["tools"]}
    assert tools["new_plan"]["offered"]
    assert not tools["new_apply"]["offered"]
    assert "--allow-writes" in tools["new_apply"]["withheld"]
    assert document["tokens"] == sum(tool["tokens"] for tool in tools.values() if tool["offered"])
    everything = answer(capsys, "--list", "--allow-writes")
    assert all(tool["offered"] for tool in everything["tools"])
    assert everything["tokens"] < 8_600, "an agent that sees all tools does not read long"
    tools = {tool["name"]: tool for tool in answer(capsys, "--list", "--only", "commit,pr")["tools"]}
    assert {name.partition("_")[0] for name, tool in tools.items() if tool["offered"]} == {"commit", "more", "pr"}
    assert tools["new_kinds"]["withheld"] == "this server was started with --only commit,pr"


@pytest.mark.sample(1)
@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_a_configuration_starts_this_server_and_is_not_written(client, original, capsys, git, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    document = answer(capsys, "config", client, "--repo", str(original / "areal"), "--allow-writes", "--dry-run")
    parsed = (tomllib if client == "codex" else json).loads(document["snippet"])
    server = parsed[{"claude": "mcpServers", "codex": "mcp_servers", "opencode": "mcp"}[client]]["areal"]
    command = server["command"] if client == "opencode" else [server["command"], *server["args"]]
    assert command == document["server"]["command"]
    assert command[-2:] == [f"--repo={original}", "--allow-writes"]
    assert git(original, "status", "--porcelain") == ""
    assert not (tmp_path / "home").exists()
    if client == "codex":
        done = subprocess.run([*command, "--list", "--json"], capture_output=True, text=True, check=True, cwd="/")
        assert json.loads(done.stdout)["ok"]
    assert main(["config", client, "--repo", str(original)]) == 0
    assert f"{client} mcp list" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["config"], "which client?"),
        (["config", "emacs"], "which client?"),
        (["serve"], "is not a command"),
        (["config", "codex", "--list"], "config does nothing else"),
        (["--dry-run"], "a server does not take it"),
        (["--list", "--timeout", "0"], "is not a time to wait"),
        (["--list", "--max-output", "5"], "is too little"),
        (["--list", "--only", "new,comit"], "there are no such tools"),
        (["--frobnicate"], "unknown option"),
        (["--list", "--self-test"], "not allowed with"),
        (["config", "codex", "--repo", "/"], "is not inside a git repository"),
    ],
)
def test_wrong_arguments_say_what_to_do(capsys, words, message):
    document = answer(capsys, *words)
    assert document["exit_code"] == 2
    assert message in document["error"]
    assert document["fix"]


def test_a_person_at_a_terminal_is_told_what_this_is(original, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["--repo", str(original)]) == 2
    printed = capsys.readouterr()
    assert "areal-mcp config CLIENT" in printed.err
    assert printed.out == ""


def test_outside_of_a_repository_no_server_starts(tmp_path, run_command):
    done = run_command(main, ["--repo", tmp_path])
    assert (done.code, done.stdout) == (2, "")
    assert "is not inside a git repository" in done.stderr


def test_without_the_sdk_the_message_says_how_to_get_it(original, tmp_path):
    """A Python that sees this package and nothing else."""
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tooling.mcp.__main__ import main; sys.exit(main())"
    package = str(Path(__file__).resolve().parents[3])
    words = [sys.executable, "-S", "-I", "-c", program, package, "--repo", str(original), "--self-test", "--json"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "pip install 'areal[mcp]'" in json.loads(done.stdout)["fix"]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_self_test_finds_nothing_wrong_here(original, capsys):
    document = answer(capsys, "--self-test", "--repo", str(original))
    assert document["ok"], document
    assert [row for row in document["results"] if not row["right"]] == []
    assert {"tools", "pages", "prompts", "review", "commit_check"} <= {row["what"] for row in document["results"]}
