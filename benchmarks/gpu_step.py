"""One optimizer step of a 0.6B model on an accelerator: tokens per second, MFU, peak memory, next to a plain loop.

    .venv/bin/python benchmarks/gpu_step.py [--rounds 3] [--json]      # needs a CUDA device; exit code 2 without one
    .venv/bin/python benchmarks/gpu_step.py --size tiny --device cpu   # the program itself, on any machine

What is compared, each side in a process of its own, in turn:

train         `TrainingEngine`: bfloat16, float32 masters
archon        the same with the section `archon`, in one process: FSDP2's mixed precision, float32 masters
transformers  AutoModelForCausalLM with float32 parameters under bfloat16 autocast, its own loss over full logits, and
              fused AdamW: the loop that one writes by hand

The shapes of Qwen3-0.6B, random weights; the same tokens; every token but the first of a row is learnt from; rows of
equal length, no common prompts and no padding, so that all sides have the same work; the same micro-batches, clipping
and AdamW; no side compiles or recomputes, unless --checkpointing (all of them).

MFU = needed FLOPs per step / seconds / peak FLOPs of the device (dense, bfloat16, as the maker states it). Needed are
three times those of the forward pass: `areal/models/flops.py` has the formula and its source. Memory is the most that
was allocated by tensors (on CPUs: resident, beyond the empty process), `planned` what `areal plan` says of the engines.

--profile runs the steps under torch's profiler, which slows them down, and counts per step: how often the host waits
for the device, kernels launched, and the share of the time in which the device has nothing to do. On CPUs it counts
numbers that are read from tensors, of which most are the host's own on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from common import (
    ROOT,
    BenchmarkReport,
    add_output_arguments,
    markdown,
    planned,
    progress,
    require_device,
    set_thread_environment,
    shown,
    spread,
    stop,
)

from areal.utils.accelerators import peak_tflops

SIDES = ("train", "archon", "transformers")
SIZES: Final[dict[str, dict[str, Any]]] = {
    "0.6B": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    },
    "tiny": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 1024,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    },
}
WORK: Final = {"0.6B": (32, 2048, 16384), "tiny": (8, 128, 512)}
"""Rows, tokens of a row, tokens of a micro-batch."""


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures per side."""
    rows, length, micro = (given or usual for given, usual in zip(_asked(options), WORK[options.size], strict=True))
    if micro % length or rows * length % micro:
        stop(f"gpu_step: micro-batches of {micro} tokens do not divide {rows} rows of {length}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {
            "model": SIZES[options.size],
            "rows": rows,
            "length": length,
            "micro_batch": micro,
            "steps": options.steps,
            "device": options.device,
            "checkpointing": options.checkpointing,
            "profile": options.profile,
            "threads": options.threads,
        }
        (folder / "job.json").write_text(json.dumps(job))
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
        for number in range(options.rounds):
            for side, results in found.items():
                progress(f"gpu_step: round {number + 1} of {options.rounds}, {side}")
                results.append(_run(side, folder / "job.json"))
    actor = {
        "dtype": "bfloat16",
        "gradient_checkpointing": options.checkpointing,
        "max_tokens_per_micro_batch": micro,
    }
    plan = sum(item["bytes"] for item in planned(SIZES[options.size], actor)["memory"])
    return [_row(side, results, plan) for side, results in found.items()]


def _asked(options: argparse.Namespace) -> tuple[int | None, ...]:
    return options.rows, options.length, options.micro_batch


def _run(side: str, job: Path) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks/gpu_worker.py"), side, str(job)]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if result.returncode:
        stop(f"{side} failed with exit code {result.returncode}:\n{result.stderr[-3000:]}", code=1)
    return json.loads(result.stdout.splitlines()[-1])


def _row(side: str, results: list[dict[str, Any]], plan: int) -> dict[str, Any]:
    first = results[0]
    seconds = spread([value for result in results for value in result["seconds"]])
    peak = peak_tflops(first["device"])
    achieved = first["flops"] / seconds["median"]
    return {
        "side": side,
        "device": first["device"],
        "seconds": seconds,
        "tokens_per_second": first["tokens"] / seconds["median"],
        "achieved_tflops": achieved / 1e12,
        "mfu": None if peak is None else achieved / (peak * 1e12),
        "peak_bytes": max(result["peak_bytes"] for result in results),
        "planned_bytes": None if side == "transformers" else plan,
        "flops": first["flops"],
        "parameters": first["parameters"],
        "first_loss": first["first_loss"],
        "profile": first["profile"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One row per side."""
    base = next((row["seconds"]["median"] for row in rows if row["side"] == "transformers"), None)
    header = ["side", "s/step", "tokens/s", "against transformers", "TFLOP/s", "MFU", "peak, GB", "planned, GB"]
    text = markdown(
        header,
        [
            [
                row["side"],
                shown(row["seconds"], ".3f"),
                f"{row['tokens_per_second']:.0f}",
                "" if base is None else f"{base / row['seconds']['median']:.2f}x",
                f"{row['achieved_tflops']:.3g}",
                "" if row["mfu"] is None else f"{row['mfu']:.1%}",
                f"{row['peak_bytes'] / 1e9:.2f}",
                "" if row["planned_bytes"] is None else f"{row['planned_bytes'] / 1e9:.2f}",
            ]
            for row in rows
        ],
    )
    first, peak = rows[0], peak_tflops(rows[0]["device"])
    known = f"peak {peak:g} TFLOP/s" if peak else "whose peak is not in the table"
    losses = ", ".join(f"{row['side']} {row['first_loss']:.4f}" for row in rows)
    return (
        f"{text}{_profile_table(rows)}\n\n{first['device']}, {known}; {first['parameters'] / 1e6:.0f}M parameters, "
        f"{first['flops'] / 1e12:.3g} TFLOP per step. Losses of the first step, as a check of equal work: {losses}."
    )


def _profile_table(rows: list[dict[str, Any]]) -> str:
    if rows[0]["profile"] is None:
        return ""
    names = list(rows[0]["profile"])
    cells = [[row["side"], *(f"{row['profile'][name]:.4g}" for name in names)] for row in rows]
    return f"\n\n{markdown(['side', *(f'{name} per step' for name in names)], cells)}"


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="0.6B", help="of the model (0.6B)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --size tiny only (cuda)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE", help="(all three)")
    parser.add_argument("--rows", type=int, help="of the batch (0.6B: 32)")
    parser.add_argument("--length", type=int, help="tokens of a row (0.6B: 2048)")
    parser.add_argument("--micro-batch", type=int, help="tokens of a forward and backward pass (0.6B: 16384)")
    parser.add_argument("--steps", type=int, default=8, help="per process that count, after two that do not (8)")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side (2)")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (1)")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations, on all sides")
    parser.add_argument("--profile", action="store_true", help="count waits, launches and idle time of a step")
    add_output_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and report."""
    options = parse()
    set_thread_environment(options.threads)
    if options.device == "cpu" and options.size != "tiny":
        stop(f"gpu_step: {options.size} on a CPU would take minutes a step; use --size tiny, or a CUDA device")
    report = BenchmarkReport("gpu_step", options)
    require_device("gpu_step", options.device)
    rows = measure(options)
    report.finish({"results": rows}, table(rows))


if __name__ == "__main__":
    main()
