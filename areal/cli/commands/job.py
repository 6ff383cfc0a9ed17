"""Show, follow and end jobs that `areal launch CONFIG` has started.

examples:
  areal job list
  areal job status gsm8k-a --directory /shared/runs --json
  areal job logs gsm8k-a --role trainer --index 0 --follow
  areal job cancel gsm8k-a

A job's own word comes first, with the scheduler's next to it: one that does not answer makes a job unknown, not
failed. Lines of logs show secrets of the job as ***. cancel asks the job to save and end (job.grace_seconds), then ends
what is left, and returns when nothing of it runs; it acts on the one job that its name and owner fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import CommandReport, format_summary

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal job`."""
    parser.add_argument("action", choices=("cancel", "list", "logs", "status"), help="what to do")
    parser.add_argument("name", nargs="?", default="", help="job.name; not for list")
    parser.add_argument(
        "--directory", type=Path, default=Path("runs", "jobs"), metavar="DIR", help="job.directory (runs/jobs)"
    )
    parser.add_argument("--role", default="", help="logs: of this role only; runner for what runners say")
    parser.add_argument("--index", default="", help="logs: of this process of the role, or runner, only")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="logs: last lines of each file (20)")
    parser.add_argument("--follow", action="store_true", help="logs: go on until the job has ended")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Do it."""
    from areal.api import UsageError
    from areal.infra.jobs.logs import LogReader
    from areal.infra.jobs.submission import describe_job, find_job

    if arguments.action == "list":
        return list_jobs(arguments.directory)
    if not arguments.name:
        raise UsageError(f"areal job {arguments.action} needs a name", where="NAME", fix="see `areal job list`")
    folder, plan, backend = find_job(arguments.name, arguments.directory.absolute())
    if arguments.action == "logs":
        reader = LogReader(folder, plan, role=arguments.role, index=arguments.index)
        lines = reader.last_lines(arguments.lines)
        if not arguments.follow or arguments.json:
            return CommandReport(text="\n".join(lines), data={"lines": lines})
        print("\n".join(lines), flush=True)
        for line in reader.new_lines():
            print(line, flush=True)
        return CommandReport(text="")
    if arguments.action == "cancel":
        folder.ask_to_end()
        backend.cancel(plan, folder)
        facts = describe_job(folder, plan, backend)
        return CommandReport(text=f"job {plan.name} runs no more ({facts['state']})", data=facts)
    facts = describe_job(folder, plan, backend)
    return CommandReport(text=format_summary(facts), data=facts)


def list_jobs(directory: Path) -> CommandReport:
    """Return all jobs of a folder; what cannot be read is a warning."""
    from areal.api import ArealError
    from areal.infra.jobs.submission import describe_job, find_job

    jobs: list[dict[str, Any]] = []
    warnings = []
    for path in sorted(directory.absolute().glob("*/plan.json")):
        try:
            jobs.append(describe_job(*find_job(path.parent.name, path.parent.parent)))
        except ArealError as error:
            warnings.append(str(error))
    columns = {"name": 24, "backend": 6, "state": 10, "scheduler": 10, "reason": 0}
    rows = [" ".join(f"{job[name]:<{width}}" for name, width in columns.items()) for job in jobs]
    return CommandReport(
        text="\n".join(rows) or f"no jobs in {directory}", data={"jobs": jobs}, warnings=tuple(warnings)
    )
