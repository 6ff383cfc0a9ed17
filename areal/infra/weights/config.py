"""Configuration of weight transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class WeightTransferConfig(Config):
    """How new weights reach inference servers."""

    carrier: Literal["broadcast", "disk", "shards", "shared_memory"] = "shared_memory"
    """shared_memory: a file in memory that servers of this machine map; disk: a folder that all servers must see;
    broadcast: a process group of the trainer and all servers' workers; shards: the same, straight from the shards of
    all ranks of the trainer, so that no host has a copy of the model."""
    adapters: Literal["alone", "auto", "merged"] = "auto"
    """What travels when adapters are trained (actor.lora). alone: the base once to each server, then adapters only,
    which its workers add to the base; merged: the whole model every time; auto: alone where it can be."""
    deltas: bool = False
    """Whether a server that has the version before is sent only the tensors (with shards, the buckets) whose digest
    changed. Each of its workers then keeps a copy of the model in host memory. Adapters that travel alone are small
    already, and not affected."""
    folder: str = ""
    """Where disk puts its folders; empty means "weights" in the run directory."""
    shared_memory_folder: str = "/dev/shm"
    """Where shared_memory puts its files; falls back to the folder for temporary files where it does not exist."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Of broadcast; auto is nccl when the trained model is on a CUDA device, else gloo."""
    host: str = ""
    """Name or address of this machine that servers reach for a broadcast; empty: found out where some are elsewhere
    (servers.addresses, servers.directory), else 127.0.0.1."""
    bucket_mb: int = number(256, at_least=1)
    """Tensors travel by broadcast and from shards in buffers of at most this many MiB."""
    collectors: int = number(8, at_least=1)
    """With shards, so many ranks at most take turns in collecting buffers and sending them to servers."""
    timeout_seconds: float = number(300.0, above=0)
    """For one transfer, from the first byte to the last server. Before the first byte, the trainer waits half of it for
    all of them to be there."""
