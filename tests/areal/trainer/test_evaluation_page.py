"""docs/evaluation.md: its commands are commands, its YAML is configuration, and all of it runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from areal.cli.main import parse
from areal.trainer.configuration.source import load_config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "evaluation.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_command_of_the_page_is_understood():
    lines = [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines()]
    assert len(lines) >= 7
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "areal"
        assert parse(words[1:]).command == words[1]


def test_every_section_of_the_page_is_accepted(tmp_path):
    for number, block in enumerate(blocks("yaml")):
        (tmp_path / f"{number}.yaml").write_text(block)
        config = load_config(tmp_path / f"{number}.yaml").config
        assert config.eval_sets or config.early_stop is not None


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_page_runs_as_it_stands(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(blocks("bash"))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compared with runs/doc/sft/final" in done.stdout
    assert (tmp_path / "models" / "arithmetic" / "model.safetensors").is_file()
