"""Say what a run would find in its directory, and when it would save, for the dry run.

Reads names alone, loads no checkpoint and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.infra.checkpoint.archive import ARCHIVE_FOLDER, plan_archive
from areal.infra.checkpoint.schedule import describe
from areal.infra.checkpoint.store import FOLDER_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.trainer.config import RunConfig


def recovery_facts(config: RunConfig, *, restart: bool = False) -> dict[str, Any]:
    """Return when the run saves, which checkpoints are there, how it would begin, and with `restart` what is moved."""
    folder = config.directory / "checkpoints"
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    steps = sorted({int(match[1]) for name in names if (match := FOLDER_PATTERN.fullmatch(name))})
    plan = plan_archive(config.directory) if restart else None
    if restart:
        begin = "restart"
    elif steps and not config.checkpoint.resume:
        begin = "refused"
    else:
        begin = "resume" if steps else "start"
    return {
        "saves": describe(config.checkpoint),
        "checkpoint_steps": steps,
        "begin": begin,
        "archive": None if plan is None else {"to": str(plan.target), "entries": list(plan.entries)},
    }


def render_recovery(facts: Mapping[str, Any]) -> str:
    """Return the same as lines of text."""
    steps, archive = facts["checkpoint_steps"], facts["archive"]
    begins = {
        "start": "starts at step 0: there is no checkpoint",
        "resume": f"continues from the checkpoint of step {max(steps, default=0)}",
        "refused": f"refused: there are checkpoints of steps {steps} and checkpoint.resume is false; use --restart",
        "restart": f"starts at step 0; --restart finds nothing to move into {ARCHIVE_FOLDER}/",
    }
    begin = begins[facts["begin"]]
    if archive is not None:
        begin = f"starts at step 0; --restart moves {', '.join(archive['entries'])} into {archive['to']}"
    return f"Recovery\n  begins  {begin}\n  saves   {facts['saves']}"
