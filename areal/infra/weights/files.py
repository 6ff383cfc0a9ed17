"""Carrier of weights through safetensors files: in memory for servers of this machine, on disk for any that see it."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import BASE_VERSION, EngineError, PublishedWeights, SentWeights, WeightRoute
from areal.infra.weights.manifest import Versions, manifest_of, sent_of
from areal.utils.atomic import atomic_directory
from areal.utils.logging import getLogger
from areal.utils.transfers import download

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.api import LowRankChange, ServerInstance

_logger = getLogger(__name__)
WEIGHTS_FILE: Final = "model.safetensors"
MANIFEST_FILE: Final = "manifest.json"


class FileCarrier:
    """Writes each version as a folder with safetensors and manifest; receivers map the file.

    folder: its parent; made, and removed by `close`. model_config: content of config.json, written beside the weights
    so that servers which load a checkpoint by themselves can. lasting: whether receivers may keep files mapped after
    they were removed, which is so on file systems of this machine. A version appears whole or not at all. deltas:
    whether servers that keep the version before read only the tensors that differ; the file has all of them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model_config: Mapping[str, object] | None = None,
        lasting: bool = False,
        deltas: bool = False,
    ) -> None:
        self._versions = Versions(deltas=deltas)
        self._next: PublishedWeights | None = None
        self._folder = folder
        self._model_config = model_config
        self._lasting = lasting
        self._published: dict[int, PublishedWeights] = {}

    @classmethod
    def in_memory(
        cls, parent: str, *, model_config: Mapping[str, object] | None = None, deltas: bool = False
    ) -> FileCarrier:
        """In a new folder of `parent`, a file system in memory; or of the folder for temporary files, with a
        warning."""
        if not Path(parent).is_dir():
            _logger.warning("there is no %s: weights go through %s", parent, tempfile.gettempdir())
            parent = tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="areal-weights-", dir=parent))
        return cls(folder, model_config=model_config, lasting=True, deltas=deltas)

    def publish(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        *,
        base: PublishedWeights | None = None,
        changes: Sequence[LowRankChange] = (),
    ) -> PublishedWeights:
        """See `WeightCarrier.publish`. Raises EngineError when the file cannot be written; the last version stays."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        manifest = manifest_of(version, tensors, base=base, changes=changes)
        own = download(tensors)
        target = self._folder / ("base" if version == BASE_VERSION else f"version-{version}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_directory(target, replace=True) as staging:
                save_file(own, staging / WEIGHTS_FILE, metadata={"format": "pt"})
                (staging / MANIFEST_FILE).write_text(json.dumps(manifest.to_json()), encoding="utf-8")
                if self._model_config is not None:
                    (staging / "config.json").write_text(json.dumps(self._model_config), encoding="utf-8")
        except (OSError, SafetensorError) as error:  # a full disk is the latter when safetensors meets it
            raise EngineError(f"cannot write weights of version {version} to {target}: {error}") from error
        manifest, delta = self._versions.next(manifest)
        self._published[version] = PublishedWeights(manifest=manifest, folder=target, base=base, delta=delta)
        return self._published[version]

    def keep_only(self, version: int) -> None:
        """See `WeightCarrier.keep_only`."""
        for other in [number for number in self._published if number not in (version, BASE_VERSION)]:
            folder = self._published.pop(other).folder
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def can_send(self, published: PublishedWeights) -> bool:
        """See `WeightCarrier.can_send`: it is kept."""
        return True

    def routes(
        self, published: PublishedWeights, servers: Sequence[ServerInstance], workers: Sequence[int]
    ) -> list[WeightRoute]:
        """See `WeightCarrier.routes`: all map the same file."""
        assert published.folder is not None, "this carrier publishes folders"
        source = {
            "kind": "file",
            "path": str((published.folder / WEIGHTS_FILE).resolve()),
            "lasting": self._lasting,
        }
        self._next = published
        return [WeightRoute(source=source) for _ in servers]

    def send(self) -> None:
        """Nothing to do: the file is there."""

    def call_off(self, reason: str) -> None:
        """See `WeightCarrier.call_off`: readers do not wait for each other."""

    def sent(self) -> SentWeights:
        """See `WeightCarrier.sent`: what servers read of the file."""
        assert self._next is not None, "routes() comes before sent()"
        return sent_of(self._next.manifest)

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._published.clear()
