"""How time and memory grow: each line of the table doubles one thing, or multiplies it by ten, and keeps the rest.

    python benchmarks/growth.py [--only step rollout records repository] [--largest 50000] [--json] [--write-docs]

step: a GRPO step of `areal train` against prompts, answer length, context and size of the model.
rollout: the runtime with prompts in flight, against their number; generation only sleeps.
records: `areal report` and `areal doctor` of a run, against the samples that it logged.
repository: commands of the harness in a project, against its Python files.

Every measurement is a process of its own: CPU seconds of it and its children (of a step: the median of its run), which
other load disturbs less than the time that passes, and the most memory that one of them held. `growth` is the slope of
log(CPU seconds, less those of the smallest size's fixed part) over the last two sizes: 1 is linear, above 1.15 is
marked.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from common import ROOT, BenchmarkReport, add_output_arguments, markdown, progress, set_thread_environment, stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BIN: Final = Path(sys.executable).parent
STEPS: Final = 8
SKIPPED_STEPS: Final = 2
STEP: Final = {"prompts": 8, "answer": 32, "context": 96, "layers": 2, "width": 128}
"""What a step is when nothing of it grows: prompts of `context` tokens, 8 answers each of at most `answer` tokens."""
SWEEPS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "prompts per step": ("prompts", (8, 16, 32, 64)),
    "answer, tokens": ("answer", (32, 64, 128, 256)),
    "prompt, tokens": ("context", (96, 384, 1536, 3072)),
    "layers": ("layers", (2, 4, 8, 16)),
    "width": ("width", (128, 256, 512)),
}
IN_FLIGHT: Final = (100, 1_000, 10_000)
SAMPLES: Final = (10_000, 100_000, 1_000_000)
FILES: Final = (500, 5_000, 50_000)
MARKED: Final = 1.15
MEASURE: Final = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss, done.stdout]))
"""
"""A small parent: Linux counts what the parent holds at the start of a process as memory of that process."""
IDENTITY: Final = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "`areal-upgrade-deps impact`": ("areal-upgrade-deps", "impact", "httpx==0.28.1", "--from", "0.27.2", "--json"),
    "`areal-review --commit HEAD`": ("areal-review", "--commit", "HEAD", "--json"),
    "`areal-commit suggest`": ("areal-commit", "suggest", "--json"),
    "`areal-new reward growth --dry-run`": ("areal-new", "reward", "growth", "--dry-run", "--json"),
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one process used."""

    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that grows."""

    work: str
    grows: str
    sizes: tuple[int, ...]
    costs: tuple[Cost, ...]

    def exponent(self) -> float:
        """Return the slope over the last two sizes, of what the smallest size does not cost as well.

        Costs 1.2, 2.0 and 10 s at sizes 10, 100 and 1,000: less a fixed part of 1.1 s, 0.9 and 8.9 s are a slope of 1.
        """
        (small, *_), (less, more) = self.sizes, self.sizes[-2:]
        first, before, last = self.costs[0].cpu_s, self.costs[-2].cpu_s, self.costs[-1].cpu_s
        fixed = max(0.0, first - (last - first) * small / (more - small))
        if before <= fixed or last <= before:
            return 0.0
        return math.log((last - fixed) / (before - fixed)) / math.log(more / less)


def measured(command: Sequence[str], folder: Path, *, accepted: tuple[int, ...] = (0,)) -> tuple[Cost, str]:
    """Run a command; return its cost and what it printed. Ends the program when it fails."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", MEASURE, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    code, cpu_s, peak_kb, printed = json.loads(ended.stdout)
    if code not in accepted:
        stop(f"{' '.join(command)}: exit code {code}\n{ended.stderr[-2000:]}", code=1)
    return Cost(cpu_s=round(cpu_s, 3), peak_mb=round(peak_kb / 1024, 1)), printed


def grown(work: str, grows: str, sizes: Sequence[int], measure: Callable[[int], Cost]) -> Line:
    """Measure one line."""
    costs = []
    for size in sizes:
        costs.append(measure(size))
        progress(f"{work}, {grows} {size:,}: {costs[-1].cpu_s} s, {costs[-1].peak_mb} MB")
    return Line(work=work, grows=grows, sizes=tuple(sizes), costs=tuple(costs))


def step_lines(folder: Path) -> list[Line]:
    """Grow a step in every direction."""

    def measure(**changed: int) -> Cost:
        """Median cost of a step; the first ones prepare kernels."""
        whole, printed = measured(_step_job(folder, STEP | changed), folder)
        steps = json.loads(printed[printed.index('{"steps"') :])["steps"][SKIPPED_STEPS:]
        return replace(whole, cpu_s=round(statistics.median(step["cpu_seconds"] for step in steps), 3))

    return [
        grown("GRPO step", label, sizes, lambda size, name=name: measure(**{name: size}))
        for label, (name, sizes) in SWEEPS.items()
    ]


def _step_job(folder: Path, step: dict[str, int]) -> list[str]:
    from grpo_vs_trl import gsm8k_rows, random_model

    shape = {
        "hidden_size": step["width"],
        "intermediate_size": 3 * step["width"],
        "num_hidden_layers": step["layers"],
        "max_position_embeddings": 8192,
    }
    model = folder / f"model-{step['layers']}-{step['width']}"
    if not model.exists():
        random_model(model, shape)
    rows = gsm8k_rows(step["prompts"] * STEPS, length=step["context"])
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    job = {
        "model": str(model), "prompts": str(folder / "prompts.jsonl"), "output_dir": str(folder / "out"),
        "images": False, "steps": STEPS, "prompts_per_step": step["prompts"], "group_size": 8, "seed": 1,
        "max_new_tokens": step["answer"],
        "max_seq_len": 32 + step["context"] + step["answer"], "lr": 1e-5, "loss_type": "dapo", "threads": 1,
        "device": "cpu", "dtype": "float32", "staleness": 0, "engine": "embedded",
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    return [sys.executable, str(ROOT / "benchmarks/areal_runner.py"), str(folder / "job.json")]


def rollout_lines(folder: Path) -> list[Line]:
    """Grow the prompts in flight."""
    child = [sys.executable, str(Path(__file__).resolve()), "--in-flight"]
    return [
        grown("rollout runtime", "prompts in flight", IN_FLIGHT, lambda size: measured([*child, str(size)], folder)[0])
    ]


def hold_in_flight(prompts: int) -> None:
    """Take two batches of half of `prompts` each, from a runtime that keeps all of them in flight; a child's work."""
    from async_vs_sync import Endless, OneToken, SleepingEngine

    from areal.infra.rollout.config import RolloutConfig
    from areal.infra.rollout.executor import RolloutExecutor

    config = RolloutConfig(batch_size=prompts // 2, group_size=1, max_head_offpolicyness=1)
    engine = SleepingEngine(1.0, 0.2)
    with RolloutExecutor(engine=engine, workflow=OneToken(), rows=Endless(), config=config, seed=1) as rollout:
        rollout.start()
        for version in (1, 2):
            rollout.next_batch()
            engine.version = version
            rollout.advance(version)


def record_lines(folder: Path) -> list[Line]:
    """Grow what a run logged: groups of 8 samples, a line of metrics for every 64 of them."""
    measured(_step_job(folder, STEP | {"answer": 4, "context": 16}), folder)
    run = folder / "out"
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    rollouts = _sampled_groups(folder)
    start, step_line = metrics[0], json.loads(metrics[-1])

    def logged(samples: int) -> None:
        with (run / "metrics.jsonl").open("w") as file:
            file.write(f"{start}\n")
            file.writelines(
                json.dumps(step_line | {"step": step, "time": step_line["time"] + step}) + "\n"
                for step in range(1, samples // 64 + 1)
            )
        with (run / "rollouts.jsonl").open("w") as file:
            for index in range(samples // 8):
                group = rollouts[index % len(rollouts)] | {"step": 1 + index // 8, "group": index}
                file.write(json.dumps(group) + "\n")

    def measure(command: tuple[str, ...]) -> Callable[[int], Cost]:
        def run_on(samples: int) -> Cost:
            logged(samples)
            return measured([str(BIN / "areal"), *command], folder, accepted=(0, 10))[0]

        return run_on

    return [
        grown(f"`areal {' '.join((command[0], *command[2:]))}`", "samples logged", SAMPLES, measure(command))
        for command in (("report", str(run)), ("report", str(run), "--text"), ("doctor", str(run)))
    ]


def _sampled_groups(folder: Path) -> list[dict[str, Any]]:
    samples = [
        {"index": index, "reward": float(index % 2), "components": {"exact": float(index % 2)}, "stats": {},
         "stop": "stop", "text": {"prompt": "12+30=", "completion": "42"}, "num_prompt_tokens": 6,
         "tokens": [52, 50, 257], "versions": [[0, 3]], "logprobs": [-0.1, -0.2, -0.3], "pieces": ["4", "2", "<eos>"]}
        for index in range(8)
    ]  # fmt: skip
    return [{"step": 1, "group": 0, "admitted_version": 0, "samples": samples, "faults": []}]


def repository_lines(folder: Path, largest: int) -> list[Line]:
    """Grow a project."""
    sizes = [size for size in FILES if size <= largest]
    projects = {size: _project(folder / f"project{size}", size) for size in sizes}

    def measure(command: tuple[str, ...]) -> Callable[[int], Cost]:
        def run_on(size: int) -> Cost:
            words = [str(BIN / command[0]), *command[1:]]
            measured(words, projects[size], accepted=(0, 10))
            return measured(words, projects[size], accepted=(0, 10))[0]

        return run_on

    return [grown(f"{label}, warm", "Python files", sizes, measure(command)) for label, command in COMMANDS.items()]


def _project(folder: Path, files: int) -> Path:
    """Make a project with a fresh commit of 20 changed files and a staged one; one file in 50 uses httpx."""
    subprocess.run([BIN / "areal", "init", str(folder), "--package", "own"], check=True, stdout=subprocess.DEVNULL)
    manifest = folder / "pyproject.toml"
    manifest.write_text(manifest.read_text().replace('["areal[train]"]', '["areal[train]", "httpx==0.27.2"]'))
    for number in range(files):
        place = folder / "own" / f"part{number // 100}" / f"module{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_module(number))

    def commit(message: str) -> None:
        subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
        subprocess.run(["git", *IDENTITY, "commit", "-q", "-m", message], cwd=folder, check=True)

    commit("feat: begin")
    for number in range(20):
        place = folder / "own" / "part0" / f"module{number}.py"
        place.write_text(place.read_text().replace("value * 2", "value * 3"))
    commit("fix(part0): scale by three")
    (folder / "own/part1/module100.py").write_text(_module(100) + "\n\ndef added(value):\n    return value\n")
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    return folder


def _module(number: int) -> str:
    client = "import httpx\n\n\ndef fetch(url):\n    return httpx.get(url, proxies={}, timeout=3)\n\n\n"
    neighbour = f"from own.part{max(0, number - 1) // 100}.module{max(0, number - 1)} import scale as other\n\n\n"
    methods = "".join(
        f"    def step{index}(self, value):\n        return value * 2 + {index}\n\n" for index in range(10)
    )
    return (
        f"{neighbour if number else ''}{client if number % 50 == 0 else ''}"
        f"def scale(value):\n    return value * 2\n\n\nclass Part{number}:\n{methods}"
    )


def table(lines: Sequence[Line]) -> str:
    """Show each line's sizes, seconds and memory."""
    rows = []
    for line in lines:
        slope = line.exponent()
        rows.append([
            line.work, line.grows, " / ".join(f"{size:,}" for size in line.sizes),
            " / ".join(f"{cost.cpu_s:.2f}" for cost in line.costs),
            f"{slope:.2f}" if slope <= MARKED else f"**{slope:.2f}**",
            " / ".join(f"{cost.peak_mb:,.0f}" for cost in line.costs),
        ])  # fmt: skip
    return markdown(["work", "what grows", "sizes", "CPU s", "growth", "peak memory, MB"], rows)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("step", "rollout", "records", "repository")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--largest", type=int, default=FILES[-1], help="Python files of the largest project")
    parser.add_argument("--in-flight", type=int, help=argparse.SUPPRESS)
    add_output_arguments(parser)
    options = parser.parse_args()
    if options.in_flight:
        hold_in_flight(options.in_flight)
        return 0
    set_thread_environment(1)
    report = BenchmarkReport("growth", options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        measures: dict[str, Callable[[], list[Line]]] = {
            "step": lambda: step_lines(folder),
            "rollout": lambda: rollout_lines(folder),
            "records": lambda: record_lines(folder),
            "repository": lambda: repository_lines(folder, options.largest),
        }
        lines = [line for part in options.only for line in measures[part]()]
    figures = [
        {"work": line.work, "grows": line.grows, "sizes": line.sizes, "costs": [vars(cost) for cost in line.costs],
         "growth": round(line.exponent(), 3)}
        for line in lines
    ]  # fmt: skip
    report.finish({"lines": figures}, table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
