"""Keep a folder of checkpoints: each is published whole or not at all, verified by hash before use, and the newest few
are kept.

Layout: `<directory>/step-00000020.000003/` holds the files and manifest.json; the number behind the dot counts saves,
so the newest checkpoint is the last *written* one, also after a run returned to an earlier step. When to save,
and what a failed save means for a run, is decided by the trainer.

A state is a tree of plain values and tensors, written to `<name>.json` + `<name>.safetensors` and read back exactly,
without pickle. Leaves: None, bool, int of any size, float (NaN and infinities too), str, bytes, torch.Tensor of any
dense dtype. Nodes: dict with scalar or tuple keys (order kept), list, tuple. A tensor that occurs twice is stored once
and comes back as one object. Anything else is refused with its path: what cannot be restored exactly is not saved.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.api import CheckpointError
from areal.utils.atomic import atomic_directory, atomic_write, remove_leftovers
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor


SCHEMA_VERSION: Final = 1
"""Version of the folder layout; raise it when an older program could misread a newer checkpoint."""
MANIFEST_NAME: Final = "manifest.json"
_BLOCK_BYTES: Final = 1 << 20


class DamagedError(CheckpointError):
    """One checkpoint is torn or corrupt; an older one may still be usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """What a file must look like."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of manifest.json.

    Example: {"created_unix": 1.7e9, "digest": "9f..", "files": {"trainer.json": {"bytes": 12, "sha256": "ab.."}},
    "meta": {"reward": 0.5}, "schema_version": 1, "step": 20}
    """

    step: int
    created_unix: float
    files: Mapping[str, FileEntry]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Canonical JSON; `digest` is the SHA-256 of the same document without it."""
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "step": self.step,
            "created_unix": self.created_unix,
            "files": {name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in self.files.items()},
            "meta": dict(self.meta),
        }
        return _canonical({**document, "digest": hashlib.sha256(_canonical(document)).hexdigest()})


def describe_folder(folder: Path) -> dict[str, FileEntry]:
    """Hash every file below `folder`, keyed by its path relative to it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _describe_file(path) for path in files}


def read_manifest(folder: Path) -> Manifest:
    """Parse and check manifest.json.

    Raises DamagedError when it is missing or altered, CheckpointError when a newer program wrote it.
    """
    try:
        raw = (folder / MANIFEST_NAME).read_bytes()
        document = json.loads(raw)
        schema = document["schema_version"]
    except FileNotFoundError:
        raise DamagedError(
            f"{folder.name}: {MANIFEST_NAME} is missing, so the checkpoint was never completed"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"{folder.name}: {MANIFEST_NAME} is not readable ({type(error).__name__}: {error})"
        ) from error
    # Looked at before the digest: a newer layout may compute it differently.
    if type(schema) is int and schema > SCHEMA_VERSION and _is_newer(document):
        raise CheckpointError(
            f"{folder} has checkpoint schema version {schema}, this program reads up to {SCHEMA_VERSION}: "
            f"update areal, or remove that folder to continue from an older checkpoint"
        )
    try:
        digest = document.pop("digest")
        # Comparing bytes, not values, so that no altered byte goes unnoticed.
        if (
            hashlib.sha256(_canonical(document)).hexdigest() != digest
            or _canonical({**document, "digest": digest}) != raw
        ):
            raise DamagedError(f"{folder.name}: {MANIFEST_NAME} was altered (its digest does not match)")
        files = {name: FileEntry(**entry) for name, entry in document["files"].items()}
        return Manifest(
            step=document["step"], created_unix=document["created_unix"], files=files, meta=document["meta"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder.name}: {MANIFEST_NAME} lacks fields ({type(error).__name__}: {error})") from error


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise DamagedError unless every listed file is there with its size (cheap: no content is read)."""
    for name, entry in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise DamagedError(f"{folder.name}: file {name!r} is missing") from None
        if size != entry.bytes:
            raise DamagedError(f"{folder.name}: file {name!r} has {size} bytes, expected {entry.bytes}")


def check_hashes(folder: Path, manifest: Manifest) -> None:
    """Raise DamagedError unless every listed file has its recorded content."""
    check_sizes(folder, manifest)
    for name, entry in manifest.files.items():
        try:
            found = _describe_file(folder / name)
        except OSError as error:
            raise DamagedError(f"{folder.name}: file {name!r} cannot be read ({error})") from error
        if found != entry:
            raise DamagedError(f"{folder.name}: file {name!r} is corrupt (SHA-256 does not match the manifest)")


def _is_newer(document: Mapping[str, Any]) -> bool:
    """Whether a newer program wrote this, as opposed to a version number that was altered in one of our own
    manifests."""
    ours = {**document, "schema_version": SCHEMA_VERSION}
    digest = ours.pop("digest", None)
    return hashlib.sha256(_canonical(ours)).hexdigest() != digest


def _describe_file(path: Path) -> FileEntry:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return FileEntry(sha256=digest.hexdigest(), bytes=size)


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


_logger = getLogger(__name__)
FOLDER_PATTERN: Final = re.compile(r"step-(\d{8,})\.(\d{6,})")
_SPARE_BYTES: Final = 1 << 20
"""Room for the manifest, folder entries and JSON beside the tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One intact checkpoint; every file was compared with its hash."""

    step: int
    path: Path
    created_unix: float
    meta: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    """Why newer checkpoints were passed over, newest first, e.g. "step-00000020.000003: file 'trainer.json' is corrupt
    (...)"."""

    def load(self, name: str) -> Any:
        """Return the state saved under `name`, tensors on the CPU. Raises CheckpointError when there is none."""
        return load_state(self.path, name)


class CheckpointStore:
    """Writes, finds and prunes checkpoints in one directory. One process writes (see RunLock); any may read.

    store = CheckpointStore(run_dir / "checkpoints", keep=2)
    store.save(20, {"actor": engine.state_dict(), "rng": rng_state()}, meta={"reward": 0.7})
    checkpoint = store.load_latest()
    if checkpoint is not None:
        engine.load_state_dict(checkpoint.load("actor"))
    """

    def __init__(self, directory: Path, *, keep: int) -> None:
        """Open (and create) `directory`, and remove what killed writers left there.

        Raises ValueError when keep < 1, CheckpointError when the directory cannot be created.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1")
        self.directory = directory
        self.keep = keep
        self._known_damaged: set[str] = set()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for leftover in remove_leftovers(directory):
                _logger.warning("removed the unfinished checkpoint %s of a process that was killed", leftover)
        except OSError as error:
            raise CheckpointError(f"cannot use {directory} for checkpoints: {error}") from error

    def save(
        self,
        step: int,
        write: Callable[[Path], None] | Mapping[str, Any],
        meta: Mapping[str, Any] | None = None,
        *,
        expected_bytes: int | None = None,
    ) -> Path:
        """Publish a checkpoint, remove those beyond `keep`, and return its folder.

        write: states by name (see `state_io` for what they may hold), or a function that fills the folder it is given.
        meta: JSON values for people and tools, e.g. {"reward": 0.7}.
        expected_bytes: size to compare with the free space; by default that of the states, or of the newest checkpoint.

        Raises CheckpointError when the disk is full or refuses; nothing of the attempt remains and older checkpoints
        are untouched, so training may go on and try again later. Raises ValueError or TypeError for what cannot be
        stored.
        """
        if step < 0:
            raise ValueError(f"step is {step}, expected >= 0")
        meta = dict(meta or {})
        try:
            json.dumps(meta, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            message = f"meta must be JSON with text keys and finite numbers: {error}; it is {meta!r}"
            raise ValueError(message) from error
        try:
            return self._publish(step, write, meta, expected_bytes)
        except CheckpointError:
            raise  # already says what to do; it is an OSError too
        except OSError as error:
            raise CheckpointError(
                f"checkpoint of step {step} was not written to {self.directory}: {error}. Older checkpoints are "
                f"intact; free space or fix permissions there"
            ) from error

    def _publish(
        self,
        step: int,
        write: Callable[[Path], None] | Mapping[str, Any],
        meta: dict[str, Any],
        expected_bytes: int | None,
    ) -> Path:
        ordinal = max((number for _, number, _ in self._folders()), default=0) + 1
        final = self.directory / f"step-{step:08d}.{ordinal:06d}"
        self._check_space(final, self._estimate(write) if expected_bytes is None else expected_bytes)
        with atomic_directory(final) as folder:
            if callable(write):
                write(folder)
            else:
                for name, tree in write.items():
                    save_state(folder, name, tree)
            files = describe_folder(folder)
            if MANIFEST_NAME in files:
                raise ValueError(f"{MANIFEST_NAME} is written by the store; use another file name")
            manifest = Manifest(step=step, created_unix=time.time(), files=files, meta=meta)
            atomic_write(folder / MANIFEST_NAME, manifest.to_bytes())
        self._prune()
        return final

    def load_latest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None when there is none at all.

        Damaged ones are passed over with a warning (see Checkpoint.skipped). Raises CheckpointError when all are
        damaged, since starting anew would lose the run silently, or when a newer program wrote the newest one.
        """
        skipped: list[str] = []
        for _, _, folder in self._folders():
            try:
                return self._open(folder, tuple(skipped))
            except DamagedError as error:
                _logger.warning("checkpoint passed over: %s", error)
                skipped.append(str(error))
        if skipped:
            raise CheckpointError(
                f"no intact checkpoint in {self.directory}: {'; '.join(skipped)}. Restore one from a copy, or remove "
                f"the folder to start anew"
            )
        return None

    def load(self, step: int) -> Checkpoint:
        """Return the last written checkpoint of `step`. Raises CheckpointError when it is missing or damaged."""
        for number, _, folder in self._folders():
            if number == step:
                return self._open(folder, ())
        raise CheckpointError(f"no checkpoint of step {step} in {self.directory}; there are {self.steps() or 'none'}")

    def check(self, step: int) -> None:
        """Raise as `load` does, but for content that was altered under its old size: no file is read."""
        for number, _, folder in self._folders():
            if number == step:
                check_sizes(folder, read_manifest(folder))
                return
        raise CheckpointError(f"no checkpoint of step {step} in {self.directory}; there are {self.steps() or 'none'}")

    def intact_beside(self, step: int) -> int | None:
        """Return the newest intact step before `step`, whose checkpoint is damaged; else the newest of all, or None."""
        others = [number for number in reversed(self.steps()) if number != step]
        for number in sorted(others, key=lambda number: number > step):
            try:
                return self.load(number).step
            except CheckpointError:
                continue
        return None

    def steps(self) -> list[int]:
        """Return steps that have a published checkpoint, ascending; not verified."""
        return sorted({step for step, _, _ in self._folders()})

    def _open(self, folder: Path, skipped: tuple[str, ...]) -> Checkpoint:
        try:
            manifest = read_manifest(folder)
            check_hashes(folder, manifest)
        except DamagedError:
            self._known_damaged.add(folder.name)
            raise
        return Checkpoint(
            step=manifest.step, path=folder, created_unix=manifest.created_unix, meta=manifest.meta, skipped=skipped
        )

    def _folders(self) -> list[tuple[int, int, Path]]:
        """(step, ordinal, folder) of every published checkpoint, last written first."""
        found = []
        for entry in self.directory.iterdir():
            match = FOLDER_PATTERN.fullmatch(entry.name)
            if match and entry.is_dir():
                found.append((int(match[1]), int(match[2]), entry))
        return sorted(found, key=lambda item: item[1], reverse=True)

    def _looks_intact(self, folder: Path) -> bool:
        """Cheap test for pruning; a full hash of every kept checkpoint at every save would cost too much."""
        if folder.name in self._known_damaged:
            return False
        try:
            check_sizes(folder, read_manifest(folder))
        except DamagedError:
            return False
        except CheckpointError:
            # Written by a newer program: not ours to judge, so it counts and stays.
            return True
        return True

    def _prune(self) -> None:
        """Remove everything older than the `keep` newest intact checkpoints."""
        intact = 0
        for _, _, folder in self._folders():
            if intact >= self.keep:
                try:
                    # Without its manifest a folder is no checkpoint, so a kill in between leaves nothing half valid.
                    (folder / MANIFEST_NAME).unlink(missing_ok=True)
                    shutil.rmtree(folder)
                except OSError as error:
                    _logger.warning("old checkpoint %s could not be removed: %s", folder, error)
            elif self._looks_intact(folder):
                intact += 1

    def _estimate(self, write: Callable[[Path], None] | Mapping[str, Any]) -> int:
        if not callable(write):
            return state_bytes(write)
        for _, _, folder in self._folders():
            if self._looks_intact(folder):
                return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())
        return 0

    def _check_space(self, final: Path, needed: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < needed + _SPARE_BYTES:
            # What is kept too long goes only after a save: with a full disk, that would be never.
            self._prune()
            free = shutil.disk_usage(self.directory).free
        if free < needed + _SPARE_BYTES:
            raise CheckpointError(
                f"checkpoint {final.name} needs about {_megabytes(needed + _SPARE_BYTES)} and {self.directory} has "
                f"{_megabytes(free)} free: nothing was written; free space or use another output_dir"
            )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


_TAG: Final = "$"
"""Key that marks a JSON object as an encoded value instead of a dict."""


def save_state(folder: Path, name: str, tree: Any) -> None:
    """Write `tree` into `folder`. Tensors are copied to the CPU one file at a time; gradients are not kept.

    Raises TypeError naming the place of a value that has no exact form here, OSError when the disk refuses.
    """
    encoder = _Encoder()
    document = json.dumps(encoder.encode(tree, name), separators=(",", ":"), allow_nan=False)
    if encoder.tensors:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(encoder.tensors, folder / f"{name}.safetensors")
        except SafetensorError as error:
            # The library reports I/O errors under its own type; callers handle the disk through OSError.
            raise OSError(f"cannot write {folder / name}.safetensors: {error}") from error
    (folder / f"{name}.json").write_text(document)


def load_state(folder: Path, name: str) -> Any:
    """Read what `save_state` wrote; tensors are on the CPU. Raises CheckpointError when the files are missing or
    damaged."""
    try:
        document = json.loads((folder / f"{name}.json").read_bytes())
        tensors: dict[str, Tensor] = {}
        if (folder / f"{name}.safetensors").exists():
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                tensors = load_file(folder / f"{name}.safetensors")
            except SafetensorError as error:
                raise CheckpointError(f"{folder / name}.safetensors is not readable: {error}") from error
        return _decode(document, tensors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"cannot read state {name!r} in {folder}: {type(error).__name__}: {error}") from error


def state_bytes(tree: Any) -> int:
    """Bytes of all tensors in `tree` (the rest is small), to compare with the free space of a disk."""
    import torch

    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, Mapping):
        return sum(map(state_bytes, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(state_bytes, tree))
    return len(tree) if isinstance(tree, (bytes, str)) else 8


class _Encoder:
    """Turns a tree into JSON values and collects its tensors under short names."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()

    def encode(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
        if type(value) is bytes:
            return {_TAG: "bytes", "v": base64.b64encode(value).decode()}
        if type(value) is list:
            return [self.encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if type(value) is tuple:
            return {_TAG: "tuple", "v": [self.encode(item, f"{where}[{index}]") for index, item in enumerate(value)]}
        if isinstance(value, Mapping):
            return self._encode_mapping(value, where)
        return self._encode_tensor(value, where)

    def _encode_mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.encode(item, f"{where}.{key}") for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if isinstance(key, (Mapping, list)):
                raise TypeError(f"{where}: key {key!r} cannot be saved")
            pairs.append([self.encode(key, f"{where} key"), self.encode(item, f"{where}[{key!r}]")])
        return {_TAG: "dict", "v": pairs}

    def _encode_tensor(self, value: Any, where: str) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{where} is {type(value).__module__}.{type(value).__qualname__}, which cannot be saved exactly; "
                f"convert it to None, bool, int, float, str, bytes, list, tuple, dict or torch.Tensor"
            )
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise TypeError(f"{where}: only dense tensors with storage can be saved, this one is {value.layout}")
        plain = value.detach()
        identity = (plain.data_ptr(), plain.dtype, tuple(plain.shape), plain.stride(), str(plain.device))
        name = self._names.get(identity) if plain.numel() else None
        if name is None:
            name = self._names[identity] = f"t{len(self.tensors)}"
            # Copied unless it is the first and only user of its storage: safetensors refuses tensors that share memory.
            storage = plain.untyped_storage()
            alone = (
                storage.nbytes() == plain.numel() * plain.element_size() and storage.data_ptr() not in self._storages
            )
            self._storages.add(storage.data_ptr())
            host = plain.cpu()
            self.tensors[name] = (
                host if alone and host.is_contiguous() else host.clone(memory_format=torch.contiguous_format)
            )
        return {_TAG: "tensor", "v": name}


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decode(item, tensors) for key, item in value.items()}
    kind, content = value[_TAG], value["v"]
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in content)
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    raise ValueError(f"unknown value kind {kind!r}")
