"""The most memory that this process held since a moment: of an accelerator's tensors, or resident on Linux."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """Read it whenever; `forget` begins anew. device: "cuda", else the process's resident memory is meant."""

    def __init__(self, device: str = "cpu") -> None:
        self._on_cuda = device.startswith("cuda")

    def forget(self) -> None:
        """Forget what was held before, except what still is."""
        gc.collect()
        if self._on_cuda:
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> int:
        """Bytes."""
        if self._on_cuda:
            import torch

            return torch.cuda.max_memory_allocated()
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
