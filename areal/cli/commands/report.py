"""Report on a run: a self-contained HTML page with curves and sampled rollouts, or a page of text.

examples:
  areal report runs/gsm8k/default
  areal report runs/gsm8k/default --text
  areal report runs/gsm8k/default --text --json
  areal report runs/gsm8k/default --output /tmp/gsm8k.html

The HTML page needs no network and may be sent to others. --text writes no file: it prints how far the run came, how its
metrics went, where the time goes, faults, and warning signs with their numbers; --json has the same as data, with or
without the page. All of it works while the run goes on, and for a run that crashed. `areal doctor RUN` names causes.
docs/run-reports.md describes the fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import Report

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal report`."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="run directory, the folder that holds metrics.jsonl")
    parser.add_argument("--text", action="store_true", help="print a summary with warning signs, and write no page")
    parser.add_argument(
        "--output", type=Path, default=None, metavar="FILE", help="page to write (default: RUN/report.html)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> Report:
    """Write the page, or print the summary."""
    from areal.infra.metrics.report import metrics_file_of, write_report

    if arguments.text:
        content = _content(arguments.run_dir)
        from areal.infra.diagnosis.summary import render

        return Report(text=render(content), data=content, next_steps=_next_steps(content))
    output = arguments.output or arguments.run_dir / "report.html"
    if arguments.dry_run:
        metrics_file_of(arguments.run_dir)
        verb = "replace" if output.exists() else "write"
        return Report(text=f"would {verb} {output}", data={"path": str(output), "replaces": output.exists()})
    content = _content(arguments.run_dir) if arguments.json else {}  # first: no page when there is nothing to say
    path = write_report(arguments.run_dir, output)
    return Report(text=f"wrote {path}", data={"path": str(path), "bytes": path.stat().st_size, **content})


def _content(run_dir: Path) -> dict[str, Any]:
    from areal.infra.diagnosis.record import load_record
    from areal.infra.diagnosis.rules import diagnose
    from areal.infra.diagnosis.summary import summarise

    record = load_record(run_dir)
    return summarise(record, diagnose(record))


def _next_steps(content: dict[str, Any]) -> tuple[str, ...]:
    directory = content["run"]["directory"]
    return (f"`areal doctor {directory}` names causes and what to do.",) if content["signs"] else ()
