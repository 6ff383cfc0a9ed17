"""`areal-docs zh-check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report
from tooling.documentation.cli.arguments import LAGGING, PROGRAM
from tooling.documentation.cli.context import open_context
from tooling.documentation.report import document, github, text

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> Report:
    """Every page, or those that are named."""
    context = open_context(arguments.repo, arguments.pages, ask_history=not arguments.no_history)
    outcome = context.judge.all()
    lags = any(page.lags for page in outcome.pages)
    diffs = not arguments.no_diff
    shown = github(outcome, failing=arguments.check) if arguments.github else text(outcome, diffs=diffs)
    return Report(
        command=f"{PROGRAM} zh-check",
        exit_code=LAGGING if arguments.check and lags else 0,
        changing=False,
        text=shown,
        next_steps=(f"{PROGRAM} zh-plan",) if lags and not arguments.github else (),
        data=document(outcome, diffs=diffs),
    )
