"""Train as a YAML configuration says, with changes given as key=value.

examples:
  areal train gsm8k.yaml
  areal train gsm8k.yaml actor.lr=1e-5 rollout.batch_size=32
  areal train gsm8k.yaml objective.surrogate.clip_high=0.28 --dry-run
  areal train gsm8k.yaml reward=my_rewards:score --restart
  areal launch --ranks 4 -- areal train gsm8k.yaml archon.parallel.dp_shard=4

Values are YAML: null, true, 1e-5, [1, 2], {clip_high: 0.28}. Every key is described in docs/reference/config.md and
printed with its value and origin by --dry-run, which trains nothing: it reads rows and headers of weights, renders a
prompt, calls the reward once, estimates memory, and lists all problems at once (exit code 2); a checkpoint that the run
would refuse to continue ends it with the exit code of that run.
The same command continues a run that was stopped or has crashed, from its newest checkpoint; of one that is finished it
says so and trains nothing (exit code 24). --restart moves what the run left into archived/ in its directory first.

With archon, every process of a launch (or of torchrun) runs this same command: rank 0 leads and reports, the others end
with its exit code and print nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import UsageError
from areal.cli.output import CommandReport, format_summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.trainer.config import RunConfig


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal train`."""
    parser.add_argument("config", metavar="CONFIG.yaml", type=Path, help="configuration file")
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", help="change one value, e.g. actor.lr=1e-5; the last one wins"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try out rows, prompt, reward and weights; show every value with its origin; train nothing",
    )
    parser.add_argument(
        "--trace",
        metavar="STEPS",
        help="record what happens when in these steps, e.g. 10 or 10-12, for ui.perfetto.dev (metrics.trace.steps)",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="continue from the newest checkpoint of the run directory, or refuse to when there is one (default: "
        "checkpoint.resume)",
    )
    start.add_argument(
        "--restart",
        action="store_true",
        help="start over: move what an earlier run left in the run directory into archived/ there; nothing is deleted",
    )


def run(arguments: argparse.Namespace) -> CommandReport:
    """Load, check, then train or report."""
    from areal.trainer.configuration import source, validation
    from areal.trainer.configuration.project import use_project
    from areal.trainer.hub_sources import with_pins
    from areal.trainer.run import check_processes, world_size

    # `reward=my_module:my_reward` finds my_module.py in the current folder; last, so that it shadows nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    use_project(Path.cwd())
    overrides = list(arguments.overrides)
    if arguments.resume is not None:
        overrides.append(f"checkpoint.resume={str(arguments.resume).lower()}")
    if arguments.trace is not None:
        first, _, last = arguments.trace.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(
                f"--trace is {arguments.trace!r}, expected a step or a range of steps", fix="write --trace 10-12"
            )
        overrides.append(f"metrics.trace.steps=[{int(first)}, {int(last or first)}]")
    resolved = source.load_config(arguments.config, overrides)
    config = resolved.config
    resolved = with_pins(resolved, restart=arguments.restart)
    if (num_processes := world_size()) is not None:
        check_processes(resolved.config, num_processes)
    if arguments.dry_run:
        from areal.trainer.dry_run import dry_run

        found = dry_run(resolved, restart=arguments.restart)
        if not (because := found.refused_because):
            return CommandReport(text=found.text, data=found.facts)
        refused = found.facts["recovery"]
        return CommandReport(
            text=found.text,
            data={**found.facts, "error": because, **{key: refused[key] for key in ("code", "where", "fix")}},
            exit_code=refused["exit_code"],
            warnings=(f"the run would be refused: {because}",),
            next_steps=(f"The run would be refused (exit code {refused['exit_code']}): {refused['fix']}",),
        )
    validation.validate_run(resolved.config, resolved.provenance)
    from areal.trainer.run import run as run_training

    summary = dict(run_training(config, restart=arguments.restart))
    code = int(summary.get("exit_code", 0))
    if "rank" in summary:
        return CommandReport(text="", exit_code=code, silent=True)
    run_dir = resolved.config.directory
    again = (summary.get("hub") or {}).get("again")
    # The code is not 0 when a signal ended the run early, or its model could not be published.
    return CommandReport(
        text=format_summary(summary),
        data={"run_dir": str(run_dir), "summary": summary},
        exit_code=code,
        next_steps=(
            *_to_continue(summary, resolved.config, arguments),
            *([f"The model was not published; `{again}` tries again."] if again else []),
            f"`areal report {run_dir}` writes a page with curves and sampled rollouts.",
        ),
    )


def _to_continue(summary: Mapping[str, Any], config: RunConfig, arguments: argparse.Namespace) -> tuple[str, ...]:
    """Say what was saved of a run that was stopped, and with which command it goes on."""
    from areal.trainer.run import world_size

    saved = summary.get("saved")
    if summary.get("finished") or saved is None:
        return ()
    words = ["The same command"]
    words += ["without --restart"] if arguments.restart else []
    words += [] if config.checkpoint.resume else ["with --resume"]
    words.append("continues from there")
    resume = [] if config.checkpoint.resume else ["--resume"]
    # Of a launch, this is not the command that was typed.
    command = shlex.join(["areal", "train", str(arguments.config), *arguments.overrides, *resume])
    typed = "" if world_size() is not None else f": `{command}`"
    return (
        f"Stopped after step {summary['steps']} of {summary['total_steps']}; the state after step {saved['step']} is "
        f"saved in {saved['folder']}. {' '.join(words)}{typed}",
    )
