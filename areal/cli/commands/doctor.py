"""Find causes of what went wrong in a run, or is about to: symptoms, evidence with numbers, what to do.

examples:
  areal doctor runs/gsm8k/default
  areal doctor runs/gsm8k/default --json
  areal doctor --rules   # every rule: sign, condition, cause, what to do

Reads the run directory alone (metrics, log, configuration, logs of servers and of `areal launch`) and changes nothing;
the run may go on meanwhile. Exit code 0: no rule applies; 10: causes were found. docs/run-reports.md lists the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

    from areal.infra.diagnosis.record import RunRecord
    from areal.infra.diagnosis.rules import Finding

FOUND: Final = 10
"""Exit code of a check that found something, the same as in the harness's programs."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal doctor`."""
    parser.add_argument(
        "run_dir", metavar="RUN", type=Path, nargs="?", help="run directory, the folder that holds metrics.jsonl"
    )
    parser.add_argument("--rules", action="store_true", help="print the table of rules, and look at no run")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Apply the rules."""
    from areal.api import UsageError
    from areal.infra.diagnosis.rules import RULES, diagnose

    if arguments.rules == (arguments.run_dir is not None):
        raise UsageError(
            "give a run directory, or --rules alone",
            where="RUN",
            fix="name a run: areal doctor runs/<experiment>/<trial>",
        )
    if arguments.rules:
        rules = {name: rule.texts() for name, rule in RULES.items()}
        blocks = [
            "\n".join([name, *(f"  {field:<11}{text}" for field, text in row.items())]) for name, row in rules.items()
        ]
        return CommandReport(text="\n\n".join(blocks), data={"rules": rules})
    from areal.infra.diagnosis.record import load_record

    record = load_record(arguments.run_dir)
    return _report(record, diagnose(record))


def _report(record: RunRecord, findings: list[Finding]) -> CommandReport:
    from areal.infra.diagnosis.learning import is_solved
    from areal.infra.diagnosis.rules import RULES
    from areal.infra.diagnosis.summary import describe_run, head_line
    from areal.infra.metrics import names

    described = describe_run(record)
    looked: dict[str, Any] = {
        "rules": list(RULES),
        "steps": len(record.steps),
        "log_lines": len(record.lines),
        "launches": len(record.launches),
        "server_logs": list(record.servers),
        "checkpoints": len(record.checkpoints),
    }
    seen = (
        f"{len(RULES)} rules over {looked['steps']} steps of metrics, {looked['log_lines']} log lines, "
        f"{looked['launches']} starts by a launcher, {len(record.servers)} server logs, "
        f"{looked['checkpoints']} checkpoints"
    )
    head = f"{described['directory']}: {head_line(described)}"
    blocks = [
        f"{number}. {one.rule.sign}  [{one.name}]\n"
        f"   evidence  {one.grounds.text}\n"
        f"   cause     {one.rule.cause} ({one.rule.confidence})\n"
        f"   do        {one.rule.fix}\n"
        f"   see       {one.rule.see}"
        for number, one in enumerate(findings, 1)
    ]
    shown = [
        {"rule": one.name, **one.rule.texts(), "evidence": one.grounds.text, "numbers": one.grounds.numbers}
        for one in findings
    ]
    solved = is_solved(record)
    nothing = (
        f"nothing found; the task is solved: mean reward {record.late(names.REWARD_MEAN):.3g} late"
        if solved
        else ("nothing found")
    )
    body = "\n\n".join(blocks) if findings else nothing
    missing = tuple(f"{record.directory} has no {what}: rules that read it were left out" for what in
                    described["without"])  # fmt: skip
    return CommandReport(
        text=f"{head}\n\n{body}\n\nlooked at: {seen}",
        data={"run": described, "findings": shown, "solved": solved, "looked_at": looked},
        exit_code=FOUND if findings else 0,
        warnings=missing,
    )
