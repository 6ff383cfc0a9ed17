"""The manifest of one checkpoint folder: which files belong to it, their hashes, and a hash over the manifest
itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.api import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
