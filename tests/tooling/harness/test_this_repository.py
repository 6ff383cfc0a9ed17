"""This repository's own skills and experts: in step, true, and seen by the real clients."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tooling.harness.context import open_context

ROOT = Path(__file__).resolve().parents[3]
EXPERTS = {
    "algorithm",
    "archon",
    "code-verifier",
    "environments",
    "fsdp",
    "harness",
    "launcher",
    "megatron",
    "planner",
    "runs",
}
EXPERTS |= {"simple-code-reviewer"}
CLIENTS = Path(os.environ.get("AREAL_AGENT_CLIS", ROOT / ".areal-cache" / "agent-clis" / "node_modules" / ".bin"))


def test_every_expert_of_the_harness_is_there_and_only_the_verifier_runs_anything():
    experts = {expert.name: expert for expert in open_context(ROOT).sources.experts}
    assert experts.keys() >= EXPERTS
    assert {name for name, expert in experts.items() if expert.scope == "run"} == {"code-verifier"}


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_what_is_said_of_ours_next_to_other_experts_leads_to_the_place_that_shows_it():
    page = ROOT / "docs" / "experts-compared.md"
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        place = page.parent / path
        assert place.is_file(), target
        assert not anchor or anchor in anchors(place), target
    assert anchors(page) >= EXPERTS - {"environments", "harness", "runs"}  # those have no counterpart, and a paragraph


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
