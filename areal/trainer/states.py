"""What a checkpoint holds of the trained models: whole states of one process, or the shards of every rank.

Either is continued by any number of processes, and shards also by a run that splits nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from areal.api import CheckpointError
from areal.engine.train.engine import TrainingEngine
from areal.infra.checkpoint.state_io import load_state, save_state
from areal.utils.seeding import rng_state, set_rng_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from areal.engine.archon.checkpoint import ShardedCheckpoints
    from areal.trainer.engines import Engine
    from areal.trainer.rank_group import Distributed

_RNG_OF_RANK: Final = "rng_rank_"
"""Random generators of the ranks above 0; those of rank 0 are the run's own, saved by its trainer."""


class EngineStates:
    """The engines of one rank as checkpoints see them. `save` and `load` are called on all ranks."""

    def __init__(self, engines: Mapping[str, Engine], *, together: str = "") -> None:
        """engines: by name. together: the name that their whole states are saved under as one; else each under its
        own."""
        self._engines = dict(engines)
        self._together = together
        self._sharded: dict[str, ShardedCheckpoints] = {}
        self._store = _Inside()

    @property
    def is_sharded(self) -> bool:
        """Whether `save` has to write them, since no process has all of them."""
        return not all(isinstance(engine, TrainingEngine) for engine in self._engines.values())

    def whole(self) -> dict[str, Any]:
        """States by the names of their files, of engines of one process."""
        states = {name: engine.state_dict() for name, engine in self._engines.items()}
        return {self._together: states} if self._together else states

    def save(self, folder: Path) -> None:
        """Write the shards and the random generators of this rank. Returns when those of all ranks are there.

        Raises CheckpointError on all ranks when one cannot write: they go on together, and try again later.
        """
        _agree(_save_rng(folder))
        for name in self._engines:
            shards = self._shards(name)
            self._store.folder = folder / name
            shards.save(0)
            shards.wait()

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, or from whole states. Raises CheckpointError or EngineError for those of
        another model.
        """
        from areal.engine.archon.checkpoint import SHARDS_FOLDER

        for name, engine in self._engines.items():
            if not (folder / name / SHARDS_FOLDER).is_dir():
                engine.load_state_dict(self._whole_of(folder, name))
            elif isinstance(engine, TrainingEngine):
                from areal.engine.archon.checkpoint import read_whole_state

                engine.load_state_dict(read_whole_state(folder / name, engine.model, dtype=engine.config.dtype))
            else:
                self._shards(name).load(folder / name)
        if (rank := _rank()) and (folder / f"{_RNG_OF_RANK}{rank}.json").is_file():
            set_rng_state(load_state(folder, f"{_RNG_OF_RANK}{rank}"))

    def _whole_of(self, folder: Path, name: str) -> Mapping[str, Any]:
        state: Mapping[str, Any] = (
            load_state(folder, self._together)[name] if self._together else load_state(folder, name)
        )
        return state

    def _shards(self, name: str) -> ShardedCheckpoints:
        """Made when it is first needed, on all ranks: it makes a group of processes."""
        if name not in self._sharded:
            from areal.engine.archon.checkpoint import ShardedCheckpoints

            engine = self._engines[name]
            assert not isinstance(engine, TrainingEngine), "an engine of one process has no shards"
            self._sharded[name] = ShardedCheckpoints(engine, None if _rank() else self._store)
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


def _save_rng(folder: Path) -> str | None:
    """What went wrong; the disk may be full for this rank alone."""
    rank = _rank()
    try:
        if rank:
            save_state(folder, f"{_RNG_OF_RANK}{rank}", _host_rng_state())
    except OSError as error:
        return f"rank {rank}: {error}"
    return None


def _agree(failure: str | None) -> None:
    """Raise on all ranks what went wrong on any."""
    import torch.distributed as dist

    failures: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    found = [item for item in failures if item is not None]
    if found:
        raise CheckpointError(f"no checkpoint was written: {'; '.join(found[:4])}")


def _host_rng_state() -> dict[str, Any]:
    """Without those of devices: every rank sees all of its machine's, and its own device's is among its shards."""
    return {name: state for name, state in rng_state().items() if name != "cuda"}


def _rank() -> int:
    """0 in a process that is alone."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0
