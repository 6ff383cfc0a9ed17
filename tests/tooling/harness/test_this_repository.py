"""This repository's own skills and experts: in step, true, runnable, and seen by the real clients."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from areal.cli.main import main as areal
from tooling.harness.__main__ import main
from tooling.harness.checks.commands import SHELLS, joined
from tooling.harness.checks.references import mentions
from tooling.harness.context import open_context
from tooling.new.command_line import main as areal_new

ROOT = Path(__file__).resolve().parents[3]
EXPERTS = {"algorithm", "archon", "code-verifier", "environments", "fsdp", "harness", "launcher", "megatron", "planner"}
EXPERTS |= {"simple-code-reviewer"}
CLIENTS = Path(os.environ.get("AREAL_AGENT_CLIS", ROOT / ".areal-cache" / "agent-clis" / "node_modules" / ".bin"))


def test_the_copies_are_in_step(capsys):
    assert main(["sync", "--check", "--repo", str(ROOT)]) == 0, capsys.readouterr().out


def test_every_expert_of_the_harness_is_there_and_only_the_verifier_runs_anything():
    experts = {expert.name: expert for expert in open_context(ROOT).sources.experts}
    assert experts.keys() >= EXPERTS
    assert {name for name, expert in experts.items() if expert.scope == "run"} == {"code-verifier"}


def blocks_of(name: str) -> list[str]:
    """The command lines of a skill's first block."""
    page = next(skill.page for skill in open_context(ROOT).sources.skills if skill.name == name)
    code = [one for one in mentions(page.body, page.body_line) if one.kind == "code" and one.language in SHELLS]
    first = [one for number, one in enumerate(code) if one.line == code[0].line + number]
    return [text for _, text in joined((one.line, one.text) for one in first)]


@pytest.fixture
def copy(tmp_path):
    """The repository's files in a fresh one, so that commands may write."""
    target = tmp_path / "areal"
    for path in open_context(ROOT).files:
        if path.split("/")[0] in {".areal", "areal", "docs", "templates", "pyproject.toml"}:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target / path)
    rows = [{"question": "Two plus two?", "answer": "4"}, {"question": "Three plus one?", "answer": "4"}]
    (target / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(target)], check=True)
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("add-dataset", marks=pytest.mark.exhaustive),
        pytest.param("add-reward", marks=pytest.mark.exhaustive),
        "add-workflow",
    ],
)
def test_the_commands_of_a_skill_do_what_they_say(name, copy, run_command):
    lines = [shlex.split(line, comments=True) for line in blocks_of(name)]
    assert len(lines) >= 3
    for program, *words in lines:
        done = run_command({"areal": areal, "areal-new": areal_new}[program], words, cwd=copy)
        assert done.code == 0, f"{program} {words}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("title", ["Claude Code", "Codex", "OpenCode"])
def test_the_real_client_sees_exactly_the_sources(title):
    program = {"Claude Code": "claude", "Codex": "codex", "OpenCode": "opencode"}[title]
    if shutil.which(program, path=str(CLIENTS)) is None:
        pytest.skip(f"no {program} in {CLIENTS.name}: run `bash scripts/setup_agent_clis.sh`, or set AREAL_AGENT_CLIS")
    from tooling.harness.clients import ask

    context = open_context(ROOT)
    seen = ask(program, (CLIENTS / program).absolute(), ROOT)
    assert seen.skills == {skill.name for skill in context.sources.skills}
    assert seen.experts == {expert.name for expert in context.sources.experts}
