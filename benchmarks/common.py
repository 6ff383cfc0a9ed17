"""What stand-alone benchmarks share: bounded threads, alternating timing, where figures come from, and their way into
docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs/benchmarks.md"
TRL_PYTHON: Final = ROOT / ".venv-trl/bin/python"
VLLM_PYTHON: Final = ROOT / ".venv-vllm/bin/python"
TRL_VLLM_PYTHON: Final = ROOT / ".venv-trl-vllm/bin/python"
SETUP: Final = {
    TRL_PYTHON: "bash scripts/setup_trl.sh",
    TRL_VLLM_PYTHON: "bash scripts/setup_trl.sh --vllm",
    VLLM_PYTHON: "bash scripts/setup_vllm.sh",
}
"""Environments of other programs, and what makes them."""
EXIT_CODES: Final = "exit codes: 0 measured, 1 a side failed, 2 wrong arguments, or what is compared is missing"


def set_thread_environment(threads: int) -> None:
    """Bound the thread pools; call before torch is imported.

    Waiting threads sleep instead of spinning, or the two sides would steal each other's cores.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def alternate(
    sides: Mapping[str, Callable[[], int]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, dict[str, float]]:
    """Run the sides in turn, `rounds` times each after one warm-up, so that a slow minute of the machine hits all.

    Each side returns how many tokens it produced. Per side: median, minimum and maximum tokens per second over the
    rounds. clock: `time.process_time` counts this process's processor seconds, which other load disturbs less.
    """
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            started = clock()
            tokens = run()
            if number:
                rates[name].append(tokens / (clock() - started))
    return {name: spread(values) for name, values in rates.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def shown(figures: Mapping[str, float], form: str = ".2f") -> str:
    """ "median (min to max)"."""
    return f"{figures['median']:{form}} ({figures['min']:{form}} to {figures['max']:{form}})"


def processors() -> list[int]:
    """Numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def load_average() -> list[float]:
    """Over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def machine() -> dict[str, Any]:
    """Where figures come from; load_average says how far to trust them."""
    import torch

    return {
        "cpus": os.cpu_count(),
        "load_average": load_average(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
    }


def require(name: str, *interpreters: Path) -> None:
    """End the program with exit code 2, and say how to set it up, when an environment is missing."""
    missing = [path for path in interpreters if not path.exists()]
    if missing:
        needed = ", then ".join(f"`{SETUP[path]}`" for path in missing)
        stop(f"{name}: run {needed} first ({', '.join(path.parts[-3] for path in missing)} is missing)")


def stop(reason: str, *, code: int = 2) -> None:
    """End the program: nothing was measured."""
    print(reason, file=sys.stderr)
    sys.exit(code)


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """--device."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: bfloat16 on all sides (cpu)")


def require_device(name: str, device: str) -> None:
    """End the program with exit code 2 where there is no such device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        stop(f"{name}: there is no CUDA device; --size tiny --device cpu tries the program without one")


def device_dtype(device: str) -> str:
    """Name of the dtype that all sides compute in."""
    return "bfloat16" if device == "cuda" else "float32"


def progress(text: str) -> None:
    """Tell people what runs; stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """--json and --write-docs."""
    parser.epilog = EXIT_CODES
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the table")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/benchmarks.md")


class BenchmarkReport:
    """Figures of one program on their way out. Make it before measuring: the load of the machine begins there."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        # An exception ends what was started; the signal's own way leaves it running.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self.started, self.load_before = time.time(), load_average()

    def finish(self, figures: Mapping[str, Any], table: str) -> None:
        """Print figures or table, and write the table where it is asked for."""
        where = machine() | {"load_average_before": self.load_before, "seconds": round(time.time() - self.started, 1)}
        text = f"{table}\n\n{self._footnote(where)}"
        if self.options.write_docs:
            write_docs(self.name, text)
        if self.options.json:
            settings = {key: value for key, value in vars(self.options).items() if key not in ("json", "write_docs")}
            print(json.dumps({"machine": where, "settings": settings, **figures}, indent=2, default=str))
        else:
            print(text)

    def _footnote(self, where: Mapping[str, Any]) -> str:
        before, after = ("/".join(f"{value:.1f}" for value in where[key]) for key in _LOADS)
        gpus = f"{', '.join(where['gpus'])} (CUDA {where['cuda']}), " if where["gpus"] else ""
        return (
            f"{gpus}{len(processors())} cores, load average {before} before and {after} after, which counts the "
            f"measurement itself; {where['seconds']:.0f} s in all. torch {where['torch']}, Python {where['python']}."
        )


_LOADS: Final = ("load_average_before", "load_average")


def planned(model: Mapping[str, Any], actor: Mapping[str, Any], *options: str) -> dict[str, Any]:
    """Return what `areal plan --json` says of training a model (content of a config.json) with settings of `actor`.

    options: of the command, e.g. "--parallel=tp=2".
    """
    import argparse

    from areal.cli.commands import plan

    parser = argparse.ArgumentParser()
    plan.configure(parser)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.yaml"
        config.write_text(json.dumps({"kind": "sft", "model": {"init": dict(model)}, "actor": dict(actor)}))
        # More memory than there is anywhere: it is asked for the numbers, not for a verdict.
        return dict(plan.run(parser.parse_args([str(config), "--memory=1000000", *options])).data)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_docs(name: str, text: str) -> None:
    """Replace what stands between the page's markers of this program. Without them, nothing is written."""
    from areal.utils.atomic import atomic_write

    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = DOCUMENT.read_text(encoding="utf-8")
    head, found, rest = page.partition(begin)
    _old, closed, tail = rest.partition(end)
    if not found or not closed:
        stop(f"{DOCUMENT}: expected the markers {begin} and {end}, once each")
    atomic_write(DOCUMENT, f"{head}{begin}\n{text}\n{end}{tail}")
