"""Peak speed of accelerators by name: the denominator of model FLOPs utilisation (MFU).

peak = peak_tflops(torch.cuda.get_device_name())  # None for what the table does not know: no MFU is better than a
                                                  # wrong one
"""

from __future__ import annotations

from typing import Final

PEAK_TFLOPS: Final[dict[str, float]] = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H20": 148.0,
    "B200": 2250.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX 4090": 165.2,
    "MI300X": 1307.4,
}
"""Dense bfloat16 with float32 sums, without sparsity, of the makers' data sheets (NVIDIA's pages of each product, AMD's
CDNA 3 white paper). The first name that is part of the device's counts."""


def peak_tflops(device: str) -> float | None:
    """Return the peak of a device by its name; None for CPUs and what the table does not know."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if name in device), None)
