"""The command line itself: lists, help, errors, and start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.harness.__main__ import main

ROOT = Path(__file__).resolve().parents[3]


def test_the_list_says_where_everything_goes(project):
    code, document = project.run("list")
    assert code == 0
    [skill], [expert] = document["skills"], document["experts"]
    assert skill["copies"] == [".agents/skills/greet/SKILL.md", ".claude/skills/greet/SKILL.md"]
    assert expert["copies"] == [".claude/agents/words.md", ".codex/agents/words.toml", ".opencode/agents/words.md"]
    assert 0 < skill["tokens"] < 50
    assert expert["scope"] == "read"


@pytest.mark.parametrize("words", [["sink"], ["sync", "--chek"], ["sync", "--check", "--overwrite"], []])
def test_wrong_arguments_say_what_to_do(words, capsys):
    assert main([*words, "--json"]) == 2
    assert '"code": "usage"' in capsys.readouterr().out


def test_outside_of_a_repository_there_is_an_answer_too(tmp_path, capsys):
    assert main(["list", "--repo", str(tmp_path), "--json"]) == 2
    assert "is not inside a git repository" in capsys.readouterr().out


def test_doctor_says_what_is_behind_and_which_clients_were_not_asked(project, monkeypatch):
    git = Path(subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip())
    only = project.root.parent / "bin"
    only.mkdir()
    (only / "git").symlink_to(git)
    monkeypatch.setenv("PATH", os.fspath(only))
    code, document = project.run("doctor")
    assert code == 10
    states = {row["what"]: row["state"] for row in document["results"]}
    assert states["copies"] == "wrong"
    assert {states[client] for client in ("Claude Code", "Codex", "OpenCode")} == {"unasked"}
    project.run("sync")
    assert project.run("doctor")[0] == 0


def test_doctor_finds_a_client_that_answers_something_else(project):
    project.run("sync")
    folder = project.root.parent / "bin"
    folder.mkdir()
    for name, answer in {"claude": "{}", "codex": "[]", "opencode": "no json"}.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n", encoding="utf-8")
        program.chmod(0o755)
    code, document = project.run("doctor", "--clients", str(folder))
    rows = {row["what"]: row for row in document["results"]}
    assert code == 10
    assert [rows[client]["state"] for client in ("Claude Code", "Codex", "OpenCode")] == ["wrong"] * 3
    assert rows["Codex"]["missing"] == ["greet", "words"]


def test_help_loads_neither_yaml_nor_git():
    code = "import sys\nfrom tooling.harness.__main__ import main\nmain(['--help'])\n"
    code += "print(sorted({'yaml', 'git'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "exit codes:" in done.stdout
