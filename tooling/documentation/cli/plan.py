"""`areal-docs zh-plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report
from tooling.documentation.cli.arguments import PROGRAM
from tooling.documentation.cli.context import open_context
from tooling.documentation.worklist import markdown, tasks

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> Report:
    """The worklist of every page, or of those that are named."""
    context = open_context(arguments.repo, arguments.pages, ask_history=not arguments.no_history)
    work = tasks(context.tree, context.judge.all())
    return Report(
        command=f"{PROGRAM} zh-plan",
        changing=False,
        text=markdown(work, context.tree.settings.glossary),
        data={"tasks": work, "glossary": context.tree.settings.glossary},
    )
