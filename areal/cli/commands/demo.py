"""Train a tiny model by reinforcement learning on this machine and show that it learns, with controls that must not.

examples:
  areal demo
  areal demo --control shuffled-rewards   # the same run with rewards dealt out at random: nothing may be learnt
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal.cli.output import CommandReport, format_summary

if TYPE_CHECKING:
    import argparse

CONTROLS = ("none", "sft-only", "shuffled-rewards")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal demo`."""
    parser.add_argument("--seed", type=int, default=1, help="seed of data, parameters and sampling")
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="run directory (default: runs/demo/<control>-<seed>)",
    )
    parser.add_argument(
        "--steps", type=int, default=None, metavar="N", help="training steps (default: what the demo needs to learn)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say where it would write, what it would remove and how long it trains"
    )
    parser.add_argument(
        "--control",
        choices=CONTROLS,
        default="none",
        help="none: train. sft-only: stop before RL. shuffled-rewards: RL on rewards that say nothing (default: none)",
    )


def run(arguments: argparse.Namespace) -> CommandReport:
    """Run the demo; exit code 1 when it reports that it did not do what it should."""
    from areal.trainer.demo import DemoConfig, plan_demo, run_demo

    config = DemoConfig(
        control=arguments.control, seed=arguments.seed, steps=arguments.steps, output_dir=arguments.output_dir
    )
    summary = plan_demo(config) if arguments.dry_run else run_demo(config)
    succeeded = bool(summary.pop("ok", True))
    text = summary.pop("text", None) or format_summary(summary)
    code = int(summary.get("exit_code", 0)) or (0 if succeeded else 1)
    return CommandReport(text=str(text), data=summary, exit_code=code)
