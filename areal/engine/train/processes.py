"""Connects the process of a rank to the others, from the environment that torchrun sets, on its device; and saves and
restores the random generators that it draws from.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT_SECONDS: Final = 1800.0
"""How long a rank waits for the others before it gives up."""
_PROCESSOR: Final = "cpu"


@contextmanager
def connected(
    device: str = "auto", *, timeout_seconds: float = TIMEOUT_SECONDS, alone: bool = False
) -> Iterator[torch.device]:
    """Join the group of processes, on this one's device: accelerators talk through NCCL, CPUs through gloo.

    device: "auto" takes the accelerator of LOCAL_RANK when there is one. alone: a group of this process, whatever the
    environment says. Raises ConfigError outside of torchrun, unless alone.
    """
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing and not alone:
        raise ConfigError(
            f"{', '.join(missing)} not set: this process is not one of a group; start the program with "
            f"`torchrun --nproc-per-node N ...`"
        )
    chosen = _device(device)
    if chosen.type != "cpu":
        torch.accelerator.set_device_index(chosen.index)
    backend = "gloo" if chosen.type == "cpu" else None
    timeout = timedelta(seconds=timeout_seconds)
    if alone:
        store = dist.HashStore()  # type: ignore[attr-defined]  # the stubs have it elsewhere
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    try:
        yield chosen
    finally:
        dist.destroy_process_group()


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return uint8 states of the generators of the processor and of this rank's device, by the type of device.

    Other devices of the host belong to other ranks, and asking them takes memory on them.
    """
    states = {_PROCESSOR: torch.get_rng_state()}
    if device.type != _PROCESSOR:
        module: Any = torch.get_device_module(device)
        states[device.type] = module.get_rng_state(device).cpu()
    return states


def restore_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore `random_states`. Generators without a state, as after a move to other devices, keep theirs."""
    if _PROCESSOR in states:
        torch.set_rng_state(states[_PROCESSOR])
    if device.type != _PROCESSOR and device.type in states:
        module: Any = torch.get_device_module(device)
        module.set_rng_state(states[device.type], device)


def _device(name: str) -> torch.device:
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        name = accelerator.type if accelerator is not None else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind = torch.device(name).type
    return torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
