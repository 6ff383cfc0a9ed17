"""Write the model of a recovery checkpoint as a Hugging Face folder, in one process, however many ranks trained it.

exported = export_checkpoint(Path("runs/gsm8k/grpo"), step=40)
exported.folder        # runs/gsm8k/grpo/exports/step-00000040: config.json, safetensors, tokenizer

The files are those that the run itself would have written at that step, bit by bit on the same kind of device.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from areal.api import CheckpointError, UsageError
from areal.hub.publishing import publish
from areal.infra.checkpoint.store import CheckpointStore, DamagedError
from areal.trainer.config import PPOConfig, RewardModelConfig
from areal.trainer.configuration.source import config_from_mapping
from areal.trainer.milestones import adapter_folder, export_folder
from areal.trainer.model_card import build_card

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from areal.hub.names import HubName
    from areal.hub.publishing import Publication
    from areal.infra.checkpoint.store import Checkpoint
    from areal.trainer.config import RowsConfig

CHECKPOINTS: Final = "checkpoints"
_NEEDED: Final = ("kind", "seed", "model", "actor")
"""What decides which model a checkpoint holds; other keys may be of another version of this program."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A model in Hugging Face format."""

    folder: Path
    step: int
    adapter: Path | None
    """The adapters alone, for a run that trained adapters; `folder` has them merged."""


def find_step(run: Path, step: int | None = None) -> int:
    """Return the step of a recovery checkpoint: `step` itself, if it is there, or the newest for None.

    Raises UsageError when there is no such checkpoint; says which there are.
    """
    known = _store(run).steps()
    if step is None and known:
        return known[-1]
    if step is None or step not in known:
        listed = ", ".join(map(str, known)) or "none"
        missing = "recovery checkpoint" if step is None else f"recovery checkpoint of step {step}"
        raise UsageError(
            f"{run} has no {missing}; there are {listed}",
            where=str(run / CHECKPOINTS),
            fix=f"use one of the steps {listed}" if known else "train with checkpoint.every_steps set",
        )
    return step


def export_checkpoint(run: Path, *, step: int | None = None, output: Path | None = None) -> Exported:
    """Write the model of a recovery checkpoint, whole states or shards of any number of ranks, and return where.

    step: of the checkpoint; None takes the newest. output: folder of the model; None is exports/step-N in the run. A
    checkpoint folder that is there is replaced at once; the adapters alone go beside it.

    Raises UsageError when there is no such checkpoint, CheckpointError when it is damaged or the folder cannot be
    written, ConfigError when the model it goes on top of is gone.
    """
    from areal.models.saving import check_replaceable

    chosen = find_step(run, step)
    folder = output or export_folder(run, chosen)
    check_replaceable(folder)
    checkpoint = _undamaged(run, chosen, CheckpointStore.load)
    config = _config_of(checkpoint)
    _write(checkpoint, config, folder)
    adapter = None
    if config.actor.lora is not None and not isinstance(config, RewardModelConfig):
        adapter = adapter_folder(folder)
    return Exported(folder=folder, step=chosen, adapter=adapter)


def check_step(run: Path, step: int) -> None:
    """Raise as `export_checkpoint` does for a checkpoint of which files are missing or cut short; reads none."""
    _undamaged(run, step, CheckpointStore.check)


def push_model(run: Path, folder: Path, name: HubName, *, step: int, private: bool) -> Publication:
    """Publish a model of a run, which is in `folder`, with a card from the run.

    Raises UsageError when the run has no configuration, HubError when the hub refuses or stays out of reach.
    """
    card = build_card(run, name, step=step)
    message = f"Model after step {step} of {run.resolve().name}"
    return publish(folder, name, card=card, private=private, message=message)


def _undamaged(run: Path, step: int, read: Callable[[CheckpointStore, int], _T]) -> _T:
    """Return what is read of a checkpoint. Raises CheckpointError for a damaged one, with the newest intact one."""
    store = _store(run)
    try:
        return read(store, step)
    except DamagedError as error:
        other = store.intact_beside(step)
        if other is None:
            message = f"the checkpoint of step {step} is damaged, and no other in {store.directory} is intact: {error}"
            raise CheckpointError(message, where=str(store.directory), fix="restore one from a copy") from error
        command = shlex.join(["areal", "export", str(run), "--step", str(other)])
        intact = f"The newest {'older ' if other < step else ''}one that is intact is of step {other}"
        raise CheckpointError(
            f"the checkpoint of step {step} is damaged: {error}. {intact}",
            where=str(store.directory),
            fix=f"export that one: `{command}`",
        ) from error


def _write(checkpoint: Checkpoint, config: PPOConfig | RowsConfig, folder: Path) -> None:
    from areal.models.reward_model import save_reward_model
    from areal.models.value_head import ValueModel
    from areal.trainer.assembly import EngineStates, build_engine, export_model, tokenizer_of

    head: Any = partial(ValueModel, bias=False) if isinstance(config, RewardModelConfig) else None
    tokenizer = tokenizer_of(config.model)
    # Whatever the schedule was: no step will be done.
    engine = build_engine(config, tokenizer, settings=config.actor, head=head)
    together = "learner" if isinstance(config, PPOConfig) else ""
    EngineStates({"actor": engine}, together=together).load(checkpoint.path)
    if isinstance(config, RewardModelConfig):
        save_reward_model(engine.save_pretrained, folder, pad_token_id=tokenizer.pad_token_id)
    else:
        export_model(engine, config, folder)
    tokenizer.save_pretrained(folder)


def _config_of(checkpoint: Checkpoint) -> PPOConfig | RowsConfig:
    """Return the part of the run's configuration that says what was trained, for one process."""
    meta = checkpoint.meta.get("config")
    if not isinstance(meta, dict) or not all(key in meta for key in _NEEDED):
        raise CheckpointError(
            f"{checkpoint.path} does not say which configuration it was made with",
            where=str(checkpoint.path),
            fix="export a checkpoint that `areal train` wrote",
        )
    needed = {key: meta[key] for key in _NEEDED}
    config = config_from_mapping(needed, source=f"{checkpoint.path.name}/manifest.json")
    # Adapters are merged where they were trained, so that rounding is the same; a whole model is only copied.
    device = config.actor.device if config.actor.lora is not None else "cpu"
    # What "auto" was where it was trained.
    dtype = checkpoint.meta.get("dtype", config.actor.dtype)
    actor = replace(config.actor, device=device, dtype=dtype, lr_schedule="constant", offload_optimizer=False)
    return replace(config, actor=actor)


def _store(run: Path) -> CheckpointStore:
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        raise UsageError(
            f"{run} holds no {CHECKPOINTS}/; expected the directory of a run that has saved its state",
            where=str(run),
            fix="name the directory of a run, e.g. runs/<experiment>/<trial>",
        )
    return CheckpointStore(folder, keep=1)
