"""Training engines and frozen models as a run configures them: in one process, or split over all of the run's.

What is built here is built on every rank (`areal.trainer.rank_group`), from the same configuration.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from areal.dataset.tokenizers import check_tokenizer
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.reference import FrozenModel
from areal.trainer.assembly import load_model, load_reference, resolve_device
from areal.utils.seeding import seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.engine.archon.engine import ArchonEngine
    from areal.engine.archon.loading import ShardSource
    from areal.engine.train.config import TrainEngineConfig
    from areal.trainer.config import RunConfig

    Engine = TrainingEngine | ArchonEngine

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
) -> Engine:
    """The engine that trains the run's model. settings: those of this engine, actor or critic. head: puts something in
    place of the projection to the vocabulary, for a critic.
    """
    is_critic = head is not None
    if config.archon is None:
        model = load_model(config, tokenizer)
        return TrainingEngine(
            model if head is None else head(model), config=settings, total_steps=total_steps, is_critic=is_critic
        )
    from areal.engine.archon.engine import ArchonEngine

    model, source = _to_split(config, tokenizer)
    return ArchonEngine(
        model if head is None else head(model),
        config=settings,
        archon=config.archon,
        total_steps=total_steps,
        is_critic=is_critic,
        source=source,
    )


def _to_split(config: RunConfig, tokenizer: Any) -> tuple[Any, ShardSource | None]:
    """The run's model, without memory where every rank can read its own shards of it from files."""
    if not config.model.path or config.model.implementation != "native":
        return load_model(config, tokenizer), None
    from areal.engine.archon.loading import ShardSource

    # With its index: of several devices, this process's own.
    device = torch.empty(0, device=resolve_device(config.actor.device)).device
    source = ShardSource(Path(config.model.path), device)
    model = source.blank()
    check_tokenizer(tokenizer, model.args.vocab_size)
    return model, source


def build_scorer(config: RunConfig, tokenizer: Any, path: str = "") -> Scorer:
    """A model that stays as it is: the one in `path`, or what the trained model is before its first step."""
    if config.archon is None:
        return FrozenModel(load_reference(config, tokenizer, path=path), config=config.actor)
    chosen = replace(config, model=replace(config.model, path=path)) if path else config
    # An engine that never steps: it holds shards of the model, and moments would only come with the first step.
    settings = replace(config.actor, lora=None, optimizer="adamw", gradient_checkpointing=False)
    return build_engine(chosen, tokenizer, settings=settings)


def published_weights(engine: Engine) -> Mapping[str, Tensor]:
    """What rollouts get: whole tensors on rank 0, and nothing on the others, which only take part in gathering them."""
    if isinstance(engine, TrainingEngine):
        return engine.weights()
    return engine.first_rank_weights()


def export_model(engine: Engine, config: RunConfig, folder: Path) -> None:
    """Write the trained model; of adapters, the merged model, and they alone in the folder "adapter" beside it."""
    engine.save_pretrained(folder)
    if config.actor.lora is not None:
        engine.save_adapter(folder.with_name("adapter"), base=config.model.path)
