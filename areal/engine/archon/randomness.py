"""State of the random generators that a rank draws from: the processor's, and that of its own device.

Of other devices of the host nothing is asked: they belong to other ranks, and asking takes memory on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

PROCESSOR: Final = "cpu"


def random_states(device: torch.device) -> dict[str, Tensor]:
    """uint8 states on the processor, by the type of device."""
    states = {PROCESSOR: torch.get_rng_state()}
    if device.type != PROCESSOR:
        module: Any = torch.get_device_module(device)
        states[device.type] = module.get_rng_state(device).cpu()
    return states


def restore_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Inverse of `random_states`. Generators without a state, as after a move to other devices, keep theirs."""
    if PROCESSOR in states:
        torch.set_rng_state(states[PROCESSOR])
    if device.type != PROCESSOR and device.type in states:
        module: Any = torch.get_device_module(device)
        module.set_rng_state(states[device.type], device)
