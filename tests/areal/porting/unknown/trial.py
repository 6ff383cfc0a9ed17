"""Takes invented architectures the way of a person: a folder, `areal-new model`, a loaded checkpoint; and counts.

    python -m tests.areal.porting.unknown.trial 0-17 x100-109 --repository SCRATCH [--out FILE.json] [--keep FOLDER]

Run it at the top of this repository. SCRATCH is another worktree, which it changes: each family is generated there with
the commands of that worktree, loads the folder that it was made from, and is then compared with its code on perturbed
configs by `areal.porting.verify`, which shares nothing with the analysis. Seeds with `x` must be refused.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.areal.porting.unknown.design import draw
from tests.areal.porting.unknown.modeling import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.areal.porting.unknown.design import Design

SECONDS: Final = 600
WEIGHTS: Final = """
import sys
from safetensors.torch import save_file
from areal.porting.probe.instance import build, export
from areal.porting.probe.subject import resolve
subject = resolve(sys.argv[1], trust=True)
save_file(export(build(subject, subject.raw_config)), f"{sys.argv[1]}/model.safetensors", metadata={"format": "pt"})
"""
COMPARE: Final = """
import json, sys, warnings
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging
from areal.models import from_pretrained
from areal.porting.probe.instance import build, logits
from areal.porting.probe.subject import resolve
from areal.porting.verify import VerifiedConfig, packed_logits, difference, verify
warnings.filterwarnings("ignore"); logging.set_verbosity_error(); torch.set_num_threads(1)
folder = sys.argv[1]
subject = resolve(folder, trust=True)
ours = from_pretrained(folder).eval()
theirs = build(subject, subject.raw_config)
from safetensors.torch import load_file
theirs.model.load_state_dict(load_file(f"{folder}/model.safetensors"), strict=False)
theirs.model.tie_weights()
tokens = torch.randint(3, 150, (2, 40), generator=torch.Generator().manual_seed(5))
ratio = difference(packed_logits(ours, list(tokens)), logits(theirs, tokens).flatten(0, 1))
AutoConfig.register(subject.model_type, subject.config_class)
AutoModelForCausalLM.register(subject.config_class, subject.model_class)
drop = ("model_type", "architectures", "auto_map", "transformers_version", "torch_dtype")
base = {name: value for name, value in subject.raw_config.items() if name not in drop}
found = verify(VerifiedConfig(subject.model_type, base, {}), trials=8, seed=0)
sys.stdout.write(json.dumps({"loaded": ratio, **found}) + "\\n")
"""


def prepare(design: Design, folder: Path) -> Path:
    """Write the folder of a design as a checkpoint with weights, where its code runs here."""
    write(design, folder)
    subprocess.run([sys.executable, "-c", WEIGHTS, str(folder)], check=False, capture_output=True, timeout=SECONDS)
    return folder


def attempt(name: str, folder: Path, repository: Path) -> dict[str, Any]:
    """Return what became of one folder: outcome, exit code, what was said, CPU seconds."""
    # Without the checkout of this process: the scratch worktree has its own `areal` and `tooling`.
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "areal_harness", "tooling.new", "model", name, "--from", str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _run([*command, "--trust-source", "--json"], repository, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    answer = _last_object(done.stdout)
    row: dict[str, Any] = {"name": name, "exit": done.returncode, "seconds": seconds}
    row["said"] = str(answer.get("error") or answer.get("message") or done.stderr[-300:])[:600]
    row["checks"] = [each for each in answer.get("checks", ()) if not each.get("ok")]
    row["features"] = [f"{each['feature']} at {each['where']}: {each['detail']}" for each in _missing(answer)]
    if done.returncode == 8:
        row["outcome"] = "refused"
    elif done.returncode == 7:
        row["outcome"] = "failed"
    elif done.returncode:
        row["outcome"] = "crash"
    else:
        row |= _compared(folder, repository, environment)
    left = _run(["git", "status", "--porcelain"], repository, environment).stdout.strip()
    row["left"] = left.splitlines() if done.returncode else []
    _run(["git", "checkout", "-q", "."], repository, environment)
    _run(["git", "clean", "-fdq"], repository, environment)
    return row


def _compared(folder: Path, repository: Path, environment: dict[str, str]) -> dict[str, Any]:
    done = _run([sys.executable, "-c", COMPARE, str(folder)], repository, environment)
    found = _last_object(done.stdout)
    if not found:
        return {"outcome": "failed", "said": f"does not load its folder: {done.stderr.strip()[-400:]}"}
    kept = {key: found.get(key) for key in ("loaded", "equal", "refused", "wrong_configs", "crashes", "refusals")}
    wrong = found["loaded"] > 1 or found["wrong_configs"] or found["crashes"]
    return {"outcome": "wrong" if wrong else "proven", **kept}


def _missing(answer: dict[str, Any]) -> list[dict[str, Any]]:
    report = answer.get("report") or (answer.get("details") or {}).get("report") or {}
    return list(report.get("missing") or ())


def _run(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )


def _last_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = json.loads(text.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {}
    return found if isinstance(found, dict) else {}


def designs(words: Sequence[str]) -> list[Design]:
    """Return the designs of "3", "0-17" and "x100-109"."""
    found = []
    for word in words:
        first, _, last = word.removeprefix("x").partition("-")
        found += [draw(seed, poison=word.startswith("x")) for seed in range(int(first), int(last or first) + 1)]
    return found


def main() -> int:
    """Command line: a line for each architecture, then the counts. Exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", nargs="+")
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for design in designs(options.seeds):
            folder = prepare(design, (options.keep or Path(scratch)) / design.name)
            row = {"poison": design.poison, **attempt(design.name, folder, options.repository.resolve())}
            if design.poison and row["outcome"] == "proven":
                row["outcome"] = "wrong"
            rows.append(row)
            sys.stdout.write(f"{design.name} {design.poison or '-'} {row['outcome']} {row['exit']} {row['seconds']}\n")
            sys.stdout.write(f"    {row['said'][:300]}\n" if row["outcome"] != "proven" else "")
            sys.stdout.write("".join(f"      {each[:200]}\n" for each in row["features"]))
            sys.stdout.flush()
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for kind, chosen in (
        ("to prove", [r for r in rows if not r["poison"]]),
        ("to refuse", [r for r in rows if r["poison"]]),
    ):
        counts = Counter(row["outcome"] for row in chosen)
        sys.stdout.write(f"{kind}: {dict(counts)}\n")
    return 1 if any(row["outcome"] == "wrong" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
