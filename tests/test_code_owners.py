"""`.github/CODEOWNERS` says of each file what `owns` of the experts' pages says, read as the last that matches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tooling.harness.context import open_context
from tooling.harness.globs import matches
from tooling.harness.ownership.owners import owners_of

ROOT = Path(__file__).resolve().parents[1]


def test_the_file_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/generate_code_owners.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_the_last_pattern_that_matches_names_the_expert() -> None:
    rows = [line.split() for line in (ROOT / ".github/CODEOWNERS").read_text().splitlines() if line[:1] == "/"]
    context = open_context(ROOT)
    owners = owners_of(context.sources.experts)
    owned = [path for path in context.files if owners.of(path)]
    assert len(owned) > 1000
    for path in owned:
        team = next(team for pattern, team in reversed(rows) if matches(path, pattern.removeprefix("/")))
        assert team.rpartition("/")[2] in owners.of(path), path
