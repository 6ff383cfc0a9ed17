"""Report on a run: a self-contained HTML page with curves and sampled rollouts, or a page of text.

examples:
  areal report runs/gsm8k/default
  areal report runs/gsm8k/default --text
  areal report runs/gsm8k/default --text --json
  areal report runs/gsm8k/default --output /tmp/gsm8k.html
  areal report runs/gsm8k/default --attempt 1

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
    parser.add_argument(
        "--attempt",
        type=int,
        default=None,
        metavar="N",
        help="show the steps as the Nth attempt at the run left them, before later ones did some again (default page: "
        "RUN/report.attempt-N.html)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> Report:
    """Write the page, or print the summary."""
    from areal.infra.metrics.report import metrics_file_of, write_report

    attempt = arguments.attempt
    if attempt is not None:
        _check_attempt(arguments.run_dir, attempt)
    if arguments.text:
        content = _content(arguments.run_dir, attempt)
        from areal.infra.diagnosis.summary import render

        return Report(text=render(content), data=content, next_steps=_next_steps(content))
    page = "report.html" if attempt is None else f"report.attempt-{attempt}.html"
    output = arguments.output or arguments.run_dir / page
    if arguments.dry_run:
        metrics_file_of(arguments.run_dir)
        verb = "replace" if output.exists() else "write"
        return Report(text=f"would {verb} {output}", data={"path": str(output), "replaces": output.exists()})
    content = (
        _content(arguments.run_dir, attempt) if arguments.json else {}
    )  # first: no page when there is nothing to say
    path = write_report(arguments.run_dir, output, attempt)
    return Report(text=f"wrote {path}", data={"path": str(path), "bytes": path.stat().st_size, **content})


def _check_attempt(run_dir: Path, attempt: int) -> None:
    """Raise UsageError when the run has no such attempt."""
    from areal.api import UsageError
    from areal.infra.metrics.attempts import read_attempts
    from areal.infra.metrics.report import metrics_file_of

    known = [one.number for one in read_attempts(metrics_file_of(run_dir))]
    if attempt not in known:
        there_are = f"it has {', '.join(map(str, known))}" if known else "it has logged nothing yet"
        raise UsageError(
            f"{run_dir} has no attempt {attempt}; {there_are}",
            where=str(run_dir),
            fix=f"name one of {', '.join(map(str, known))}" if known else "leave --attempt out",
        )


def _content(run_dir: Path, attempt: int | None) -> dict[str, Any]:
    from areal.infra.diagnosis.record import load_record
    from areal.infra.diagnosis.rules import diagnose
    from areal.infra.diagnosis.summary import summarise

    record = load_record(run_dir, attempt)
    return summarise(record, diagnose(record))


def _next_steps(content: dict[str, Any]) -> tuple[str, ...]:
    directory = content["run"]["directory"]
    return (f"`areal doctor {directory}` names causes and what to do.",) if content["signs"] else ()
