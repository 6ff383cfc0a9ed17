"""What steps sampled, on its way to the host: several steps in one copy, which is read while the next one runs.

results.write(rows.advance(...))      # on the device, in every step
results.fetch()                       # after the last of some steps: the copy is queued behind them
...                                   # the next step is queued behind the copy
for step in results.read(): ...       # waits for the copy, not for that step
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

STEPS_PER_READ: Final = 8


class StepResults:
    """A ring of `STEPS_PER_READ` steps on the device, and memory of the host that it is copied to."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        shape = (STEPS_PER_READ, 3, max_rows)
        self._ring = torch.zeros(shape, dtype=torch.int32, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self._first = self._fetched = 0
        self.written = 0
        """Steps on the device that no copy has been asked for; the host counts them."""

    @property
    def is_fetched(self) -> bool:
        """Whether a copy is on its way that has not been read."""
        return self._fetched > 0

    @property
    def is_complete(self) -> bool:
        """Whether reading what was fetched would not wait."""
        return self._event is None or self._event.query()

    def write(self, step: Tensor) -> None:
        """Append what one step gave, int32 [3, N]. Part of the step: the place is on the device."""
        self._ring[:, :, : step.shape[1]].index_copy_(0, self._place, step[None])
        self._place.add_(1).remainder_(STEPS_PER_READ)

    def fetch(self) -> None:
        """Queue the copy of all steps that were written since the last one; it has to have been read."""
        assert not self.is_fetched, "the host's memory holds what nobody has read"
        assert 0 < self.written <= STEPS_PER_READ, f"{self.written} steps are written"
        self._host.copy_(self._ring, non_blocking=True)
        if self._event is not None:
            self._event.record()
        self._fetched, self.written = self.written, 0

    def read(self) -> list[NDArray]:
        """Wait for the copy. Returns for each of its steps int32 [3, max_rows], see `DeviceRows.advance`."""
        if self._event is not None:
            self._event.synchronize()
        # A copy: the memory is written again by the next fetch.
        content = self._host.numpy().copy()
        found = [content[(self._first + number) % STEPS_PER_READ] for number in range(self._fetched)]
        self._first = (self._first + self._fetched) % STEPS_PER_READ
        self._fetched = 0
        return found
