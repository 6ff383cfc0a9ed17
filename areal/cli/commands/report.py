"""Write one self-contained HTML page about a run: curves, timings and sampled rollouts, coloured by policy version.

examples:
  areal report runs/gsm8k/default
  areal report runs/gsm8k/default --output /tmp/gsm8k.html

The page needs no network and may be sent to others. It can be written while the run goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal.cli.output import Report

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal report`."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="run directory, the folder that holds metrics.jsonl")
    parser.add_argument(
        "--output", type=Path, default=None, metavar="FILE", help="page to write (default: RUN/report.html)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> Report:
    """Write the page."""
    from areal.infra.metrics.report import metrics_file_of, write_report

    output = arguments.output or arguments.run_dir / "report.html"
    if arguments.dry_run:
        metrics_file_of(arguments.run_dir)
        verb = "replace" if output.exists() else "write"
        return Report(text=f"would {verb} {output}", data={"path": str(output), "replaces": output.exists()})
    path = write_report(arguments.run_dir, output)
    return Report(text=f"wrote {path}", data={"path": str(path), "bytes": path.stat().st_size})
