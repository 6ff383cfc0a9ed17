"""Say how a run would begin in its directory: whether it may continue a checkpoint, and what the dry run tells of it.

A checkpoint is continued with the configuration and the code that it was made with; `refusal` says what differs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from areal.api import CheckpointError, ConfigError
from areal.infra.checkpoint.archive import ARCHIVE_FOLDER, plan_archive
from areal.infra.checkpoint.schedule import describe
from areal.infra.checkpoint.store import FOLDER_PATTERN, DamagedError, read_manifest
from areal.trainer.code_fingerprint import changed_code, fingerprint_code
from areal.trainer.configuration.report import format_bytes
from areal.trainer.configuration.source import config_from_mapping, flatten, to_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from areal.api import ArealError
    from areal.trainer.code_fingerprint import Code
    from areal.trainer.config import RunConfig

FREE_TO_CHANGE: Final = (
    "archon", "checkpoint.", "early_stop", "eval_every_steps", "eval_rows", "eval_sets", "experiment_name", "export.",
    "job", "metrics.", "output_dir", "rollout.max_lost_rewards", "rollout.reward_memory_mb",
    "rollout.reward_timeout_seconds", "rollout.reward_workers", "servers.addresses", "servers.directory",
    "servers.directory_key", "servers.num_servers", "total_train_epochs", "total_train_steps", "trial_name",
)  # fmt: skip
"""Keys (and prefixes) that a resumed run may change; any other difference would silently train something else."""
FINISHED_FILE: Final = "finished.json"
"""In the run directory: {"steps": 100}, of the checkpoint that `final/` was written from."""
WAYS_OUT: Final = (
    "restore what was changed, start over with --restart (the old run is archived), use another output_dir, or accept "
    "the change with checkpoint.allow_config_change=true"
)


def refusal(config: RunConfig, code: Code, meta: Mapping[str, Any], *, step: int) -> str:
    """Return why the checkpoint with `meta` is not continued: settings or code that differ; "" when nothing does."""
    before, now = _plain(_completed(meta.get("config", {}))), _plain(to_mapping(config))
    changed = [
        f"  {key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not key.startswith(FREE_TO_CHANGE)
    ]
    if changed:
        return "\n".join(["the configuration differs from the one the checkpoint was made with:", *changed])
    edited = changed_code(meta.get("code") or {}, code)
    if edited:
        return "\n".join([f"code was changed since the checkpoint of step {step} was made with it:", *edited])
    return ""


def rows_refusal(before: object, now: str, *, step: int) -> str:
    """Return why the checkpoint of a step is not continued with rows of another fingerprint; "" when they are the same.

    before: what the checkpoint says, None in one that says nothing.
    """
    if before in (None, now):
        return ""
    return (
        f"train_dataset has other rows than those the checkpoint of step {step} was trained on (the file was edited or "
        "replaced)"
    )


def exported_step(directory: Path) -> int | None:
    """Return the step whose model was written into `final/`, wholly; None when there is none."""
    try:
        step = json.loads((directory / FINISHED_FILE).read_bytes())["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) and (directory / "final").is_dir() else None


def recovery_facts(
    config: RunConfig, memory: Mapping[str, Any] | None = None, *, restart: bool = False, rows: str = ""
) -> dict[str, Any]:
    """Return when the run saves, which checkpoints are there, how it would begin, and with `restart` what is moved.

    Reads names and the newest manifest, verifies no checkpoint and changes nothing. memory: that of a dry run's report,
    for the size of a checkpoint. rows: fingerprint of the training rows, which are not compared without it.
    """
    folder = config.directory / "checkpoints"
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    matches = [match for name in names if (match := FOLDER_PATTERN.fullmatch(name))]
    found = sorted((int(match[2]), int(match[1]), match[0]) for match in matches)
    steps = sorted({step for _, step, _ in found})
    plan = plan_archive(config.directory) if restart else None
    facts: dict[str, Any] = {
        "saves": describe(config.checkpoint),
        "keeps": config.checkpoint.keep,
        "checkpoint_bytes": None if memory is None else _checkpoint_bytes(config, memory),
        "checkpoint_steps": steps,
        "finished_steps": exported_step(config.directory),
        "begin": "restart" if restart else "resume" if steps else "start",
        "because": "",
        "exit_code": 0,
        "archive": None if plan is None else {"to": str(plan.target), "entries": list(plan.entries)},
    }
    if restart or not found:
        return facts
    refused: ArealError | None = None
    if not config.checkpoint.resume:
        refused = ConfigError(
            f"there are checkpoints of steps {steps} and checkpoint.resume is false; use --restart",
            fix="start over with --restart, which archives what is there",
        )
    else:
        refused = _refusal_of_newest(config, [(step, folder / name) for _, step, name in reversed(found)], rows)
    if refused is None:
        return facts | {"begin": "resume"}
    return facts | {
        "begin": "refused", "because": str(refused), "exit_code": refused.exit_code, "code": refused.code,
        "where": refused.where or str(config.directory), "fix": refused.fix,
    }  # fmt: skip


def render_recovery(facts: Mapping[str, Any]) -> str:
    """Return the same as lines of text."""
    newest, archive = max(facts["checkpoint_steps"], default=0), facts["archive"]
    begins = {
        "start": "starts at step 0: there is no checkpoint",
        "resume": f"continues from the checkpoint of step {newest}",
        "refused": f"refused: {facts['because']}",
        "restart": f"starts at step 0; --restart finds nothing to move into {ARCHIVE_FOLDER}/",
    }
    begin = begins[facts["begin"]]
    if facts["begin"] == "resume" and facts["finished_steps"] == newest:
        begin += "; its model is written, so without further steps nothing is trained (exit code 24)"
    if archive is not None:
        begin = f"starts at step 0; --restart moves {', '.join(archive['entries'])} into {archive['to']}"
    begin = begin.replace("\n", "\n          ")
    size = facts["checkpoint_bytes"]
    keeps = f"the newest {facts['keeps']} checkpoints" + ("" if size is None else f", about {format_bytes(size)} each")
    return f"Recovery\n  begins  {begin}\n  saves   {facts['saves']}\n  keeps   {keeps}"


def _refusal_of_newest(
    config: RunConfig, checkpoints: Sequence[tuple[int, Path]], rows: str
) -> ConfigError | CheckpointError | None:
    """Return what the run would raise; about the newest checkpoint, those that are damaged passed over as it would."""
    for step, folder in checkpoints:
        try:
            meta = read_manifest(folder).meta
        except DamagedError:
            continue
        except CheckpointError as error:
            return error
        problem = refusal(config, fingerprint_code(config), meta, step=step)
        if not problem and rows:
            problem = rows_refusal(meta.get("rows"), rows, step=step)
        if not problem or config.checkpoint.allow_config_change:
            return None
        return ConfigError(problem, where=str(folder), fix=WAYS_OUT)
    return CheckpointError(
        "all checkpoints are damaged",
        fix="restore one from a copy, or start over with --restart (the old run is archived)",
    )


def _checkpoint_bytes(config: RunConfig, memory: Mapping[str, Any]) -> int | None:
    """Return what weights (of adapters, they alone) and optimizer take on disk."""
    sizes = {item["name"]: item["bytes"] for item in memory["items"]}
    parts = [
        sizes[f"{name} {part}"]
        for name in ("actor", "critic")
        for part in ("weights" if config.actor.lora is None else "gradients", "optimizer")
        if f"{name} {part}" in sizes
    ]
    return sum(parts) if parts else None


def _completed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of a checkpoint with the defaults of keys that did not exist when it was made, as which
    it was computed; as it is where today's keys do not fit it."""
    try:
        return to_mapping(config_from_mapping(config))
    except ConfigError:
        return config


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by dotted key; sequences as lists, which is what JSON makes of them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in flatten(config).items()}
