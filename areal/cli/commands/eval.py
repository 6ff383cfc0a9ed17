"""Evaluate a checkpoint or a run on named sets of rows: avg@k, pass@k, maj@k with intervals; every sample is kept.

examples:
  areal eval runs/demo/none-1/grpo
  areal eval runs/demo/none-1/grpo --step 100 eval_sets.test.samples=8
  areal eval models/Qwen2.5-0.5B-Instruct --config examples/math/gsm8k_rl.yaml --sets test
  areal eval Qwen/Qwen2.5-0.5B-Instruct@main --config examples/math/gsm8k_rl.yaml
  areal eval examples/math/gsm8k_rl.yaml model.path=models/Qwen2.5-0.5B-Instruct
  areal eval runs/demo/none-1/grpo --compare runs/demo/none-1/warm-start/final

TARGET is a folder with config.json (a checkpoint), a folder with config.yaml (a run: its final model, or with --step a
recovery checkpoint), org/name@revision of the hub, or a configuration that names a model. The sets are `eval_sets` of a
configuration of kind rl; see docs/evaluation.md. Killed or interrupted, the same command goes on: nothing is sampled
twice. --compare evaluates another target on the same sets, or takes the folder of an evaluation, and says how sure the
difference is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

    from areal.trainer.evaluation.targets import EvalTarget


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal eval`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="checkpoint folder, run directory, org/name@revision of the hub, or configuration file",
    )
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", help="change one value, e.g. eval_sets.test.samples=16"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration with eval_sets (default: that of the target's run)"
    )
    parser.add_argument("--sets", default="", metavar="NAME,...", help="names of the sets (default: all)")
    parser.add_argument("--step", type=int, metavar="N", help="of a run: its recovery checkpoint of this step")
    parser.add_argument(
        "--compare", metavar="TARGET", help="another target on the same sets, or the folder of an evaluation"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of the evaluation (default: eval/NAME in the run)"
    )
    parser.add_argument("--restart", action="store_true", help="begin anew; old samples are kept under another name")
    parser.add_argument("--retry-faults", action="store_true", help="try again what was lost")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sampled, and sample nothing")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Evaluate, or say what would be done."""
    from areal.trainer.configuration.project import use_project
    from areal.trainer.evaluation.standalone import evaluate, plan_evaluation
    from areal.trainer.evaluation.targets import resolve_target

    # `reward=my_module:my_reward` finds my_module.py in the current folder; last, so that it shadows nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    use_project(Path.cwd())
    sets = tuple(name for name in arguments.sets.split(",") if name)
    plan = resolve_target(
        arguments.target,
        config_file=arguments.config,
        overrides=arguments.overrides,
        sets=sets,
        step=arguments.step,
        output=arguments.output,
    )
    other = None if arguments.compare is None else _other(arguments, plan)
    if arguments.dry_run:
        facts = plan_evaluation(plan)
        if other is not None:
            facts["compare"] = {"output": str(other)} if isinstance(other, Path) else plan_evaluation(other)
        return CommandReport(text=_plan_text(facts), data=facts)
    from areal.trainer.configuration.computing import start_computing

    start_computing(plan.config)
    how = {"restart": arguments.restart, "retry_faults": arguments.retry_faults}
    if other is not None and not isinstance(other, Path):
        found = evaluate(other, **how)
        if not found["finished"]:
            return _unfinished(found)
        other = other.output
    report = evaluate(plan, **how)
    if not report["finished"]:
        return _unfinished(report)
    from areal.trainer.evaluation.report import add_comparison, render_text

    if other is not None:
        report = add_comparison(plan.output, other, report)
    return CommandReport(
        text=render_text(report),
        data=report,
        next_steps=(f"{plan.output}/report.html shows samples; {plan.output}/samples.jsonl has all of them.",),
    )


def _other(arguments: argparse.Namespace, plan: EvalTarget) -> EvalTarget | Path:
    """Return what is compared with: a folder that is evaluated already, or a target with the sets of the first."""
    from areal.trainer.evaluation.store import MANIFEST
    from areal.trainer.evaluation.targets import config_file_of, resolve_target

    place = Path(arguments.compare)
    if (place / MANIFEST).is_file():
        return place
    return resolve_target(
        arguments.compare,
        config_file=config_file_of(arguments.target, arguments.config),
        overrides=[text for text in arguments.overrides if not text.startswith("model.path=")],
        sets=plan.sets,
        output=None if arguments.output is None else arguments.output / "compared",
    )


def _unfinished(found: dict[str, Any]) -> CommandReport:
    text = f"stopped at {found['samples']} of {found['of']} samples, which are kept in {found['output']}"
    return CommandReport(
        text=text, data=found, exit_code=int(found["exit_code"]), next_steps=("The same command goes on from there.",)
    )


def _plan_text(facts: dict[str, Any]) -> str:
    lines = [f"would evaluate {facts['target']} with engine {facts['engine']}, in {facts['output']}"]
    for name, entry in facts["sets"].items():
        count = "as many rows as there are" if entry["rows"] is None else f"{entry['rows']} rows"
        how = "greedy" if entry["greedy"] else "sampled"
        kept = f"; {entry['kept']} samples are there" if entry["kept"] else ""
        lines.append(f"  {name}: {count} x {entry['samples_per_row']} samples, {how}, reward {entry['reward']}{kept}")
    if "compare" in facts:
        lines.append(f"and compare it with {facts['compare'].get('target') or facts['compare']['output']}")
    return "\n".join(lines)
