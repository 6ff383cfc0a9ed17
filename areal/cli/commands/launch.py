"""Run a program as several ranks on this machine; end them together, and start them again when one fails.

examples:
  areal launch --ranks 2 -- areal train run.yaml archon.parallel.dp_shard=2
  areal launch --ranks 4 --max-restarts 5 --grace 120 -- python my_training.py
  areal launch --ranks 2 --stall 600 --progress runs/a/b/metrics.jsonl -- areal train run.yaml

Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as torch.distributed
expects them, and AREAL_LAUNCH_START, the number of the start. A program that fails is started again and is expected to
continue from its own checkpoint, as `areal train` does; not when it ends with 2, 20, 21, 22, 23, 75 or 127, which
another start would only repeat. SIGTERM and Ctrl-C reach all ranks, which get --grace seconds to save. The exit code is
that of the rank that failed first (128 + signal when it was killed), or 124 for a stall.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from areal.cli.output import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal launch`; defaults are those of `LaunchConfig`."""
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="N", help="further starts (default: 3)")
    parser.add_argument(
        "--grace", type=float, default=60.0, metavar="SECONDS", help="between SIGTERM and SIGKILL (default: 60)"
    )
    parser.add_argument(
        "--stall", type=float, default=0.0, metavar="SECONDS",
        help="start again when --progress does not change for this long; 0 never does (default: 0)",
    )  # fmt: skip
    parser.add_argument("--progress", default="", metavar="FILE", help="file that changes as long as the run gets on")
    parser.add_argument(
        "--log-folder", type=Path, default=Path("runs", "launch"), metavar="DIR",
        help="gets a folder per start, with a file per rank (default: runs/launch)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would be started, and stop")
    parser.add_argument("program", metavar="-- PROGRAM ...", nargs=argparse.REMAINDER, help="program and its arguments")


def run(arguments: argparse.Namespace) -> Report:
    """Launch and wait; the output of rank 0 goes to stderr."""
    from areal.api import UsageError
    from areal.infra.launch.config import LaunchConfig

    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise UsageError("no program given; write it after --, e.g. areal launch --ranks 2 -- areal train run.yaml")
    if shutil.which(program[0]) is None:
        raise UsageError(f"program {program[0]!r} not found; give a path, or a name that is on PATH")
    if arguments.ranks < 1:
        raise UsageError(f"--ranks is {arguments.ranks}, expected at least 1")
    config = LaunchConfig(
        num_ranks=arguments.ranks,
        max_restarts=arguments.max_restarts,
        grace_seconds=arguments.grace,
        stall_seconds=arguments.stall,
        progress_file=arguments.progress,
    )
    if arguments.dry_run:
        facts = {"program": program, "ranks": config.num_ranks, "max_restarts": config.max_restarts,
                 "log_folder": str(arguments.log_folder)}  # fmt: skip
        text = f"would start {config.num_ranks} ranks of: {' '.join(program)}\nlogs would go to {arguments.log_folder}"
        return Report(text=text, data=facts)
    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.launch.launcher import LocalLauncher

    def show(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    launcher = LocalLauncher(program, config=config, log_folder=arguments.log_folder, on_output=show)
    with StopRequest() as stop:
        result = launcher.run(stop)
    starts: list[dict[str, Any]] = [
        {"incarnation": start.incarnation, "seconds": round(start.seconds, 2), "status": start.status,
         "rank": start.rank, "text": start.text, "logs": str(start.log_folder)}
        for start in result.starts
    ]  # fmt: skip
    text = "\n".join(
        f"start {number}: {start['text']} after {start['seconds']} s" for number, start in enumerate(starts)
    )
    return Report(text=text, data={"exit_code": result.exit_code, "starts": starts}, exit_code=result.exit_code)
