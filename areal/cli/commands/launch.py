"""Run a program as several ranks on this machine, or a configuration on one node or many, with restarts and no orphans.

examples:
  areal launch --ranks 2 -- areal train run.yaml archon.parallel.dp_shard=2
  areal launch --ranks 4 --max-restarts 5 --grace 120 -- python my_training.py
  areal launch --ranks 2 --stall 600 --progress runs/a/b/metrics.jsonl -- areal train run.yaml
  areal launch run.yaml --on slurm --dry-run
  areal launch run.yaml --on ray job.name=gsm8k-b actor.lr=1e-5

After --: each rank finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as
torch.distributed expects them, and AREAL_LAUNCH_START, the number of the start. A program that fails is started again
and is expected to continue from its own checkpoint, as `areal train` does; not when it ends with 2, 20, 21, 22, 23, 75
or 127, which another start would only repeat. SIGTERM and Ctrl-C reach all ranks, which get --grace seconds to save.
The exit code is that of the rank that failed first (128 + signal when it was killed), or 124 for a stall.

With a configuration: its section `job` says which roles run on what (docs/cluster.md); --on names who starts them.
local and ray wait for the end; slurm submits and returns. --dry-run needs neither Slurm nor Ray and prints what would
be started, or every contradiction at once. `areal job` shows, follows and ends jobs.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

    from areal.infra.jobs.plan import JobPlan

_CONFIG_ENDINGS = (".yaml", ".yml")


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
    parser.add_argument(
        "--on", choices=("local", "ray", "slurm"), help="who starts the roles of CONFIG (default: its job.backend)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be started, and stop")
    parser.add_argument(
        "overrides", metavar="CONFIG.yaml [key=value ...] | -- PROGRAM ...", nargs="*",
        help="configuration with values to change, or a program and its arguments",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> CommandReport:
    """Launch and wait; the output of rank 0 goes to stderr."""
    program = list(arguments.overrides)
    if program and program[0].endswith(_CONFIG_ENDINGS):
        return launch_job(arguments, Path(program[0]), program[1:])
    from areal.api import UsageError
    from areal.infra.launch.config import LaunchConfig

    if arguments.on is not None:
        raise UsageError("--on needs a configuration", where="--on", fix="write areal launch run.yaml --on slurm")
    if not program:
        raise UsageError(
            "no program given", where="PROGRAM",
            fix="write it after --, e.g. areal launch --ranks 2 -- areal train run.yaml",
        )  # fmt: skip
    if shutil.which(program[0]) is None:
        raise UsageError(
            f"program {program[0]!r} not found", where="PROGRAM", fix="give a path, or a name that is on PATH"
        )
    if arguments.ranks < 1:
        raise UsageError(f"--ranks is {arguments.ranks}, expected at least 1", where="--ranks", fix="give 1 or more")
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
        return CommandReport(text=text, data=facts)
    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.launch.launcher import LocalLauncher

    launcher = LocalLauncher(program, config=config, log_folder=arguments.log_folder, on_output=_show)
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
    return CommandReport(text=text, data={"exit_code": result.exit_code, "starts": starts}, exit_code=result.exit_code)


def launch_job(arguments: argparse.Namespace, path: Path, overrides: list[str]) -> CommandReport:
    """Launch the roles of a configuration, or say what would be launched."""
    from areal.infra.jobs.backend import get_backend
    from areal.infra.jobs.compile import describe

    plan = plan_of(path, [*overrides, *([f"job.backend={arguments.on}"] if arguments.on else [])])
    if arguments.dry_run:
        preview = get_backend(plan.backend).preview(plan)
        from dataclasses import asdict

        return CommandReport(text=f"{describe(plan)}\n\n{preview}", data={"plan": asdict(plan), "preview": preview})
    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.submission import submit

    with StopRequest() as stop:
        outcome = submit(plan, os.environ, stop=stop, show=_show)
    follow = f"`areal job status {plan.name} --directory {Path(plan.folder).parent}` says how it goes"
    data = {"name": plan.name, "folder": plan.folder, "identity": outcome.identity, "outcome": outcome.text}
    return CommandReport(text=outcome.text, data=data, exit_code=outcome.exit_code, next_steps=(follow,))


def plan_of(path: Path, overrides: list[str]) -> JobPlan:
    """Return the plan of the section `job` of a configuration. Raises ConfigError with all contradictions."""
    import areal
    from areal.infra.jobs.checks import RunFacts
    from areal.infra.jobs.compile import compile_plan
    from areal.infra.jobs.config import JobConfig
    from areal.trainer.config import PPOConfig
    from areal.trainer.configuration import source

    config = source.load_config(path, overrides).config
    dims = None if config.archon is None else config.archon.parallel
    facts = RunFacts(
        config=str(path.absolute()),
        overrides=tuple(word for word in overrides if not word.startswith("job.")),
        content=source.dump_yaml(config),
        world_size=1 if dims is None else (dims.world_size if dims.dp_shard > 0 else None),
        uses_servers=isinstance(config, PPOConfig) and config.rollout.engine == "vllm",
        shares_memory=isinstance(config, PPOConfig) and config.weights.carrier == "shared_memory",
        takes_turns=isinstance(config, PPOConfig) and config.servers_take_turns,
        sleeps_learner=isinstance(config, PPOConfig) and config.servers.sleep_learner,
        python=sys.executable,
        working_folder=str(Path.cwd()),
        version=areal.__version__,
    )
    return compile_plan(config.job or JobConfig(), facts, os.environ)


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
