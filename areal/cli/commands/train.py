"""Train as a YAML configuration says, with changes given as key=value.

examples:
  areal train gsm8k.yaml
  areal train gsm8k.yaml actor.lr=1e-5 rollout.batch_size=32
  areal train gsm8k.yaml objective.surrogate.clip_high=0.28 --dry-run
  areal launch --ranks 4 -- areal train gsm8k.yaml archon.parallel.dp_shard=4

Values are YAML: null, true, 1e-5, [1, 2], {clip_high: 0.28}. Every key is described in docs/reference/config.md and
printed with its value and origin by --dry-run, which checks the configuration, estimates memory and starts nothing.
With archon, every process of a launch (or of torchrun) runs this same command: rank 0 leads and reports, the others end
with its exit code and print nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from areal.cli.output import Report, format_summary


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal train`."""
    parser.add_argument("config", metavar="CONFIG.yaml", type=Path, help="configuration file")
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", help="change one value, e.g. actor.lr=1e-5; the last one wins"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check, show every value with its origin, estimate memory, stop"
    )
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="continue from the newest checkpoint of the run directory, or start over (default: checkpoint.resume)",
    )


def run(arguments: argparse.Namespace) -> Report:
    """Load, check, then train or report."""
    from areal.trainer.configuration import source, validation
    from areal.trainer.run import check_processes, world_size

    # `reward=my_module:my_reward` finds my_module.py in the current folder; last, so that it shadows nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    overrides = list(arguments.overrides)
    if arguments.resume is not None:
        overrides.append(f"checkpoint.resume={str(arguments.resume).lower()}")
    resolved = source.load_config(arguments.config, overrides)
    validation.validate_run(resolved.config, resolved.provenance)
    if (num_processes := world_size()) is not None:
        check_processes(resolved.config, num_processes)
    if arguments.dry_run:
        from areal.trainer.configuration.report import build_report, render_report

        facts = build_report(resolved)
        return Report(text=render_report(facts), data=facts)
    from areal.trainer.run import run as run_training

    summary = dict(run_training(resolved.config))
    code = int(summary.get("exit_code", 0))
    if "rank" in summary:
        return Report(text="", exit_code=code, silent=True)
    run_dir = resolved.config.directory
    # The code is not 0 when a signal ended the run early: its state was saved and the same command continues it.
    return Report(
        text=format_summary(summary),
        data={"run_dir": str(run_dir), "summary": summary},
        exit_code=code,
        next_steps=(f"`areal report {run_dir}` writes a page with curves and sampled rollouts.",),
    )
