"""`areal-commit hook`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.commit.hook import hooks_of, install, plan_install, plan_uninstall, uninstall
from tooling.kit.change.lock import repository_lock

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> Report:
    """Install or uninstall the hook."""
    repository = find_repository(arguments.repo)
    hooks = hooks_of(repository, shared=arguments.shared)
    installing = arguments.action == "install"
    if arguments.dry_run:
        plan = plan_install(repository, hooks) if installing else plan_uninstall(repository, hooks)
    else:
        with repository_lock(repository, wait_seconds=10.0):
            plan = plan_install(repository, hooks) if installing else plan_uninstall(repository, hooks)
            if plan.changes:
                install(hooks) if installing else uninstall(hooks)
    return Report(
        command=f"areal-commit hook {arguments.action}",
        dry_run=arguments.dry_run,
        changes=plan.changes,
        show_diff=arguments.diff,
        warnings=plan.notes,
        data={"hook": str(hooks.file)},
    )
