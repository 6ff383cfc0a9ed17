"""How long `areal-new` takes: `--help` next to an empty Python, generating a reward next to bare `copier copy`.

    python benchmarks/areal_new.py [--rounds 10] [--clock wall|cpu] [--json]

Both sides of a comparison are whole processes that run in turn. `copier copy` renders the same template with the same
answers through copier's own command line, and does nothing else: no gates, registry, receipt, lock or journal. The
phases are measured inside one process each, imports by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
AREAL_NEW = [os.fspath(BIN / "areal-new")]
NAME = "benchmark_unit"
COPIED = (".gitignore", "areal", "docs/extensions.md", "pyproject.toml", "templates", "tests/conftest.py", "tooling")

PHASES = {
    "import copier": ("", "import copier"),
    "import libcst": ("", "import libcst"),
    "import git": ("", "import git"),
    "render and format": ("{prepare}import copier, jinja2", "files = produce(*arguments)"),
    "gates (ruff check)": ("{prepare}files = produce(*arguments)", "check_files(project.root, files)"),
    "registry edit": ("{registry}import libcst", "add_entry(source, entry)"),
}
"""Phase -> what is done before, and what is timed; both run in a new process."""

PREPARE = """
from pathlib import Path
from tooling.kit.template.rendering import check_files, format_files
from tooling.kit.names import parse_name
from tooling.kit.template.rendering import render
from tooling.kit.template.questions import load_questions
from tooling.new.change import open_project
from tooling.new.commands.generate import UnitRequest, plan_unit
project = open_project(Path.cwd())
arguments = (project, UnitRequest(kind="reward", name="phase_unit"))
def produce(project, request):
    plan = plan_unit(project, request).plan
    return {change.path: change.after for change in plan.changes if change.path.endswith(".py")}
"""
REGISTRY = """
from pathlib import Path
from tooling.kit.edits import add_entry
from tooling.kit.kind import RegistryEntry
path = "areal/reward/registry.py"
entry = RegistryEntry(path, "mapping", "REWARDS", "phase_unit", "areal.reward.phase_unit:phase_unit_reward")
source = Path(path).read_bytes()
"""
TIMED = """
{before}
import time
started = time.perf_counter()
{timed}
print(time.perf_counter() - started)
"""


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side per round; the sides take turns, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            taken = run()
            if number:
                seconds[name].append(taken)
    return seconds


def children_cpu() -> float:
    """Processor seconds of all processes that were started and have ended, their own children included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": children_cpu}


def timed(command: list[str], folder: Path, clock: Callable[[], float]) -> float:
    """Seconds of a process that has to succeed."""
    started = clock()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(folder), check=False)
    taken = clock() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return taken


def environment(folder: Path) -> dict[str, str]:
    """Run the copy's own code; its bytecode is written once, before anything is counted."""
    return {**os.environ, "PYTHONPATH": os.fspath(folder), "OMP_NUM_THREADS": "1"}


def copy_repository(target: Path) -> None:
    """Make what generating a reward needs, as a repository of its own."""
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy(source, target / name)
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "start"]):
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        subprocess.run(["git", *identity, *words], cwd=target, check=True, capture_output=True)


def answers_for_copier(world: Path) -> list[str]:
    """Return what `areal-new` gives to the template besides answers, and answers that it worked out, as `--data`."""
    subprocess.run(
        [*AREAL_NEW, "reward", NAME, "--no-test", "--json"],
        cwd=world,
        env=environment(world),
        capture_output=True,
        check=True,
    )
    receipt = json.loads((world / f".areal/receipts/reward/{NAME}.json").read_text())
    subprocess.run(
        [*AREAL_NEW, "undo", "reward", NAME], cwd=world, env=environment(world), check=True, capture_output=True
    )
    given: dict[str, Any] = {**receipt["names"], "package": "areal", "package_path": "areal", "tests": "tests"}
    given |= {"kind": "reward", **receipt["answers"]}
    return [word for name, value in given.items() for word in ("--data", f"{name}={_text(value)}")]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def compare(world: Path, scratch: Path, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Measure generating, and rendering with copier alone."""
    data = answers_for_copier(world)
    template = os.fspath(world / "templates" / "reward")

    def areal_new() -> float:
        taken = timed([*AREAL_NEW, "reward", NAME, "--no-test"], world, clock)
        timed([*AREAL_NEW, "undo", "reward", NAME], world, clock)
        return taken

    def copier() -> float:
        target = scratch / "rendered"
        taken = timed(
            [os.fspath(BIN / "copier"), "copy", "--defaults", "--quiet", *data, template, str(target)], world, clock
        )
        shutil.rmtree(target)
        return taken

    return alternate({"areal-new reward --no-test": areal_new, "copier copy": copier}, rounds)


def start_up(world: Path, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Asking for help, and starting Python."""
    sides = {
        "areal-new --help": lambda: timed([*AREAL_NEW, "--help"], world, clock),
        "copier --help": lambda: timed([os.fspath(BIN / "copier"), "--help"], world, clock),
        "python -c pass": lambda: timed([sys.executable, "-c", "pass"], world, clock),
    }
    return alternate(sides, rounds)


def phases(world: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of parts of the work."""

    def run(before: str, what: str) -> float:
        program = TIMED.format(before=before.format(prepare=PREPARE, registry=REGISTRY), timed=what)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=world,
            env=environment(world),
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout.splitlines()[-1])

    sides = {name: (lambda parts=parts: run(*parts)) for name, parts in PHASES.items()}
    return alternate(sides, rounds)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="counted runs of each side (default: %(default)s)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor seconds, which other load disturbs less"
    )
    parser.add_argument("--json", action="store_true", help="print every measured second as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="areal-new-benchmark-") as folder:
        world = Path(folder) / "areal"
        copy_repository(world)
        measured = {
            "start-up": start_up(world, arguments.rounds, CLOCKS[arguments.clock]),
            "generating": compare(world, Path(folder), arguments.rounds, CLOCKS[arguments.clock]),
            "phases": phases(world, max(3, arguments.rounds // 3)),
        }
    if arguments.json:
        print(json.dumps({"machine": machine(), **measured}))
        return 0
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for title, sides in measured.items():
        print(f"\n{title}")
        medians = {name: statistics.median(seconds) for name, seconds in sides.items()}
        reference = list(medians.values())[-1]
        for name, median in medians.items():
            low, high = min(sides[name]), max(sides[name])
            said = f"  {name:<28} {median:7.3f} s  ({low:.3f} to {high:.3f})"
            if title != "phases":
                said += f"  {median / reference:5.2f}x  {median - reference:+.3f} s"
            print(said)
    return 0


def machine() -> dict[str, Any]:
    """Where figures come from; load_average says how far to trust them."""
    load = [round(value, 2) for value in os.getloadavg()]
    return {"cpus": os.cpu_count(), "load_average": load, "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())
