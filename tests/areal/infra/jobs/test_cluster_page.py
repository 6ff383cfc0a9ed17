"""The page about jobs shows what the dry run prints, and its example is one."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from areal.cli.commands.launch import plan_of
from areal.infra.jobs.backend import get_backend
from areal.trainer.configuration.source import load_config

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "cluster.md"
EXAMPLE = ROOT / "examples" / "cluster" / "gsm8k_64.yaml"


@pytest.mark.parametrize("backend", ["slurm", "ray"])
def test_the_page_shows_what_the_dry_run_prints(backend):
    """AREAL_UPDATE_GOLDEN=1 writes the page; look at what git says then."""
    plan = plan_of(EXAMPLE, [f"job.backend={backend}", "job.directory=/shared/jobs"])
    plan = replace(plan, python="/shared/env/bin/python", folder="/shared/jobs/gsm8k-64")
    shown = get_backend(backend).preview(plan).strip()
    if backend == "ray":
        shown = "\n".join(line for line in shown.splitlines() if line.startswith("#") or "--node 0" in line)
    text = PAGE.read_text()
    pattern = re.compile(rf"(<!-- [\w/.]+: {backend} -->\n```\w+\n)(.*?)(```\n)", re.DOTALL)
    if os.environ.get("AREAL_UPDATE_GOLDEN"):
        text = pattern.sub(lambda found: f"{found[1]}{shown}\n{found[3]}", text)
        PAGE.write_text(text)
    assert pattern.search(text)[2].strip() == shown


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["local", "slurm", "ray"])
def test_examples_compile_for_every_backend(path, backend, tmp_path):
    words = [f"job.backend={backend}", "seed=7"]
    plan = plan_of(path, words)
    copy = tmp_path / "run.yaml"
    copy.write_text(plan.config)
    assert load_config(copy).config == load_config(path, words).config
    assert len(plan.role("trainer").processes) == load_config(path).config.archon.parallel.world_size


def test_the_job_of_the_small_example_trains_what_the_example_of_ranks_does():
    ranks, nodes = (
        yaml.safe_load((ROOT / "examples" / name).read_text())
        for name in ("math/arithmetic_archon.yaml", "cluster/arithmetic_nodes.yaml")
    )
    own = {"archon", "eval_sets", "job", "trial_name"}
    assert {key: value for key, value in nodes.items() if key not in own} == {
        key: value for key, value in ranks.items() if key not in own
    }
