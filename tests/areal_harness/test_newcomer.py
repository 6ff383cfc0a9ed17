"""From the wheel, in an empty folder, to a model trained with a reward of one's own: the five commands of the pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/learn/first-run.md",
    "docs/projects.md",
    "docs/zh/learn/first-run.md",
    "docs/zh/projects.md",
)
FIVE = re.compile(r"^```bash\n(pip install 'areal\[train\]'\n.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    found = FIVE.search((ROOT / page).read_text(encoding="utf-8"))
    assert found, f"{page} does not say how to begin"
    return found[1].splitlines()


def test_every_page_says_the_same_five_commands() -> None:
    said = {page: commands(page) for page in PAGES if (ROOT / page).exists()}
    assert len(said["README.md"]) == 5
    assert {page: found for page, found in said.items() if found != said["README.md"]} == {}


@pytest.fixture
def newcomer(tmp_path, wheel_file):
    """A folder, and what runs a command line in it with an environment activated that has no areal.

    Dependencies are not downloaded again: they are links to those of this environment, which pip finds installed.
    """
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    # torch needs a newer setuptools than Python 3.11 brings along; pip would replace it.
    subprocess.run([tmp_path / "env/bin/pip", "uninstall", "-q", "-y", "setuptools"], check=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "areal" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    (tmp_path / "env/bin/ruff").symlink_to(Path(sys.executable).with_name("ruff"))
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment |= {"PATH": f"{tmp_path / 'env/bin'}:{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
    environment["PIP_FIND_LINKS"] = str(wheel_file.parent)

    def play(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{line} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return folder, play


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_five_commands_lead_from_the_wheel_to_a_reward_that_rose(newcomer):
    folder, play = newcomer
    install, init, reward, train, report = commands("README.md")

    assert "Successfully installed areal-" in play(install)
    where = play("python -c 'import areal, sys; print(areal.__file__); print(sys.prefix)'").split()
    assert where[0].startswith(where[1]), "areal is that of the wheel"
    play(init)
    assert "proven" in play(reward)
    play(train)
    said = play(report)

    run = folder / "runs/digits/first"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert sum(rewards[:5]) / 5 < 0.2
    # 0.7 to 0.97: how far 120 steps lead depends on how rollouts and updates overlap.
    assert sum(rewards[-5:]) / 5 > 0.5
    assert re.search(r"^reward .* rises$", said, re.MULTILINE)
    assert re.search(r"reward my_score", said)
    assert list((run / "final").glob("*.safetensors"))
