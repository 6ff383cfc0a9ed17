"""Pages that researchers read: every block is checked, and every block that can run here runs as it stands."""

from __future__ import annotations

import sys

import pytest

from areal.api.errors import ArealError
from tests.support.page_blocks import blocks_of, check, check_command, commands, prepare, run
from tooling.cli.errors import ToolError

PAGES = (
    "docs/algorithms.md",
    "docs/debugging.md",
    "docs/evaluation.md",
    "docs/learn/first-run.md",
    "docs/learn/own-architecture.md",
    "docs/learn/own-reward-and-environment.md",
    "docs/memory.md",
    "docs/metrics.md",
    "docs/migration.md",
    "docs/python-api.md",
    "docs/quickstart.md",
    "docs/rewards.md",
    "docs/rl-configuration.md",
    "docs/trackers.md",
    "docs/training.md",
)
NOT_RUN: dict[str, int] = {"docs/learn/own-architecture.md": 2, "docs/migration.md": 3}
"""Page to the number of its blocks that cannot run here; each says why."""


@pytest.fixture(params=PAGES)
def page(request):
    return request.param


@pytest.mark.sample(5)
def test_every_block_of_a_page_is_accepted(page, tmp_path, monkeypatch):
    blocks = blocks_of(page)
    assert blocks, f"{page} has no blocks"
    prepare(blocks, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    try:
        for block in blocks:
            try:
                check(block, tmp_path)
            except Exception as error:
                raise AssertionError(f"{block.place}: {error}\n{block.text}") from error
    finally:
        for name in set(sys.modules) - before:
            if not name.startswith(("areal", "torch", "numpy")) and (tmp_path / f"{name}.py").is_file():
                del sys.modules[name]


def test_what_is_not_run_is_listed_with_its_reason():
    found = [block for page in PAGES for block in blocks_of(page) if block.word in {"not run", "not checked"}]
    assert all(len(block.value.split()) >= 3 for block in found), "a reason has at least three words"
    assert {page: number for page in PAGES if (number := sum(b.page == page for b in found))} == NOT_RUN


def test_wrong_commands_and_settings_are_found(tmp_path):
    prepare([], tmp_path)
    example = "examples/math/arithmetic_grpo.yaml"
    right = commands(
        f"OMP_NUM_THREADS=1 areal train {example} \\\n  actor.lr=1e-5 --dry-run  # says all\ncd runs | head"
    )
    assert [words[0] for words in right] == ["areal", "cd", "head"]
    check_command(right[0], tmp_path)
    for wrong in (
        f"areal train {example} --dryrun",
        f"areal train {example} actor.learning_rate=1",
        f"areal launch --ranks 2 -- areal train {example} actor.learning_rate=1",
        "areal trian run.yaml",
        "arael train run.yaml",
        "areal-new rewrd my-score",
        "areal-new reward my-score --stile exact",
        "bash scripts/no_such_script.sh",
    ):
        with pytest.raises(
            (AssertionError, ArealError, ToolError), match=r"learning_rate|dryrun|trian|arael|no_such|rewrd|stile"
        ):
            check_command(commands(wrong)[0], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_a_page_runs_as_it_stands(page, tmp_path):
    blocks = blocks_of(page)
    prepare(blocks, tmp_path)
    for block in blocks:
        if block.runs:
            problem = run(block, tmp_path)
            assert problem == ""
