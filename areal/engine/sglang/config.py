"""Configures SGLang servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class SGLangConfig(Config):
    """How SGLang servers are started. Other settings are in `servers` or passed by `extra_arguments`."""

    python: str = ".venv-sglang/bin/python"
    """Interpreter of the environment that has SGLang (`bash scripts/setup_sglang.sh` makes the default one)."""
    tensor_parallel_size: int = number(1, at_least=1)
    """Devices one server spreads its model over."""
    visible_devices: tuple[str, ...] = ()
    """Devices of each server, e.g. ["1", "2,3"] (CUDA_VISIBLE_DEVICES); empty leaves the choice to SGLang."""
    memory_fraction: float = number(0.8, above=0, at_most=1)
    """Share of the device's memory for weights and cache. On CPUs the cache holds max_concurrent sequences."""
    attention_backend: str = ""
    """E.g. "flashinfer", "fa3"; empty leaves the choice to SGLang ("torch_native" on CPUs)."""
    deterministic: bool = False
    """Batch-invariant kernels and seeded sampling: reproducible, slower. GPUs only."""
    extra_arguments: tuple[str, ...] = ()
    """Appended to the command line."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the servers' own."""
