"""Build the parts of a run from its configuration, and save and load what it trains.

Rows, tokenizer and models come from the configuration; engines train a model in one process, or split over all of the
run's. What is built here is built on every rank (`areal.trainer.rank_group`), from the same configuration. Checkpoints
hold whole states of one process, or the shards of every rank. Either is continued by any number of processes, and
shards also by a run that splits nothing any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import torch

from areal.api import CheckpointError, ConfigError
from areal.dataset.encoding import check_tokenizer, load_tokenizer
from areal.dataset.loading import ShuffledRows, load_dataset
from areal.engine.precision import accelerator, concrete_dtype
from areal.engine.registry import training_engine
from areal.engine.train.runner import FrozenModel
from areal.hub.download import METADATA, local_folder
from areal.infra.checkpoint.store import load_state, save_state
from areal.trainer.milestones import adapter_folder
from areal.utils.atomic import atomic_write
from areal.utils.seeding import rng_state, seed_everything, set_rng_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from datasets import Dataset
    from torch import Tensor, nn

    from areal.api import DatasetKind, PaddedBatch
    from areal.dataset.config import DatasetConfig
    from areal.dataset.origins import LengthLimit
    from areal.engine.config import TrainEngineConfig
    from areal.engine.train.checkpoint import ShardedCheckpoints
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.engine import TrainingEngine
    from areal.engine.train.loading import ShardSource
    from areal.engine.train.ranks import Ranks
    from areal.trainer.config import ModelConfig, RunConfig
    from areal.trainer.rank_group import Distributed


def resolve_device(name: str) -> str:
    """ "auto" becomes the accelerator when there is one, else "cpu"."""
    return name if name != "auto" else accelerator() or "cpu"


def tokenizer_of(config: ModelConfig) -> Any:
    """Return the tokenizer: `tokenizer_path`, else the model's own folder. Raises ConfigError when there is none."""
    return load_tokenizer(config.tokenizer_path or config.path)


def load_model(config: RunConfig, tokenizer: Any) -> Any:
    """Return the model to train, an `areal.api.CausalModel`: from a checkpoint folder, or random weights from
    `model.init` and the run's seed.
    """
    import torch

    library: Any
    if config.model.implementation == "transformers":
        from areal.engine.hf import loading as library
    else:
        from areal.models import loading as library

    # Loaded in float32 whatever the compute dtype: the training engine keeps these as its master weights.
    options: dict[str, Any] = {"dtype": torch.float32, "device": resolve_device(config.actor.device)}
    if config.model.path:
        model = library.from_pretrained(config.model.path, **options)
    elif config.model.init:
        model = library.from_config(config.model.init, seed=config.seed, **options)
    else:
        raise ConfigError("model: set path (a checkpoint folder) or init (the content of a config.json)")
    check_tokenizer(tokenizer, model.args.vocab_size)
    return model


def load_reference(config: RunConfig, tokenizer: Any, *, path: str = "") -> Any:
    """Return a model that stays as it is: the one in `path`, or what the trained model is before its first step; in the
    dtype it is computed with.
    """
    import torch

    model = load_model(replace(config, model=replace(config.model, path=path)) if path else config, tokenizer)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, concrete_dtype(config.actor)))
    return model


def load_rows(
    config: DatasetConfig,
    tokenizer: Any,
    *,
    kind: DatasetKind,
    seed: int,
    limit: LengthLimit | None = None,
    place_images: Callable[[Dataset, str], Dataset] | None = None,
) -> ShuffledRows:
    """Return checked rows of one dataset in the run's order; errors name rows and the fix. limit: of their lengths
    (`areal.trainer.configuration.validation.length_limit`). place_images: see `load_dataset`."""
    dataset = load_dataset(config, tokenizer, kind=kind, limit=limit, place_images=place_images)
    return ShuffledRows(dataset, seed=seed, shuffle=config.shuffle)


def steps_in_run(config: RunConfig, *, num_rows: int, batch_size: int) -> int:
    """Training steps: total_train_steps, or what total_train_epochs passes over the rows fill (at least one)."""
    if config.total_train_steps is not None:
        return config.total_train_steps
    return max(1, config.total_train_epochs * num_rows // batch_size)


GENERATION_FILE: Final = "generation_config.json"

_Config = TypeVar("_Config", bound="RunConfig")
_Learner = TypeVar("_Learner")


class LogpScorer(Protocol):
    """An engine or a frozen model."""

    def forward_logp(
        self, batch: PaddedBatch | DividedBatch, *, temperature: float = 1.0, only_masked: bool = False
    ) -> Tensor:
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
    # Value models are native whatever the actor is.
    make = training_engine(config.archon if head is None else None)
    return make(
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
    source = ShardSource(local_folder(config.model.path), device)
    model = source.blank()
    check_tokenizer(tokenizer, model.args.vocab_size)
    return model, source


def export_model(engine: TrainingEngine, config: RunConfig, folder: Path) -> None:
    """Write the trained model; of adapters, the merged model, and they alone in `adapter_folder`.

    The generation_config.json of the model it started from goes with it, as it is: end tokens and defaults stay those
    that the model was trained with.
    """
    engine.save_pretrained(folder)
    if config.model.path and engine.ranks.rank == 0:
        defaults = local_folder(config.model.path, METADATA) / GENERATION_FILE
        if defaults.is_file():
            atomic_write(folder / GENERATION_FILE, defaults.read_bytes())
    if config.actor.lora is not None:
        engine.save_adapter(adapter_folder(folder), base=config.model.path)


_RNG: Final = "rng"
"""Random generators of the process that learns; of several ranks, rank 0's."""
_RNG_OF_RANK: Final = "rng_rank_"
"""Random generators of the ranks above 0."""
_RNG_OF_SAMPLING: Final = "rng_sampling"
"""Random generators of the process that samples, where another one learns."""


class EngineStates:
    """The engines of one rank as checkpoints see them. `save` and `load` are called on all ranks."""

    def __init__(self, engines: Mapping[str, TrainingEngine], *, together: str = "") -> None:
        """engines: by name. together: the name that their whole states are saved under as one; else each under its
        own."""
        self._engines = dict(engines)
        self._ranks = next(iter(engines.values())).ranks
        self._together = together
        self._sharded: dict[str, ShardedCheckpoints] = {}
        self._store = _Inside()

    @property
    def ranks(self) -> Ranks:
        """The processes that share the engines' models."""
        return self._ranks

    @property
    def is_sharded(self) -> bool:
        """Whether `save` has to write them, since no process has all of them."""
        return not self._ranks.is_alone

    def whole(self) -> dict[str, Any]:
        """States by the names of their files, of engines of one process."""
        states = {name: engine.state_dict() for name, engine in self._engines.items()}
        return {self._together: states} if self._together else states

    def save(self, folder: Path) -> None:
        """Write the shards and the random generators of this rank. Returns when those of all ranks are there.

        A process that is alone writes what `to_save` would have returned. Raises CheckpointError on all ranks when one
        cannot write: they go on together, and try again later.
        """
        if self._ranks.is_alone:
            for name, state in {**self.whole(), _RNG: rng_state()}.items():
                save_state(folder, name, state)
            return
        failure: str | None = None
        try:
            if self._ranks.rank:
                save_state(folder, f"{_RNG_OF_RANK}{self._ranks.rank}", _host_rng_state())
        except OSError as error:  # the disk may be full for this rank alone
            failure = str(error)
        if failed := self._ranks.failures(failure):
            listed = "; ".join(f"rank {rank}: {message}" for rank, message in failed.items())
            raise CheckpointError(f"no checkpoint was written: {listed}")
        for name in self._engines:
            shards = self._shards(name)
            self._store.folder = folder / name
            shards.save(0)
            shards.wait()

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, or from whole states. Raises CheckpointError or EngineError for those of
        another model.
        """
        from areal.engine.train.checkpoint import SHARDS_FOLDER

        for name, engine in self._engines.items():
            if (folder / name / SHARDS_FOLDER).is_dir():
                self._shards(name).load(folder / name)
            elif self._together:
                engine.load_state_dict(load_state(folder, self._together)[name])
            else:
                engine.load_state_dict(load_state(folder, name))
        rank = self._ranks.rank
        own = f"{_RNG_OF_RANK}{rank}" if rank else _RNG
        if not rank or (folder / f"{own}.json").is_file():  # there may be more ranks than before
            set_rng_state(load_state(folder, own))

    def _shards(self, name: str) -> ShardedCheckpoints:
        """Made when it is first needed, on all ranks: it makes a group of processes."""
        if name not in self._sharded:
            from areal.engine.train.checkpoint import ShardedCheckpoints

            store = None if self._ranks.rank else self._store
            self._sharded[name] = ShardedCheckpoints(self._engines[name], store)
        return self._sharded[name]


class Learner(Protocol):
    """Whatever a run trains, on one rank."""

    @property
    def states(self) -> EngineStates:
        """States of its engines."""
        ...


def save_states(learner: Learner, folder: Path) -> None:
    """See `EngineStates.save`."""
    learner.states.save(folder)


def load_states(learner: Learner, folder: Path) -> None:
    """See `EngineStates.load`."""
    learner.states.load(folder)


def to_save(learner: Distributed[Learner], others: Mapping[str, Any]) -> Mapping[str, Any] | Callable[[Path], None]:
    """Return what a `CheckpointStore` is given on rank 0: states by name, or what fills the folder of a checkpoint.

    others: what rank 0 alone has, beside the random generators.
    """
    states = learner.local.states
    if not states.is_sharded:
        return {**states.whole(), **others, _RNG: rng_state()}

    own = _RNG_OF_SAMPLING if learns_elsewhere(learner) else _RNG

    def write(folder: Path) -> None:
        for name, state in {**others, own: _host_rng_state()}.items():
            save_state(folder, name, state)
        learner.run(save_states, folder)

    return write


def learns_elsewhere(learner: Distributed[Learner]) -> bool:
    """Whether a process beside this one, which only leads it, has the engines."""
    states = learner.local.states
    return states.is_sharded and states.ranks.is_alone


def continue_sampling_rng(learner: Distributed[Learner], folder: Path) -> None:
    """Continue this process's random generators, after all is built, which draws from them. They are those of the
    process that sampled, whichever learned; a run that learned in the same one continues elsewhere, too."""
    if (folder / f"{_RNG_OF_SAMPLING}.json").is_file():
        set_rng_state(load_state(folder, _RNG_OF_SAMPLING))
    elif learns_elsewhere(learner):
        set_rng_state(load_state(folder, _RNG))


class _Inside:
    """The store of `ShardedCheckpoints`, for shards that are part of a checkpoint which another store publishes."""

    folder: Path

    def save(self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any] | None = None) -> Path:
        """Fill the folder; `step` and `meta` are written down by the other store."""
        del step, meta
        self.folder.mkdir()
        write(self.folder)
        return self.folder


def _host_rng_state() -> dict[str, Any]:
    """Without those of devices: every rank sees all of its machine's, and its own device's is among its shards."""
    return {name: state for name, state in rng_state().items() if name != "cuda"}
