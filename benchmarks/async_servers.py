"""Asynchronous against synchronous GRPO with a real vLLM server: `areal train`, whole steps, on two cores.

    bash scripts/setup_vllm.sh
    .venv/bin/python benchmarks/async_servers.py [--staleness 1 2] [--hidden 256] [--rounds 2] [--json]

What is compared: the same run with staleness bounds 0 (generation and training in turn), 1 and 2. The server has one
core for itself and the trainer another, in all runs: with bound 0 each waits for the other, above it both compute at
the same time. The trainer recomputes the proximal log-probabilities, and weights travel through shared memory after
every step, with all checks.

The gain depends on how generation and training share a step, so the split that was measured with bound 0 is printed,
with the best that any overlap could make of it. Nothing can be gained where one of them takes no time; --hidden with
several sizes runs each for a few steps and goes on with the one where both take most nearly the same.

Seconds per step are wall time between the ends of steps, without the first ones; in brackets the range over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from areal_runner import settings
from common import (
    ROOT,
    VLLM_PYTHON,
    BenchmarkReport,
    add_output_arguments,
    markdown,
    processors,
    progress,
    require,
    shown,
    spread,
    stop,
)
from grpo_vs_trl import gsm8k_rows, random_model

SKIPPED_STEPS = 4
"""More than the largest bound: until then, batches come from a pipeline that is still filling."""
CALIBRATION_STEPS = SKIPPED_STEPS + 3
SPLIT = {"generation": ("rollout_wait",), "training": ("prepare", "update"), "publishing": ("publish",)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of every bound, and of the calibration."""
    trainer_core, server_core = options.cores
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = _on_core(folder / "python-of-server", VLLM_PYTHON, server_core)
        prompts = folder / "prompts.jsonl"
        rows = gsm8k_rows(options.prompts * (options.steps + 3))
        prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        job = _job(options, prompts, python)

        def train(hidden: int, staleness: int, steps: int, number: int) -> dict[str, Any]:
            model = random_model(folder / f"model-{hidden}", _size(hidden, options.layers))
            own = {"model": model, "staleness": staleness, "steps": steps, "seed": 1 + number}
            return _run(job | own, folder, trainer_core)

        calibration = {}
        if len(options.hidden) > 1:
            for hidden in options.hidden:
                progress(f"async_servers: balance of {hidden}")
                calibration[hidden] = train(hidden, 0, CALIBRATION_STEPS, 0)["split"]
        chosen = min(options.hidden, key=lambda hidden: _imbalance(calibration.get(hidden)))
        runs: dict[int, list[dict[str, Any]]] = {bound: [] for bound in (0, *options.staleness)}
        for number in range(options.rounds):
            for bound, found in runs.items():
                progress(f"async_servers: round {number + 1} of {options.rounds}, bound {bound}")
                found.append(train(chosen, bound, options.steps, number))
    return {"hidden": chosen, "calibration": calibration, "results": _figures(runs)}


def _size(hidden: int, layers: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 64,
        "max_position_embeddings": 512,
    }


def _imbalance(split: dict[str, float] | None) -> float:
    return 0.0 if split is None else abs(split["generation"] - split["training"]) / sum(split.values())


def _job(options: argparse.Namespace, prompts: Path, python: Path) -> dict[str, Any]:
    return {
        "prompts": str(prompts),
        "prompts_per_step": options.prompts,
        "group_size": 8,
        "max_new_tokens": options.new_tokens,
        "max_seq_len": 96 + options.new_tokens,
        "lr": 1e-5,
        "loss_type": "dapo",
        # Two halves of two cores, whatever the bound: the trainer's and the server's.
        "threads": 1,
        "device": "cpu",
        "engine": "vllm",
        "vllm_python": str(python),
        "cores": [options.cores[1]],
    }


def _on_core(path: Path, interpreter: Path, core: int) -> Path:
    """Make a program that is the interpreter, all of whose threads and children stay on one core."""
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\nos.sched_setaffinity(0, {{{core}}})\n"
        f"os.execv({str(interpreter)!r}, [{str(interpreter)!r}, *sys.argv[1:]])\n"
    )
    path.chmod(0o755)
    return path


def _run(job: dict[str, Any], folder: Path, core: int) -> dict[str, Any]:
    """One `areal train`, on its core."""
    out = folder / "run"
    values = settings(job | {"output_dir": str(out)}) | {"objective.prox_logp": "recompute"}
    overrides = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    config = folder / "run.yaml"
    config.write_text("kind: rl\n")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # children begin where their parent is
    try:
        result = subprocess.run(
            [sys.executable, "-m", "areal", "train", str(config), "--json", *overrides],
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
    finally:
        os.sched_setaffinity(0, before)
    if result.returncode:
        stop(f"areal train ended with {result.returncode}:\n{result.stderr[-3000:]}", code=1)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    return _figures_of_run([line for line in lines if "time/step" in line])


def _figures_of_run(steps: list[dict[str, float]]) -> dict[str, Any]:
    counted = steps[SKIPPED_STEPS:]
    seconds = steps[-1]["time"] - steps[SKIPPED_STEPS - 1]["time"]
    return {
        "seconds_per_step": seconds / len(counted),
        "tokens_per_second": sum(step["tokens/sampled"] for step in counted) / seconds,
        "oldest": max(step["staleness/max"] for step in counted),
        "mismatch": max(step.get("mismatch/fresh_abs_max", 0.0) for step in counted),
        "split": {
            part: statistics.mean(sum(step[f"time/{name}"] for name in names) for step in counted)
            for part, names in SPLIT.items()
        },
    }


def _figures(runs: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for bound, found in runs.items():
        row = {name: spread([run[name] for run in found]) for name in ("seconds_per_step", "tokens_per_second")}
        row |= {name: max(run[name] for run in found) for name in ("oldest", "mismatch")}
        split = {part: statistics.median(run["split"][part] for run in found) for part in SPLIT}
        rows.append({"bound": bound, "split": split, **row})
    base = rows[0]["seconds_per_step"]["median"]
    for row in rows:
        row["speedup"] = base / row["seconds_per_step"]["median"]
    return rows


def table(figures: dict[str, Any]) -> str:
    """Return the steps by bound, and what the split would allow."""
    rows = figures["results"]
    header = ["staleness bound", "s/step", "tokens/s", "speed-up", "oldest token", "waiting, training, publishing, s"]
    lines = [
        [
            str(row["bound"]),
            shown(row["seconds_per_step"]),
            shown(row["tokens_per_second"], ".0f"),
            f"{row['speedup']:.2f}x",
            f"{row['oldest']:.0f}",
            ", ".join(f"{row['split'][part]:.2f}" for part in SPLIT),
        ]
        for row in rows
    ]
    split = rows[0]["split"]
    longer = max(split["generation"], split["training"])
    best = sum(split.values()) / (longer + split["publishing"])
    return (
        f"{markdown(header, lines)}\n\nHidden size {figures['hidden']}. With bound 0, {split['generation']:.2f} s of a "
        f"step are generation and {split['training']:.2f} s training ({split['generation'] / split['training']:.2f} to "
        f"1): hiding the shorter behind the longer, which stalls while weights are published, would be {best:.2f}x."
    )


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2], metavar="N", help="bounds besides 0 (1 2)")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256], metavar="SIZE", help="multiples of 64 (256)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (4)")
    parser.add_argument("--prompts", type=int, default=8, help="per step, each with 8 samples (8)")
    parser.add_argument("--new-tokens", type=int, default=64, help="longest answer; few end earlier (64)")
    parser.add_argument("--steps", type=int, default=16, help=f"of a run, {SKIPPED_STEPS} of which do not count (16)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of every bound (2)")
    parser.add_argument(
        "--cores", type=int, nargs=2, default=processors()[:2], metavar="N", help="of the trainer, and of the server"
    )
    parser.add_argument("--gate", type=float, default=0.0, help="exit 1 when the best speed-up is below this")
    add_output_arguments(parser)
    return parser.parse_args()


def main() -> int:
    """Measure and report."""
    options = parse()
    if len(set(options.cores)) != 2 or not hasattr(os, "sched_setaffinity"):
        stop(f"async_servers: needs two cores to pin processes to, on Linux; got {options.cores}")
    if options.steps <= SKIPPED_STEPS or max(options.staleness) >= SKIPPED_STEPS:
        stop(f"async_servers: --steps has to be above {SKIPPED_STEPS}, and bounds below")
    require("async_servers", VLLM_PYTHON)
    report = BenchmarkReport("async_servers", options)
    figures = measure(options)
    report.finish(figures, table(figures))
    best = max(row["speedup"] for row in figures["results"])
    if best < options.gate:
        print(f"speed-up {best:.2f}x is below the gate of {options.gate:g}x", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
