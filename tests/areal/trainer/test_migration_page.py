"""The page for those who come from other frameworks names keys that exist, and its configurations load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from areal.trainer.config import DPOConfig, PPOConfig, RewardModelConfig, SFTConfig
from areal.trainer.configuration.schema import lookup
from areal.trainer.configuration.source import load_config

PAGE = Path(__file__).parents[3] / "docs" / "migration.md"
KINDS = (PPOConfig, SFTConfig, DPOConfig, RewardModelConfig)
FRAMEWORKS = ("TRL", "verl", "AReaL")


def rows_of(framework):
    """Second cells of the table of a framework, as lists of keys."""
    section = PAGE.read_text().partition(f"\n## {framework}\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[1] for line in section.splitlines() if line.startswith("| ") and line.count(" | ") >= 2]
    return [re.findall(r"`([^`]+)`", cell) for cell in cells[2:]]


def exists(key):
    return any(lookup(kind, tuple(key.split("."))) is not None for kind in KINDS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_key_of_ours_exists(framework):
    rows = rows_of(framework)
    assert len(rows) > 20
    assert [key for keys in rows for key in keys if not exists(key)] == []


def test_a_key_that_does_not_exist_would_be_noticed():
    assert not exists("rollout.num_generations")
    assert not exists("objective.surrogate.epsilon")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_worked_example_is_a_configuration(framework, tmp_path):
    marked = PAGE.read_text().partition(f"<!-- worked example: {framework.lower()} -->\n```yaml\n")[2]
    path = tmp_path / "run.yaml"
    path.write_text(marked.partition("```")[0])
    config = load_config(path, []).config
    assert config.kind == "rl"
    assert config.rollout.group_size == 8
    assert config.actor.lr == pytest.approx(1e-6)
