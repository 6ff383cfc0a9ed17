"""Run one role of a job on this node. Schedulers start this; people start `areal launch CONFIG --on ...`.

examples:
  areal node --plan runs/jobs/gsm8k/plan.json --role trainer               # under srun, which says which node this is
  areal node --plan runs/jobs/gsm8k/plan.json --role trainer --node 0 --life 0

Ends with the exit code of the job; 69 when a node or the first runner was lost, 78 when this node does not fit the
others (another version of areal, or a folder that is not shared). SIGTERM asks the whole job to save and end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import areal
from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal node`."""
    parser.add_argument("--plan", required=True, type=Path, metavar="FILE", help="plan.json of the job")
    parser.add_argument("--role", choices=("reward", "server", "trainer"), default="trainer", help="role to run")
    parser.add_argument("--node", type=int, metavar="N", help="which node of the role (default: SLURM_PROCID)")
    parser.add_argument("--life", type=int, metavar="N", help="which allocation (default: SLURM_RESTART_COUNT, or 0)")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input is closed")
    parser.add_argument(
        "--conclude",
        action="store_true",
        help="run nothing: say what became of the allocation, and queue the job again if it is to go on (Slurm)",
    )
    parser.add_argument("--notice", action="store_true", help="with --conclude: Slurm had asked for the end")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Run the runner."""
    from areal.api import UsageError
    from areal.infra.jobs.plan import read_plan

    plan = read_plan(arguments.plan)
    life = arguments.life if arguments.life is not None else int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if arguments.conclude:
        from areal.infra.jobs.slurm import conclude

        done = conclude(plan, life=life, notice=arguments.notice)
        return CommandReport(text=done.text, exit_code=done.exit_code)
    node = arguments.node if arguments.node is not None else int(os.environ.get("SLURM_PROCID", "-1"))
    if not 0 <= node < plan.role(arguments.role).num_nodes:
        raise UsageError(
            f"--node is {node}, and role {arguments.role} has {plan.role(arguments.role).num_nodes} nodes",
            where="--node",
            fix="give --node, from 0",
        )
    from areal.infra.jobs.node import NodeRunner

    version = areal.__version__
    runner = NodeRunner(plan, version=version, role=arguments.role, node=node, life=life, lifeline=arguments.lifeline)
    return CommandReport(text="", exit_code=runner.run())
