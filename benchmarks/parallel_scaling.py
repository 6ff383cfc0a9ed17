"""One training step of `TrainingEngine` split over processes, every dimension alone: time, memory, bytes sent.

    .venv/bin/python benchmarks/parallel_scaling.py [--world-size 1 2 4] [--rounds 2] [--json]

What is compared: the same batch and model (float32, 4M parameters; the mixture 11M, of which 4M work on a token), one
thread per process, over gloo. The cases of all numbers of processes run in turn, `--rounds` times.

efficiency  seconds of one process, divided by (processes times seconds); 100% would be perfect
memory      the most that any rank holds while it trains, beyond the process before it had a model
sent        by a rank in a step, if every collective is a ring, counted while it runs; `planned` is what `areal plan`
            says of the same step

Where there are fewer cores than processes, they share them: then the efficiency that is possible is cores / processes,
and it is marked. Processes of one machine talk through memory; over a network, what is sent costs more.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from common import (
    ROOT,
    BenchmarkReport,
    add_output_arguments,
    markdown,
    planned,
    processors,
    progress,
    set_thread_environment,
    shown,
    spread,
)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures per case."""
    from areal.engine.archon.equality.launch import run_processes

    arguments = [f"--steps={options.steps}", f"--groups={options.groups}", f"--only={options.only}"]
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for world_size in options.world_size:
            progress(f"parallel_scaling: round {number + 1} of {options.rounds}, {world_size} processes")
            worker = str(ROOT / "benchmarks/parallel_worker.py")
            for result in run_processes(worker, world_size, arguments, timeout_seconds=900):
                found.setdefault(result["case"], []).append(result)
    return _rows(found, options.groups)


def _rows(found: dict[str, list[dict[str, Any]]], groups: int) -> list[dict[str, Any]]:
    rows = []
    for name, results in found.items():
        first = results[0]
        rows.append(
            {key: first[key] for key in ("case", "model", "world_size", "sent_bytes", "calls", "loss")}
            | {
                "seconds": spread([value for result in results for value in result["seconds"]]),
                "peak_bytes": [max(each) for each in zip(*(result["peak_bytes"] for result in results), strict=True)],
                "planned_bytes": planned_bytes(name, first["world_size"], groups),
            }
        )
    single = {row["model"]: row["seconds"]["median"] for row in rows if row["world_size"] == 1}
    for row in rows:
        base = single.get(row["model"])
        row["efficiency"] = None if base is None else base / (row["world_size"] * row["seconds"]["median"])
        row["cores_missing"] = row["world_size"] > len(processors())
    return rows


def planned_bytes(name: str, world_size: int, groups: int) -> int:
    """Return what `areal plan` says a rank sends in this step."""
    from parallel_worker import GROUP, MICRO_BATCH, MODELS, PROMPT, TRAINING, cases, make_batch

    case = next(case for case in cases(world_size) if case.name == name)
    lengths = make_batch(groups).lengths
    micro_batches = -(-int(lengths.sum()) // (MICRO_BATCH * case.dims.num_data_ranks))
    # A prompt that samples share is computed, and travels, once.
    shared = MICRO_BATCH - MICRO_BATCH // (int(lengths[0]) * GROUP) * (GROUP - 1) * PROMPT
    sizes = " ".join(f"{key}={value}" for key, value in asdict(case.dims).items())
    actor = {"max_tokens_per_micro_batch": shared, "dtype": TRAINING.dtype}
    plan = planned(MODELS[case.model], actor, f"--parallel={sizes}", f"--micro-batches={micro_batches}")
    return int(plan["communication_bytes"])


def table(rows: list[dict[str, Any]]) -> str:
    """One row per case."""
    header = ["processes", "split", "s/step", "efficiency", "memory of a rank, MB", "sent, MB", "planned, MB"]

    def efficiency(row: dict[str, Any]) -> str:
        if row["efficiency"] is None:
            return ""
        return f"{row['efficiency']:.0%}{' (*)' if row['cores_missing'] else ''}"

    text = markdown(
        header,
        [
            [
                str(row["world_size"]),
                row["case"],
                shown(row["seconds"]),
                efficiency(row),
                f"{max(row['peak_bytes']) / 1e6:.0f}",
                f"{row['sent_bytes'] / 1e6:.1f}",
                f"{row['planned_bytes'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )
    marked = max((row["world_size"] for row in rows if row["cores_missing"]), default=0)
    if not marked:
        return text
    cores = len(processors())
    return f"{text}\n\n(*) {marked} processes on {cores} cores: {cores / marked:.0%} is all there could be."


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--world-size",
        type=int,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="numbers of processes, 1 among them (1 2)",
    )
    parser.add_argument("--steps", type=int, default=4, help="of every case that count, after one that does not (4)")
    parser.add_argument("--groups", type=int, default=8, help="prompts of the batch, with 4 samples each (8)")
    parser.add_argument("--rounds", type=int, default=2, help="launches of every number of processes (2)")
    parser.add_argument("--only", default="", metavar="TEXT", help='cases whose name has this in it, e.g. "tp"')
    add_output_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and report."""
    options = parse()
    set_thread_environment(1)
    report = BenchmarkReport("parallel_scaling", options)
    crowded = [number for number in options.world_size if number > len(processors())]
    if crowded:
        progress(f"parallel_scaling: warning: {crowded} processes share {len(processors())} cores")
    rows = measure(options)
    report.finish({"results": rows}, table(rows))


if __name__ == "__main__":
    main()
