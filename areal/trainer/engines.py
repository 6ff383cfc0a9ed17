"""Builds training engines and frozen models as a run configures them: in one process, or split over all of the run's.

What is built here is built on every rank (`areal.trainer.rank_group`), from the same configuration.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from areal.dataset.tokenizers import check_tokenizer
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.runner import FrozenModel
from areal.trainer.assembly import load_model, load_reference, resolve_device
from areal.utils.seeding import seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.engine.config import TrainEngineConfig
    from areal.engine.train.loading import ShardSource
    from areal.trainer.config import RunConfig

_Config = TypeVar("_Config", bound="RunConfig")
_Learner = TypeVar("_Learner")


class Scorer(Protocol):
    """An engine or a frozen model."""

    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """See `areal.api.TrainEngine`."""
        ...


def build_seeded(
    build: Callable[[_Config, Any, int], _Learner], config: _Config, tokenizer: Any, total_steps: int
) -> _Learner:
    """Build a learner with the same random numbers on every rank, though rank 0 has read rows meanwhile: new adapters,
    for one, begin with random numbers."""
    seed_everything(config.seed)
    return build(config, tokenizer, total_steps)


def build_engine(
    config: RunConfig,
    tokenizer: Any,
    *,
    settings: TrainEngineConfig,
    total_steps: int | None = None,
    head: Callable[[Any], nn.Module] | None = None,
) -> TrainingEngine:
    """Build the engine that trains the run's model. settings: those of this engine, actor or critic. head: puts
    something in place of the projection to the vocabulary, for a critic.
    """
    model, source = _load(config, tokenizer, load_model)
    return TrainingEngine(
        model if head is None else head(model),
        config=settings,
        archon=config.archon,
        total_steps=total_steps,
        is_critic=head is not None,
        source=source,
    )


def build_scorer(config: RunConfig, tokenizer: Any, path: str = "") -> FrozenModel:
    """Build a model that stays as it is: the one in `path`, or what the trained model is before its first step."""
    chosen = replace(config, model=replace(config.model, path=path)) if path else config
    model, source = _load(chosen, tokenizer, load_reference)
    return FrozenModel(model, config=config.actor, archon=config.archon, source=source)


def _load(config: RunConfig, tokenizer: Any, load: Callable[[RunConfig, Any], Any]) -> tuple[Any, ShardSource | None]:
    """Return the model that `load` gives, or one without memory where every rank can read its own shards of it from
    files.
    """
    if config.archon is None or not config.model.path or config.model.implementation != "native":
        return load(config, tokenizer), None
    from areal.engine.train.loading import ShardSource

    # With its index: of several devices, this process's own.
    device = torch.empty(0, device=resolve_device(config.actor.device)).device
    source = ShardSource(Path(config.model.path), device)
    model = source.blank()
    check_tokenizer(tokenizer, model.args.vocab_size)
    return model, source


def export_model(engine: TrainingEngine, config: RunConfig, folder: Path) -> None:
    """Write the trained model; of adapters, the merged model, and they alone in the folder "adapter" beside it."""
    engine.save_pretrained(folder)
    if config.actor.lora is not None:
        engine.save_adapter(folder.with_name("adapter"), base=config.model.path)
