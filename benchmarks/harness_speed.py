"""What `areal --help`, `areal-commit` and `areal-review` cost, next to starting Python and a linter on the same files.

    python benchmarks/harness_speed.py [--runs 7] [--repository PATH --commit REV] [--json]

The change is made up: 1,000 added lines in 40 modules of a package with 300; or it is a commit of a repository. One for
`areal-commit suggest` is staged in a clone of this repository, with its table of scopes and its history. Sides run in
turn. Processor seconds are those of the process and its children: they hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent
IDENTITY = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")
BODY = "".join(f"def scale_{number}(x, mask):\n    y = x * {number}\n    return y\n\n\n" for number in range(25))


def made_up(folder: Path) -> None:
    """Make a repository whose newest commit adds 1,000 lines."""
    files = {f"areal/m{number}.py": BODY for number in range(300)} | {"areal/__init__.py": ""}
    changed = {f"areal/m{number}.py": BODY.replace("return y", "return y + 1") for number in range(40)}
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    for texts in (files, changed):
        for name, text in texts.items():
            place = folder / name
            place.parent.mkdir(exist_ok=True)
            place.write_text(text, encoding="utf-8")
        subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
        subprocess.run(["git", *IDENTITY, "commit", "-q", "-m", "feat: scale"], cwd=folder, check=True)


def staged(folder: Path) -> None:
    """Clone this repository, and stage a change of one module."""
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
    changed = folder / "areal/api/config.py"
    changed.write_text(f"{changed.read_text(encoding='utf-8')}\n\nMOST_FIELDS = 1000\n", encoding="utf-8")
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)


def once(command: list[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of one run."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, commit: str, clone: Path, runs: int) -> dict[str, dict[str, float]]:
    """Medians of each side."""
    listed = ["git", "diff-tree", "-r", "--no-commit-id", "--name-only", "--diff-filter=AM", commit, "--", "*.py"]
    files = subprocess.run(listed, cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    files = [name for name in files if (folder / name).is_file()]
    sides = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "areal --help": [str(BIN / "areal"), "--help"],
        "areal-commit suggest": [str(BIN / "areal-commit"), "suggest", "--repo", str(clone)],
        "areal-commit check": [str(BIN / "areal-commit"), "check", "--message", "fix(models): keep the last norm"],
        "ruff check of the changed files": [str(BIN / "ruff"), "check", "--isolated", "--no-cache", *files],
        "areal-review": [str(BIN / "areal-review"), "--commit", commit, "--json"],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, command in sides.items():
            times[name].append(once(command, folder))
    unit = statistics.median(cpu for _, cpu in times["python -c pass"])
    return {
        name: {
            "wall_s": round(statistics.median(wall for wall, _ in pairs), 3),
            "processor_s": round(statistics.median(cpu for _, cpu in pairs), 3),
            "of_python": round(statistics.median(cpu for _, cpu in pairs) / unit, 1),
        }
        for name, pairs in times.items()
    }


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--repository", type=Path, help="instead of the made-up one")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, clone = arguments.repository or Path(temporary, "made-up"), Path(temporary, "clone")
        staged(clone)
        if arguments.repository is None:
            made_up(folder)
        results = measure(folder, arguments.commit, clone, arguments.runs)
    if arguments.json:
        print(json.dumps(results))
        return 0
    load = "/".join(f"{value:.0f}" for value in os.getloadavg())
    print(f"{'':<34}{'wall s':>8}{'processor s':>13}{'python -c pass = 1':>20}   (load average {load})")
    for name, result in results.items():
        print(f"{name:<34}{result['wall_s']:>8.3f}{result['processor_s']:>13.3f}{result['of_python']:>20.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
