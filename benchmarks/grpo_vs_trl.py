"""One GRPO step and time-to-reward: areal beside TRL's GRPOTrainer, alternating runs on this machine, ratios printed.

    bash scripts/setup_trl.sh; bash scripts/setup_vllm.sh
    .venv/bin/python benchmarks/grpo_vs_trl.py [--sides areal areal-async areal-vllm areal-vllm-async] [--json]
    .venv/bin/python benchmarks/grpo_vs_trl.py --workload throughput --size 0.9M 25M --prompt-tokens 96 512 --rounds 5

areal             the embedded engine, generation and training in turn
areal-async       the same, at most one weight version behind, on the threads that a run chooses by itself
areal-async-apart as areal-async, with `separate_learner`: two processes instead of two threads of one
areal-vllm        a vLLM server on the same cores, in turn
areal-vllm-async  a vLLM server on half of the cores, at most one weight version behind
trl               GRPOTrainer with its own generation; with --trl-vllm by vLLM in its process, which needs `bash
                  scripts/setup_trl.sh --vllm`; always there, for the ratios

On a GPU, servers get 0.3 of its memory, beside the trainer, and so does TRL's vLLM.

Same checkpoint and tokenizer, same prompts in the same order, same group size, token limits, learning rate, clip
range, number of threads, dtype (fp32; bfloat16 with fp32 master weights on a GPU and with --dtype); beta = 0 on all
sides. Step figures are medians after the first 3 steps, so that starts of servers do not count; in brackets the range
over rounds; "s beside steps" is the rest of the program, its start and its end. CPU seconds are those of the processes
that train and sample, without servers. Beside every factor stands how many
times fewer tokens than TRL a side puts through the model to train (TRL repeats prompts and pads answers), and below
the table how fast this machine multiplies matrices, by the library that TRL uses (torch's) and by oneDNN, which our
linear layers use where it is faster. Three workloads:

throughput  a randomly initialised model that rarely stops: 64 new tokens per sample, so generation dominates
reward      the warm-started model of `areal demo`: seconds until the mean reward of the last 5 steps passes a level
images      a random LLaVA, tower trained too, a picture in every prompt, answers of one length; only by its name
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
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    ROOT,
    TRL_PYTHON,
    TRL_VLLM_PYTHON,
    VLLM_PYTHON,
    BenchmarkReport,
    add_device_argument,
    add_output_arguments,
    device_dtype,
    markdown,
    processors,
    progress,
    require,
    require_device,
    shown,
    spread,
    stop,
)
from gpu_step import SIZES as LARGE
from image_work import image_model, image_rows
from servers import GPU_SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of what is compared."""

    python: Path = ROOT / ".venv/bin/python"
    script: Path = ROOT / "benchmarks/areal_runner.py"
    engine: str = "embedded"
    staleness: int = 0
    separate_learner: bool = False


BASELINE = "trl"
SMALL = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "max_position_embeddings": 1024}
MEDIUM = SMALL | {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
MEDIUM |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
BIG = MEDIUM | {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
BIG |= {"num_attention_heads": 12, "num_key_value_heads": 4}
SIDES = {
    "areal": Side(),
    "areal-async": Side(staleness=1),
    "areal-async-apart": Side(staleness=1, separate_learner=True),
    "areal-vllm": Side(engine="vllm"),
    "areal-vllm-async": Side(engine="vllm", staleness=1),
    BASELINE: Side(python=TRL_PYTHON, script=ROOT / "benchmarks/trl_runner.py"),
}
SKIPPED_STEPS = 3
SIZES = {"0.9M": SMALL, "25M": MEDIUM, "100M": BIG, **LARGE}
"""Random models of the throughput workload; those of gpu_step.py have more tokens than the tokenizer knows."""


def main() -> int:
    """Prepare the workloads, run the sides in turn, print the comparison."""
    options = _parse()
    uses_vllm = any(SIDES[side].engine == "vllm" for side in options.sides)
    if options.trl_vllm and options.device != "cuda":
        stop("grpo_vs_trl: --trl-vllm needs --device cuda: TRL runs vLLM in its own process on GPUs only")
    require("grpo_vs_trl", _baseline(options).python, *([VLLM_PYTHON] if uses_vllm else []))
    require_device("grpo_vs_trl", options.device)
    for workload in _workloads(options.workload):
        report = BenchmarkReport(f"grpo_vs_trl {workload}", options)
        results = []
        for size, prompt in _cases(workload, options):
            with tempfile.TemporaryDirectory() as folder:
                results.append(_compare(workload, Path(folder), options, size, prompt))
        rates = _rates()
        report.finish({"rates": rates, "cases": results}, f"{_table(results)}\n\n{_rates_text(rates)}")
    return 0


def _cases(workload: str, options: argparse.Namespace) -> list[tuple[str, int]]:
    """Size and prompt tokens of each comparison; workloads with a model of their own have one."""
    if workload == "reward":
        return [("0.4M", 4)]
    if workload == "images":
        return [("images", 160)]  # at most 96 bytes of text and 64 tokens of a picture
    return [(size, prompt) for size in options.size for prompt in options.prompt_tokens]


def _rates() -> dict[str, float]:
    from areal.models.blocks.linear import measure_products

    found = measure_products()
    return {"torch": found.torch, "onednn": found.onednn}


def _rates_text(rates: Mapping[str, float]) -> str:
    return (
        f"Matrix products on one thread: {rates['torch']:.0f} GFLOP/s by torch's library, {rates['onednn']:.0f} by "
        f"oneDNN."
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="alternating rounds per workload (2)")
    parser.add_argument("--steps", type=int, default=12, help="steps of the throughput workload (12)")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of its steps, with 8 samples each (8)")
    parser.add_argument("--new-tokens", type=int, default=64, help="its longest answer (64)")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[96], help="lengths of its prompts (96)")
    parser.add_argument(
        "--size", choices=sorted(SIZES), nargs="+", default=["0.9M"], help="its models, by parameters (0.9M)"
    )
    parser.add_argument("--reward-steps", type=int, default=120, help="steps of the reward workload (120)")
    parser.add_argument("--level", type=float, default=0.65, help="mean reward to reach (0.65)")
    parser.add_argument("--threads", type=int, default=2, help="intra-op threads of all sides (2)")
    parser.add_argument(
        "--async-threads",
        type=int,
        nargs=2,
        metavar=("TRAIN", "GENERATE"),
        help="threads of training and of generation that overlap (what a run chooses, up to --threads; servers: half)",
    )
    add_device_argument(parser)
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="of all sides; bfloat16 has float32 master weights (float32 on CPUs, bfloat16 on GPUs)",
    )
    parser.add_argument("--trl-vllm", action="store_true", help="TRL generates by vLLM in its own process, on one GPU")
    parser.add_argument("--workload", choices=("both", "images", "reward", "throughput"), default="both")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=[name for name in SIDES if name != BASELINE],
        default=["areal", "areal-async"],
        metavar="SIDE",
        help="compared with trl (areal areal-async)",
    )
    add_output_arguments(parser)
    return parser.parse_args()


def _baseline(options: argparse.Namespace) -> Side:
    """TRL, in the environment that has what it generates with."""
    return replace(SIDES[BASELINE], python=TRL_VLLM_PYTHON) if options.trl_vllm else SIDES[BASELINE]


def _workloads(choice: str) -> tuple[str, ...]:
    return ("throughput", "reward") if choice == "both" else (choice,)


def _compare(workload: str, folder: Path, options: argparse.Namespace, size: str, prompt: int) -> dict[str, Any]:
    job = _prepare(workload, folder, options, size, prompt)
    sides = [*options.sides, BASELINE]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for index in range(options.rounds):
        for side in sides:
            progress(f"{workload}, {size}, prompts of {prompt}: round {index + 1} of {options.rounds}, {side}")
            definition = _baseline(options) if side == BASELINE else SIDES[side]
            runs[side].append(_run(side, definition, job | {"seed": 1 + index}, folder))
    figures = {side: _figures(results, options.level) for side, results in runs.items()}
    for side, found in figures.items():
        found["trained_tokens"] = _trained_tokens(side, job, found["tokens_per_step"])
    base = figures[BASELINE]
    ratios = {
        side: {
            "tokens_per_second": found["tokens_per_second"]["median"] / base["tokens_per_second"]["median"],
            "seconds_per_step": base["seconds_per_step"]["median"] / found["seconds_per_step"]["median"],
            "cpu_seconds_per_step": base["cpu_seconds_per_step"]["median"] / found["cpu_seconds_per_step"]["median"],
            "trained_tokens": base["trained_tokens"] / found["trained_tokens"],
            "seconds_to_level": _ratio(base["seconds_to_level"], found["seconds_to_level"]),
        }
        for side, found in figures.items()
    }
    case = {"workload": workload, "size": size, "prompt_tokens": prompt}
    return case | {"job": job, "figures": figures, "times_faster_than_trl": ratios}


def _trained_tokens(side: str, job: Mapping[str, Any], sampled: float) -> float:
    """Tokens that a step puts through the model to train, of prompts of equal length: TRL repeats the prompt for each
    sample, and pads answers to the longest, which is the limit in all but some steps."""
    samples = job["prompts_per_step"] * job["group_size"]
    if side == BASELINE:
        return samples * (job["prompt_tokens"] + job["max_new_tokens"])
    return job["prompts_per_step"] * job["prompt_tokens"] + sampled


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def _prepare(workload: str, folder: Path, options: argparse.Namespace, size: str, prompt: int) -> dict[str, Any]:
    """Checkpoint and prompts on disk, shared by all sides."""
    prompts = folder / f"{workload}-prompts.jsonl"
    if workload in {"images", "throughput"}:
        count = options.prompts * options.steps
        if workload == "images":
            model, rows = image_model(folder / "model"), image_rows(count)
        else:
            model, rows = random_model(folder / "model", SIZES[size]), gsm8k_rows(count, length=prompt)
        specific = {
            "steps": options.steps,
            "prompts_per_step": options.prompts,
            "max_new_tokens": options.new_tokens,
            "max_seq_len": 32 + prompt + options.new_tokens,
            "lr": 1e-5,
        }
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
        "prompt_tokens": prompt,
        "images": workload == "images",
        "prompts": str(prompts),
        "group_size": 8,
        "loss_type": "dapo",
        "threads": options.threads,
        "device": options.device,
        "dtype": options.dtype or device_dtype(options.device),
        "async_threads": options.async_threads,
        "trl_vllm": options.trl_vllm,
        "gpu_share": GPU_SHARE,
    }


def random_model(folder: Path, size: Mapping[str, Any]) -> str:
    """Byte tokenizer, and an untrained model, which rarely samples its end token. size: changes the demo's model."""
    from areal.dataset.encoding import load_tokenizer
    from areal.models import from_config, save_pretrained
    from areal.trainer.demo import MODEL

    model = from_config(MODEL | {"vocab_size": 258} | size | {"eos_token_id": 257, "pad_token_id": 256}, seed=1)
    save_pretrained(model, folder)
    load_tokenizer("bytes:").save_pretrained(folder)
    return str(folder)


def _warm_model(folder: Path) -> str:
    from areal.trainer.demo import warm_start_config
    from areal.trainer.run import run

    return str(run(warm_start_config(folder, seed=1))["checkpoint"])


def gsm8k_rows(count: int, *, length: int = 96) -> list[dict[str, str]]:
    """Return the first `length` characters of packaged GSM8K questions, repeated where they are shorter: real text of
    realistic, equal length."""
    from areal.dataset.gsm8k import read_gsm8k

    questions = [str(row["question"]) for row in read_gsm8k("", "train").rows]
    questions = [(f"{text} " * (length // len(text) + 1))[:length] for text in questions]
    return [{"prompt": questions[index % len(questions)], "answer": "72"} for index in range(count)]


def _arithmetic_rows(count: int) -> list[dict[str, str]]:
    from areal.dataset.arithmetic import load_facts

    facts = random.Random(1).choices(load_facts("", "train"), k=count)
    return [{"prompt": f"{fact.expression}=", "answer": fact.result} for fact in facts]


def _run(name: str, side: Side, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "job.json"
    own: dict[str, Any] = {"output_dir": str(folder / f"out-{name}")}
    own |= {"staleness": side.staleness, "engine": side.engine, "separate_learner": side.separate_learner}
    own |= {"vllm_python": str(VLLM_PYTHON), "cores": processors()[: job["threads"]]}
    path.write_text(json.dumps(job | own))
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(job["threads"])}
    command = [str(side.python), str(side.script), str(path)]
    started = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)
    seconds = time.perf_counter() - started
    if result.returncode != 0:
        raise SystemExit(f"{name} failed with exit code {result.returncode}:\n{result.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.stdout[result.stdout.index('{"steps"') :])
    return found | {"beside_steps": seconds - sum(step["seconds"] for step in found["steps"])}


def _figures(results: list[dict[str, Any]], level: float) -> dict[str, Any]:
    rounds = [result["steps"][SKIPPED_STEPS:] for result in results]
    reached = [_seconds_to_level(result["steps"], level) for result in results]

    def over_rounds(values: list[list[float]]) -> dict[str, float]:
        """Median of all steps, range of the rounds' medians."""
        medians = spread([statistics.median(each) for each in values])
        return medians | {"median": statistics.median([value for each in values for value in each])}

    return {
        "seconds_per_step": over_rounds([[step["seconds"] for step in steps] for steps in rounds]),
        "cpu_seconds_per_step": over_rounds([[step["cpu_seconds"] for step in steps] for steps in rounds]),
        "tokens_per_second": over_rounds([[step["tokens"] / step["seconds"] for step in steps] for steps in rounds]),
        "tokens_per_step": statistics.median(step["tokens"] for steps in rounds for step in steps),
        "final_reward": statistics.mean(step["reward"] for result in results for step in result["steps"][-5:]),
        "seconds_to_level": None if None in reached else statistics.median(reached),
        "seconds_beside_steps": spread([result["beside_steps"] for result in results]),
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


def _table(results: list[dict[str, Any]]) -> str:
    def row(result: dict[str, Any], side: str, figures: dict[str, Any]) -> list[str]:
        reached, ratios = figures["seconds_to_level"], result["times_faster_than_trl"][side]
        return [
            result["size"],
            str(result["prompt_tokens"]),
            side,
            shown(figures["seconds_per_step"], ".3f"),
            shown(figures["cpu_seconds_per_step"], ".3f"),
            shown(figures["tokens_per_second"], ".0f"),
            f"{ratios['seconds_per_step']:.2f}x",
            f"{ratios['cpu_seconds_per_step']:.2f}x",
            f"{ratios['trained_tokens']:.2f}x",
            f"{figures['final_reward']:.3f}",
            "" if reached is None else f"{reached:.1f}",
            shown(figures["seconds_beside_steps"], ".1f"),
        ]

    header = ["size", "prompt", "side", "s/step", "CPU s/step", "tokens/s", "against trl", "in CPU s", "fewer tokens"]
    header += ["last rewards", "s to the level", "s beside steps"]
    return markdown(header, [row(each, *item) for each in results for item in each["figures"].items()])


if __name__ == "__main__":
    sys.exit(main())
