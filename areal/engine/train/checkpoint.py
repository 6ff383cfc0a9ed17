"""Saves shards, each rank what it holds, while training goes on; any number of ranks reads them.

The folder, its manifest and its appearing at once are the store's business (`areal.infra.checkpoint.CheckpointStore`),
which runs on rank 0; this is what fills the folder. Format: `torch.distributed.checkpoint`.
"""

from __future__ import annotations

import copy
import queue
import threading
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import async_save

from areal.api import CheckpointError, EngineError
from areal.engine.train.processes import random_states, restore_random_states
from areal.engine.train.ranks import as_sharded, local_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.engine.train.engine import TrainingEngine

SHARDS_FOLDER: Final = "shards"
_PARAMETERS: Final = "parameters."
_RNG: Final = "rng.rank_"
_BASE: Final = "base"
"""Fingerprint of what adapters were trained on top of; only there when adapters are."""


class Store(Protocol):
    """What is needed of a `CheckpointStore`."""

    def save(self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any] | None = None) -> Path:
        """Publish the folder that `write` fills, whole or not at all."""
        ...


class ShardedCheckpoints:
    """Saves and loads the state of one engine. Every method is called by all ranks.

    checkpoints = ShardedCheckpoints(engine, CheckpointStore(folder, keep=2) if rank == 0 else None)
    checkpoints.save(20)            # returns when the state is copied; files are written meanwhile
    checkpoints.wait()              # until they are there, on all ranks
    checkpoints.load(path)          # of any number of ranks
    """

    def __init__(self, engine: TrainingEngine, store: Store | None) -> None:
        """store: on rank 0; None on the others.

        A process that is alone loads what any number of ranks saved; it has no shards to save, see
        `TrainingEngine.state_dict`.
        """
        rank = engine.ranks.rank
        if not engine.ranks.is_alone and (store is not None) != (rank == 0):
            raise CheckpointError(f"rank {rank}: the store belongs to rank 0, and to it alone")
        self._engine = engine
        self._store = store
        # Writing talks in the background, so it must not share a group with training.
        self._group: ProcessGroup | None = None if engine.ranks.is_alone else dist.new_group(backend="gloo")
        self._running: _Write | None = None

    def save(self, step: int, meta: Mapping[str, Any] | None = None) -> None:
        """Copy the state and write it in the background; an unfinished save is waited for first.

        Raises CheckpointError on every rank when the store refuses at once (disk full), or the save before failed.
        """
        self.wait()
        # The caller's own may change before it is written.
        write = _Write(self._store, step, copy.deepcopy(dict(meta or {})))
        folder = _from_first_rank(write.folder, self._group)
        writes = async_save(
            self._state(),
            storage_writer=FileSystemWriter(folder / SHARDS_FOLDER, single_file_per_rank=True, thread_count=1),
            process_group=self._group,
        )
        assert isinstance(writes, Future), "other kinds of answers are for stagers that were not asked for"
        write.writes = writes
        self._running = write

    def wait(self) -> Path | None:
        """Until the last save is published; its folder, or None when there is none to wait for.

        Raises CheckpointError on every rank when it failed on any; nothing of it remains, older checkpoints do.
        """
        write, self._running = self._running, None
        if write is None:
            return None
        failure = write.finish()
        failures: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, failure, group=self._group)
        found = [f"rank {rank}: {message}" for rank, message in enumerate(failures) if message is not None]
        if found:
            raise CheckpointError(f"checkpoint of step {write.step} was not written: {'; '.join(found[:4])}")
        return _from_first_rank(write.published, self._group)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take over the state in a folder that a store has verified, saved by any number of ranks.

        The random generators of a rank, of the processor and of its device, continue where those of that rank were; new
        ranks and other kinds of devices keep theirs. Raises CheckpointError for a folder without shards, or of another
        model.
        """
        reader = FileSystemReader(folder / SHARDS_FOLDER)
        try:
            known = reader.read_metadata().state_dict_metadata
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"{folder} holds no readable shards: {error}") from error
        self._check_base(reader, known)
        try:
            room = self._state(known)
        except EngineError as error:
            raise CheckpointError(f"{folder} does not fit this engine: {error}") from error
        state = {key: value for key, value in room.items() if not key.startswith(_RNG) or key in known}
        pieces = self._engine.ranks.gather(sorted(state), "pp")
        expected = {key for keys in pieces for key in keys if not key.startswith(_RNG)}
        if missing := sorted(expected - set(known)):
            raise CheckpointError(f"{folder} is of another model: it does not have {', '.join(missing[:4])}")
        if surplus := sorted(key for key in known if key.startswith(_PARAMETERS) and key not in expected):
            raise CheckpointError(f"{folder} is of another model: it also has {', '.join(surplus[:4])}")
        try:
            self._read(state, reader)
        except CheckpointException as error:
            raise CheckpointError(f"{folder} does not fit this model: {error}") from error
        self._take(state)

    def _read(self, state: dict[str, Any], reader: FileSystemReader) -> None:
        """Fill the tensors of `state`, in place."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as intended
            load_shards(state, storage_reader=reader, process_group=self._group, no_dist=self._group is None)

    def _check_base(self, reader: FileSystemReader, known: Mapping[str, Any]) -> None:
        """Raise CheckpointError unless adapters go on top of the model that they were trained on."""
        found = {_BASE: torch.zeros(known[_BASE].size if _BASE in known else 0, dtype=torch.uint8)}
        if _BASE in known:
            self._read(found, reader)
        if not torch.equal(found[_BASE], _digest(self._engine.state.base or "")):
            raise CheckpointError(
                f"{reader.path} was saved with other adapters or on top of another base model; use the same model.path "
                f"and lora settings as when it was saved"
            )

    def _state(self, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Flat names to sharded tensors; known: names in a checkpoint, for which there has to be room."""
        engine, optimizer = self._engine, self._engine.optimizer
        state: dict[str, Any] = {f"{_PARAMETERS}{name}": value for name, value in engine.state.exact().items()}
        if engine.state.base is not None:
            state[_BASE] = _digest(engine.state.base)
        for name, parameter in optimizer.parameters.items():
            prefix = f"moments.{name}."
            moments = optimizer.moments(name)
            if known is not None:
                kept = [key.removeprefix(prefix) for key in known if key.startswith(prefix)]
                optimizer.check_moments(name, kept)
                # A step is counted once for all of a parameter.
                shard = optimizer.exact(name)
                moments = {key: torch.zeros(()) if key == "step" else torch.zeros_like(shard) for key in kept}
            for key, value in moments.items():
                state[prefix + key] = value if key == "step" else as_sharded(value, parameter)
        state |= {f"counters.{name}": torch.tensor(value) for name, value in engine.counters().items()}
        return state | {self._rng_prefix + kind: states for kind, states in random_states(engine.device).items()}

    @property
    def _rng_prefix(self) -> str:
        return f"{_RNG}{self._engine.ranks.rank}."

    def _take(self, state: Mapping[str, Any]) -> None:
        """Parameters were read in place; this is the rest."""
        engine = self._engine
        for name in engine.optimizer.parameters:
            prefix = f"moments.{name}."
            moments = {key[len(prefix) :]: local_data(value) for key, value in state.items() if key.startswith(prefix)}
            engine.optimizer.set_moments(name, moments)
        engine.state.refresh()
        engine.set_counters({name: int(state[f"counters.{name}"]) for name in engine.counters()})
        prefix = self._rng_prefix
        kept = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        restore_random_states(kept, engine.device)


class _Write:
    """One save: on rank 0 a thread in which the store waits for the shards before it publishes the folder."""

    def __init__(self, store: Store | None, step: int, meta: dict[str, Any]) -> None:
        self.step = step
        self.writes: Future[Any] | None = None
        self._published: Future[Path] = Future()
        self._folders: queue.SimpleQueue[Path | BaseException] = queue.SimpleQueue()
        self._shards_are_written: Future[None] = Future()
        if store is not None:
            thread = threading.Thread(target=self._publish, args=(store, meta), name=f"checkpoint-{step}", daemon=True)
            thread.start()

    def folder(self) -> Path:
        """Where to write, on rank 0; raises what the store raises before it asks for anything."""
        found = self._folders.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def finish(self) -> str | None:
        """Wait for the write; return the failure of this rank, if any."""
        failure: str | None = None
        try:
            assert self.writes is not None, "finish comes after save"
            self.writes.result()
            self._shards_are_written.set_result(None)
        except Exception as error:  # noqa: BLE001 - told to all ranks, which raise
            failure = f"{type(error).__name__}: {error}"
            self._shards_are_written.set_exception(error)
        if dist.get_rank() == 0:
            try:
                self._published.result()
            except Exception as error:  # noqa: BLE001 - told to all ranks, which raise
                failure = failure or f"{type(error).__name__}: {error}"
        return failure

    def published(self) -> Path:
        """Return the folder of the checkpoint, on rank 0."""
        return self._published.result()

    def _publish(self, store: Store, meta: dict[str, Any]) -> None:
        def write(folder: Path) -> None:
            self._folders.put(folder)
            self._shards_are_written.result()

        try:
            self._published.set_result(store.save(self.step, write, meta))
        except BaseException as error:  # noqa: BLE001 - raised in `folder` or `finish`
            self._folders.put(error)
            self._published.set_exception(error)


def _digest(fingerprint: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(fingerprint)), dtype=torch.uint8)


def _from_first_rank(read: Callable[[], Path], group: ProcessGroup | None) -> Path:
    """Return on every rank what `read` returns on rank 0; every rank raises its error."""
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = str(read())
        except Exception as error:  # noqa: BLE001 - raised again, on all ranks
            outcome[0] = error
    dist.broadcast_object_list(outcome, src=0, group=group)
    if isinstance(outcome[0], Exception):
        raise CheckpointError(f"no checkpoint was written: {outcome[0]}") from outcome[0]
    return Path(outcome[0])
