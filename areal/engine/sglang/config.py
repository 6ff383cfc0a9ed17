"""Configures SGLang servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from areal.api import Config, ConfigError


@dataclass(frozen=True, kw_only=True)
class SGLangConfig(Config):
    """How SGLang servers are started. Other settings are in `servers` or passed by `extra_arguments`."""

    python: str = ".venv-sglang/bin/python"
    """Interpreter of the environment that has SGLang (`bash scripts/setup_sglang.sh` makes the default one)."""
    tensor_parallel_size: int = 1
    """Devices one server spreads its model over."""
    visible_devices: tuple[str, ...] = ()
    """Devices of each server, e.g. ["1", "2,3"] (CUDA_VISIBLE_DEVICES); empty leaves the choice to SGLang."""
    memory_fraction: float = 0.8
    """Share of the device's memory for weights and cache. On CPUs the cache holds max_concurrent sequences."""
    attention_backend: str = ""
    """E.g. "flashinfer", "fa3"; empty leaves the choice to SGLang ("torch_native" on CPUs)."""
    deterministic: bool = False
    """Batch-invariant kernels and seeded sampling: reproducible, slower. GPUs only."""
    extra_arguments: tuple[str, ...] = ()
    """Appended to the command line."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the servers' own."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        if self.tensor_parallel_size < 1:
            raise ConfigError(f"tensor_parallel_size is {self.tensor_parallel_size}, expected at least 1")
        if not 0 < self.memory_fraction <= 1:
            raise ConfigError(f"memory_fraction is {self.memory_fraction}, expected 0 < value <= 1")
