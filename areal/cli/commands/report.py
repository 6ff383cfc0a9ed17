"""Report on a run, or compare several: a self-contained HTML page with curves and sampled rollouts, or text.

examples:
  areal report runs/gsm8k/default
  areal report runs/gsm8k/default --text
  areal report runs/gsm8k/default --text --json
  areal report runs/gsm8k/default --output /tmp/gsm8k.html
  areal report runs/gsm8k/default --attempt 1
  areal report runs/gsm8k/low runs/gsm8k/high --output comparison.html --follow

The HTML page needs no network and may be sent to others. --text writes no file: it prints how far the run came, how its
metrics went, where the time goes, faults, and warning signs with their numbers; --json has the same as data, with or
without the page. All of it works while the run goes on, and for a run that crashed. `areal doctor RUN` names causes.
docs/run-reports.md describes the fields.

Several runs are compared: overlaid curves with smoothing and a logarithmic axis, results, settings that differ, and
answers to the same prompts (default page: comparison.html in the current folder). With --follow the page is written
again until the runs have ended, and loads itself again where it is open.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import UsageError
from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal report`."""
    parser.add_argument(
        "run_dirs", metavar="RUN", type=Path, nargs="+", help="run directory, the folder that holds metrics.jsonl"
    )
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
    parser.add_argument(
        "--follow",
        type=int,
        nargs="?",
        const=15,
        metavar="SECONDS",
        help="compare several runs again every so many seconds (15) until they have ended",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Write the page, or print the summary."""
    from areal.infra.metrics.recordings import find_recordings
    from areal.infra.metrics.report import metrics_file_of, write_report

    attempt = arguments.attempt
    if len(arguments.run_dirs) > 1:
        return _compare(arguments)
    arguments.run_dir = arguments.run_dirs[0]
    if arguments.follow is not None:
        raise UsageError("--follow compares several runs, and one was named", fix="name the runs to compare")
    if attempt is not None:
        _check_attempt(arguments.run_dir, attempt)
    if arguments.text:
        content = _content(arguments.run_dir, attempt)
        from areal.infra.diagnosis.summary import render

        directory = content["run"]["directory"]
        steps = (f"`areal doctor {directory}` names causes and what to do.",) if content["signs"] else ()
        return CommandReport(text=render(content), data=content, next_steps=steps)
    page = "report.html" if attempt is None else f"report.attempt-{attempt}.html"
    output = arguments.output or arguments.run_dir / page
    if arguments.dry_run:
        metrics_file_of(arguments.run_dir)
        verb = "replace" if output.exists() else "write"
        return CommandReport(text=f"would {verb} {output}", data={"path": str(output), "replaces": output.exists()})
    content = (
        _content(arguments.run_dir, attempt) if arguments.json else {}
    )  # first: no page when there is nothing to say
    path = write_report(arguments.run_dir, output, attempt)
    recordings = [one.as_dict() for one in find_recordings(arguments.run_dir)]
    facts = {"path": str(path), "bytes": path.stat().st_size, "recordings": recordings, **content}
    return CommandReport(text=f"wrote {path}", data=facts)


def _compare(arguments: argparse.Namespace) -> CommandReport:
    """Write the comparison, again and again with --follow, or print it."""
    import time

    from areal.infra.metrics.comparison import compare_runs, render_comparison, write_comparison

    runs, every = arguments.run_dirs, arguments.follow
    if arguments.attempt is not None:
        raise UsageError("--attempt shows one run, and several were named", fix="name one run, or leave it out")
    if every is not None and every < 1:
        raise UsageError(f"--follow is {every}, expected at least 1 second", fix="write --follow 15")
    output = arguments.output or Path("comparison.html")
    content = compare_runs(runs, [_goes_on(run) for run in runs])
    facts = {key: value for key, value in content.items() if key != "curves"}
    if arguments.text:
        return CommandReport(text=render_comparison(content), data=facts)
    if arguments.dry_run:
        verb = "replace" if output.exists() else "write"
        return CommandReport(text=f"would {verb} {output}", data={"path": str(output), "replaces": output.exists()})
    while every is not None and any(run["going_on"] for run in content["runs"]):
        write_comparison(content, output, refresh_seconds=every)
        time.sleep(every)
        content = compare_runs(runs, [_goes_on(run) for run in runs])
    path = write_comparison(content, output)
    return CommandReport(text=f"wrote {path}", data={"path": str(path), "bytes": path.stat().st_size, **facts})


def _goes_on(run_dir: Path) -> bool:
    from areal.infra.diagnosis.record import load_record

    return load_record(run_dir).state == "running"


def _check_attempt(run_dir: Path, attempt: int) -> None:
    """Raise UsageError when the run has no such attempt."""
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
