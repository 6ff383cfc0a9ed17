"""Builds the carrier a configuration asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal.api import ConfigError
from areal.infra.directory.address import own_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import WeightCarrier
    from areal.infra.weights.config import WeightTransferConfig
    from areal.infra.weights.shards import StreamingRanks


def build_carrier(
    config: WeightTransferConfig,
    *,
    run_directory: Path,
    device: str,
    model_config: Mapping[str, object],
    elsewhere: bool = False,
    addresses: Sequence[str] = (),
    streams: StreamingRanks | None = None,
) -> WeightCarrier:
    """Return the carrier. device: of the trained model. model_config: content of its config.json, for servers that load
    folders. elsewhere: whether servers may be on other machines. addresses: URLs that are reached by the way to them.
    streams: the trainer's ranks, where weights are streamed from shards; without them, carrier shards is the same as
    broadcast.
    """
    if config.carrier == "disk":
        from areal.infra.weights.files import FileCarrier

        folder = Path(config.folder) if config.folder else run_directory / "weights"
        return FileCarrier(folder.resolve(), model_config=model_config, deltas=config.deltas)
    if config.carrier == "shared_memory":
        from areal.infra.weights.files import FileCarrier

        return FileCarrier.in_memory(config.shared_memory_folder, model_config=model_config, deltas=config.deltas)
    from areal.infra.weights.broadcast import BroadcastCarrier

    on_cuda = device.startswith("cuda")
    backend = ("nccl" if on_cuda else "gloo") if config.backend == "auto" else config.backend
    if backend == "nccl" and not on_cuda:
        raise ConfigError(f"backend nccl needs the trained model on a CUDA device, it is on {device!r}; use gloo")
    travelling = device if backend == "nccl" else "cpu"
    host = config.host or own_address(addresses, several_hosts=elsewhere, setting="weights.host")
    if streams is not None:
        from areal.infra.weights.shards import ShardCarrier

        return ShardCarrier(
            streams, backend=backend, device=travelling, timeout_seconds=config.timeout_seconds, host=host,
            deltas=config.deltas,
        )  # fmt: skip
    return BroadcastCarrier(
        backend=backend,
        device=travelling,
        bucket_bytes=config.bucket_mb * 2**20,
        timeout_seconds=config.timeout_seconds,
        host=host,
        deltas=config.deltas,
    )
