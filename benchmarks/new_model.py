"""CPU seconds of `areal-new model TYPE`, whole command and all of its processes, for one or more revisions in turn.

    python benchmarks/new_model.py [TYPES ...] [--revisions main HEAD] [--json]

Each revision is cloned into a scratch folder, in which every family is generated, tested and removed again. CPU seconds
(user and system) of the command and everything that it starts are measured, since wall time depends on what else the
machine does; revisions take turns, type by type.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPES = (
    *("llama", "olmo2", "gemma2", "deepseek_v3", "mixtral", "gpt_oss", "mamba2", "qwen3_next", "phi3", "gpt2"),
    *("bloom", "glm4_moe", "zamba2", "minimax"),
)
"""Of different kinds: dense, experts, latent attention, states, biases in place of rotations; the last two refused."""
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


def clone(revision: str, folder: Path) -> Path:
    """Return a clone of a revision that uses this repository's interpreter."""
    subprocess.run(["git", "clone", "-q", "--shared", os.fspath(ROOT), os.fspath(folder)], check=True)
    full = subprocess.run(["git", "rev-parse", revision], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    subprocess.run(["git", "checkout", "-q", full.strip()], cwd=folder, check=True)
    (folder / ".git/info/exclude").write_text(".venv\n")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    return folder


def measure(model_type: str, folder: Path) -> tuple[float, str]:
    """Return the CPU seconds of one command and how it ended; the folder is as before afterwards."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "tooling.new", "model", model_type, "--json"],
        cwd=folder,
        env=os.environ | QUIET,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["git", "reset", "-q", "--hard"], cwd=folder, check=True)
    subprocess.run(["git", "clean", "-qfd"], cwd=folder, check=True)
    outcome = {0: "proven", 8: "refused"}.get(done.returncode, f"exit {done.returncode}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, outcome


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", default=TYPES, metavar="TYPES", help="model types; a mixture by default")
    parser.add_argument("--revisions", nargs="+", default=["HEAD"], metavar="REVISION", help="commits to compare")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found: dict[str, dict[str, tuple[float, str]]] = {}
    scratch = Path(tempfile.mkdtemp(prefix="areal-new-model-"))
    try:
        folders = {name: clone(name, scratch / str(place)) for place, name in enumerate(options.revisions)}
        for model_type in options.types:
            found[model_type] = {name: measure(model_type, folder) for name, folder in folders.items()}
            print(f"{model_type}: {found[model_type]}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if options.json:
        print(json.dumps(found))
        return
    print("| type | outcome | " + " | ".join(f"CPU s, {name}" for name in options.revisions) + " |")
    print("|---|---|" + "---|" * len(options.revisions))
    for model_type, each in found.items():
        outcomes = " / ".join(dict.fromkeys(outcome for _, outcome in each.values()))
        print(f"| `{model_type}` | {outcomes} | " + " | ".join(f"{seconds:.1f}" for seconds, _ in each.values()) + " |")
    medians = [statistics.median(each[name][0] for each in found.values()) for name in options.revisions]
    print("| median | | " + " | ".join(f"{median:.1f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
