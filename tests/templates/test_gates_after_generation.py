"""After `areal-new` the gates of this repository pass as it is: nothing that is derived from code has gone stale.

What no other test of templates looks at: the checklists of dependencies, the architecture test, and the tests that count
what is registered. Each kind is generated in a clone of the last commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = {
    "reward": ("reward", "zebra_reward"),
    "dataset": ("dataset", "zebra_rows"),
    "workflow": ("workflow", "zebra_talk", "--style", "tool_use"),
    "environment": ("environment", "zebra_game"),
    "template": ("template", "zebra_kind", "--folder", "areal/reward"),
    "model": ("model", "granite"),
}
GATES = (
    ("-c", "from tooling.upgrade.commands.audit import main; raise SystemExit(main(['--check']))"),
    ("-m", "tooling.harness", "sync", "--check"),
    ("-m", "tooling.harness", "check"),
)
TESTS = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive"),
    *("tests/test_architecture.py", "tests/areal/porting/test_verify.py"),
)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", UNITS)
def test_the_gates_pass_as_they_are_after_a_unit_is_generated(kind, tmp_path, own_processes):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), str(clone)], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words):
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)

    (clone / ".venv").symlink_to(sys.prefix)  # the audit reads the releases that are installed there
    said = [run(*gate).stdout for gate in GATES]
    assert "torch" in said[0]
    made = run("-m", "tooling.new", *UNITS[kind], "--no-test")
    assert made.returncode == 0, made.stdout + made.stderr
    assert [run(*gate).stdout for gate in GATES] == said
    done = run(*TESTS)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-2000:]}"
