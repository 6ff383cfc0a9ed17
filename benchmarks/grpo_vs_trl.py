"""One GRPO step and time-to-reward: areal beside TRL's GRPOTrainer, alternating runs on this machine, ratios printed.

    bash scripts/setup_trl.sh
    .venv/bin/python benchmarks/grpo_vs_trl.py [--rounds 3] [--json]

Same checkpoint and tokenizer, same prompts in the same order, same group size, token limits, learning rate, clip range,
fp32, number of threads; beta = 0 on both sides. Step figures are medians after the first 3 steps. Two workloads:

throughput  a randomly initialised model that rarely stops: 32 new tokens per sample, so generation dominates
reward      the warm-started model of `areal demo`: seconds until the mean reward of the last 5 steps passes a level
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIDES = {
    "areal": (ROOT / ".venv/bin/python", ROOT / "benchmarks/areal_runner.py", 0),
    "areal-async": (ROOT / ".venv/bin/python", ROOT / "benchmarks/areal_runner.py", 1),
    "trl": (ROOT / ".venv-trl/bin/python", ROOT / "benchmarks/trl_runner.py", 0),
}
SKIPPED_STEPS = 3


def main() -> int:
    """Prepare the workloads, run the sides in turn, print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="alternating rounds per workload (default 2)")
    parser.add_argument("--steps", type=int, default=12, help="steps of the throughput workload (default 12)")
    parser.add_argument("--reward-steps", type=int, default=120, help="steps of the reward workload (default 120)")
    parser.add_argument("--level", type=float, default=0.65, help="mean reward to reach (default 0.65)")
    parser.add_argument("--threads", type=int, default=2, help="intra-op threads of both sides (default 2)")
    parser.add_argument("--workload", choices=("both", "reward", "throughput"), default="both")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    if not SIDES["trl"][0].exists():
        print("grpo_vs_trl: run `bash scripts/setup_trl.sh` first (.venv-trl is missing)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = {name: _compare(name, Path(folder), options) for name in _workloads(options.workload)}
    if options.json:
        json.dump(report, sys.stdout, indent=2)
    else:
        _print(report)
    return 0


def _workloads(choice: str) -> tuple[str, ...]:
    return ("throughput", "reward") if choice == "both" else (choice,)


def _compare(workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    job = _prepare(workload, folder, options)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for index in range(options.rounds):
        for side in SIDES:
            print(f"{workload}: round {index + 1} of {options.rounds}, {side}", file=sys.stderr)
            runs[side].append(_run(side, job | {"seed": 1 + index}, folder))
    figures = {side: _figures(results, options.level) for side, results in runs.items()}
    ratios = {
        side: {
            "tokens_per_second": figures[side]["tokens_per_second"] / figures["trl"]["tokens_per_second"],
            "seconds_per_step": figures["trl"]["seconds_per_step"] / figures[side]["seconds_per_step"],
            "seconds_to_level": _ratio(figures["trl"]["seconds_to_level"], figures[side]["seconds_to_level"]),
        }
        for side in SIDES
        if side != "trl"
    }
    return {"job": job, "figures": figures, "times_faster_than_trl": ratios}


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def _prepare(workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Checkpoint and prompts on disk, shared by all sides."""
    prompts = folder / f"{workload}-prompts.jsonl"
    if workload == "throughput":
        model, rows = _random_model(folder / "model"), _gsm8k_rows(8 * options.steps)
        specific = {"steps": options.steps, "prompts_per_step": 8, "max_new_tokens": 64, "max_seq_len": 192, "lr": 1e-5}
    else:
        model, rows = _warm_model(folder / "warm"), _arithmetic_rows(64 * options.reward_steps)
        specific = {
            "steps": options.reward_steps,
            "prompts_per_step": 64,
            "max_new_tokens": 4,
            "max_seq_len": 64,
            "lr": 5e-4,
        }
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return specific | {
        "model": model,
        "prompts": str(prompts),
        "group_size": 8,
        "loss_type": "dapo",
        "threads": options.threads,
    }


def _random_model(folder: Path) -> str:
    """0.9M parameters, byte tokenizer: an untrained model rarely samples its end token."""
    from areal.dataset.tokenizers import load_tokenizer
    from areal.models import from_config, save_pretrained
    from areal.trainer.demo import MODEL

    size = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "max_position_embeddings": 512}
    model = from_config(MODEL | size | {"vocab_size": 258, "eos_token_id": 257, "pad_token_id": 256}, seed=1)
    save_pretrained(model, folder)
    load_tokenizer("bytes:").save_pretrained(folder)
    return str(folder)


def _warm_model(folder: Path) -> str:
    from areal.trainer.demo import warm_start_config
    from areal.trainer.run import run

    return str(run(warm_start_config(folder, seed=1))["checkpoint"])


def _gsm8k_rows(count: int) -> list[dict[str, str]]:
    """The first 96 characters of packaged GSM8K questions: real text of realistic, equal length."""
    from areal.dataset.gsm8k import read_gsm8k

    questions = [str(row["question"])[:96] for row in read_gsm8k("", "train").rows]
    return [{"prompt": questions[index % len(questions)], "answer": "72"} for index in range(count)]


def _arithmetic_rows(count: int) -> list[dict[str, str]]:
    from areal.dataset.arithmetic import load_facts

    facts = random.Random(1).choices(load_facts("", "train"), k=count)
    return [{"prompt": f"{fact.expression}=", "answer": fact.result} for fact in facts]


def _run(side: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    python, script, staleness = SIDES[side]
    path = folder / "job.json"
    path.write_text(json.dumps(job | {"staleness": staleness, "output_dir": str(folder / f"out-{side}")}))
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(job["threads"])}
    result = subprocess.run(
        [str(python), str(script), str(path)], capture_output=True, text=True, env=environment, check=False, cwd=folder
    )
    if result.returncode != 0:
        raise SystemExit(f"{side} failed with exit code {result.returncode}:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout[result.stdout.index('{"steps"') :])


def _figures(results: list[dict[str, Any]], level: float) -> dict[str, float | None]:
    steps = [step for result in results for step in result["steps"][SKIPPED_STEPS:]]
    reached = [_seconds_to_level(result["steps"], level) for result in results]
    return {
        "seconds_per_step": statistics.median(step["seconds"] for step in steps),
        "tokens_per_second": statistics.median(step["tokens"] / step["seconds"] for step in steps),
        "tokens_per_step": statistics.median(step["tokens"] for step in steps),
        "final_reward": statistics.mean(step["reward"] for result in results for step in result["steps"][-5:]),
        "seconds_to_level": None if None in reached else statistics.median(reached),
        "seconds_total": statistics.median(result["seconds"] for result in results),
    }


def _seconds_to_level(steps: list[dict[str, float]], level: float) -> float | None:
    """Training seconds until the mean reward of five consecutive steps passes `level`."""
    elapsed = 0.0
    for index, step in enumerate(steps):
        elapsed += step["seconds"]
        recent = [item["reward"] for item in steps[max(0, index - 4) : index + 1]]
        if len(recent) == 5 and statistics.mean(recent) >= level:
            return elapsed
    return None


def _print(report: dict[str, Any]) -> None:
    for workload, result in report.items():
        print(f"\n{workload}")
        for side, figures in result["figures"].items():
            reached = figures["seconds_to_level"]
            print(
                f"  {side:12} {figures['seconds_per_step']:8.3f} s/step {figures['tokens_per_second']:9.0f} tokens/s"
                f"   reward {figures['final_reward']:.3f}   to level {'-' if reached is None else f'{reached:.1f} s'}"
            )
        for side, ratios in result["times_faster_than_trl"].items():
            text = ", ".join(f"{key} {value:.2f}x" for key, value in ratios.items() if value is not None)
            print(f"  {side} against trl: {text}")


if __name__ == "__main__":
    sys.exit(main())
