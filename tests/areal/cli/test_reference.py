"""The generated reference pages: in step with the code, and complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from areal.algorithm import registry
from areal.cli.main import COMMANDS
from areal.trainer.config import PPOConfig, SFTConfig
from areal.trainer.configuration.reference import json_schema
from areal.trainer.configuration.schema import key_paths, lookup

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "generate_reference.py"


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )


@pytest.mark.exhaustive
def test_a_page_that_drifted_is_named_together_with_the_command_to_run(tmp_path):
    shutil.copytree(ROOT / "docs" / "reference", tmp_path / "docs" / "reference")
    page = tmp_path / "docs" / "reference" / "config.md"
    page.write_text(page.read_text().replace("Prompts per training step.", "Something else."))
    done = generate("--root", str(tmp_path), "--check")
    assert done.returncode == 1
    assert "docs/reference/config.md differs from the code; run `python scripts/generate_reference.py`" in done.stderr
    assert "+| `batch_size`" in done.stderr


def test_every_key_and_every_command_has_an_entry():
    config = (ROOT / "docs" / "reference" / "config.md").read_text()
    for cls in (PPOConfig, SFTConfig):
        for key in key_paths(cls):
            assert f"| `{key.rpartition('.')[2]}` |" in config, key
    commands = (ROOT / "docs" / "reference" / "cli.md").read_text()
    for name in COMMANDS:
        assert f"## areal {name}\n" in commands


def test_every_configuration_key_is_documented_where_it_stands():
    for cls in (PPOConfig, SFTConfig):
        undocumented = [key for key in key_paths(cls) if not lookup(cls, tuple(key.split("."))).doc]
        assert not undocumented


def test_the_json_schema_describes_every_block_of_an_objective_with_its_ranges():
    objective = json_schema("rl")["$defs"]["ObjectiveConfig"]["properties"]
    surrogates = {
        choice["properties"]["name"].get("const"): choice["properties"]
        for choice in objective["surrogate"]["anyOf"]
        if "properties" in choice
    }
    assert surrogates["sapo"]["tau_pos"]["exclusiveMinimum"] == 0
    assert "temperature of the gate" in surrogates["sapo"]["tau_pos"]["description"].lower()
    assert set(registry.SURROGATES) == set(surrogates) - {None}
    assert objective["kl"]["anyOf"][1]["properties"]["coef"]["minimum"] == 0


def test_the_json_schema_has_the_range_of_every_number_that_declares_one():
    definitions = json_schema("rl")["$defs"]
    assert definitions["RolloutConfig"]["properties"]["batch_size"]["minimum"] == 1
    assert definitions["TrainEngineConfig"]["properties"]["beta1"]["exclusiveMaximum"] == 1
