"""Names the device; see the package."""

from __future__ import annotations

from typing import Any

from triton.backends.driver import DriverBase


class CPUDriver(DriverBase):
    """Says that tensors are on the CPU; launches nothing."""

    @classmethod
    def is_active(cls) -> bool:
        """Return True: a CPU is always there."""
        return True

    def get_active_torch_device(self) -> Any:
        """Return the device of tensors."""
        import torch

        return torch.device("cpu")

    def get_current_target(self) -> Any:
        """Refuse: interpreted kernels have no target."""
        raise NotImplementedError("kernels are interpreted here, set TRITON_INTERPRET=1")

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Refuse: interpreted kernels are not launched from C++."""
        raise NotImplementedError("kernels are interpreted here, set TRITON_INTERPRET=1")

    def get_benchmarker(self) -> Any:
        """Refuse: there is nothing to tune."""
        raise NotImplementedError("kernels are interpreted here, set TRITON_INTERPRET=1")
