"""Saves and loads the trained models of a run: whole states of one process, or the shards of every rank.

Either is continued by any number of processes, and shards also by a run that splits nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from areal.api import CheckpointError
from areal.infra.checkpoint.state_io import load_state, save_state
from areal.utils.seeding import rng_state, set_rng_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from areal.engine.train.checkpoint import ShardedCheckpoints
    from areal.engine.train.engine import TrainingEngine
    from areal.trainer.rank_group import Distributed

_RNG_OF_RANK: Final = "rng_rank_"
"""Random generators of the ranks above 0; those of rank 0 are the run's own, saved by its trainer."""


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
    def is_sharded(self) -> bool:
        """Whether `save` has to write them, since no process has all of them."""
        return not self._ranks.is_alone

    def whole(self) -> dict[str, Any]:
        """States by the names of their files, of engines of one process."""
        states = {name: engine.state_dict() for name, engine in self._engines.items()}
        return {self._together: states} if self._together else states

    def save(self, folder: Path) -> None:
        """Write the shards and the random generators of this rank. Returns when those of all ranks are there.

        Raises CheckpointError on all ranks when one cannot write: they go on together, and try again later.
        """
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
        if (rank := self._ranks.rank) and (folder / f"{_RNG_OF_RANK}{rank}.json").is_file():
            set_rng_state(load_state(folder, f"{_RNG_OF_RANK}{rank}"))

    def _shards(self, name: str) -> ShardedCheckpoints:
        """Made when it is first needed, on all ranks: it makes a group of processes."""
        if name not in self._sharded:
            from areal.engine.train.checkpoint import ShardedCheckpoints

            store = None if self._ranks.rank else self._store
            self._sharded[name] = ShardedCheckpoints(self._engines[name], store)
        return self._sharded[name]


class Learner(Protocol):
    """What a run trains, on one rank."""

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
        return {**states.whole(), **others, "rng": rng_state()}

    def write(folder: Path) -> None:
        for name, state in {**others, "rng": _host_rng_state()}.items():
            save_state(folder, name, state)
        learner.run(save_states, folder)

    return write


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
