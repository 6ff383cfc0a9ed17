"""Configures vLLM servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class VLLMConfig(Config):
    """How vLLM servers are started. Other settings are in `servers` or passed by `extra_arguments`."""

    python: str = ".venv-vllm/bin/python"
    """Interpreter of the environment that has vLLM (`bash scripts/setup_vllm.sh` makes the default one)."""
    tensor_parallel_size: int = number(1, at_least=1)
    """Devices one server spreads its model over."""
    visible_devices: tuple[str, ...] = ()
    """Devices of each server, e.g. ["1", "2,3"] (CUDA_VISIBLE_DEVICES); empty leaves the choice to vLLM."""
    gpu_memory_utilization: float = number(0.85, above=0, at_most=1)
    """Share of a GPU's memory for weights and cache; ignored on CPUs."""
    cpu_cache_gb: int = number(1, at_least=1)
    """Size of the key/value cache on CPUs; ignored on GPUs."""
    cpu_cores: str = ""
    """Cores of a server on CPUs, e.g. "0-3" (VLLM_CPU_OMP_THREADS_BIND); empty leaves the choice to vLLM."""
    enforce_eager: bool = True
    """Run without compilation and CUDA graphs: a server starts faster, and decodes slower on GPUs."""
    prefix_caching: bool = True
    """Keep prompts in the cache for the other samples of their group."""
    api: Literal["auto", "completions", "generate"] = "auto"
    """Endpoint for generations. generate: /inference/v1/generate, which labels tokens with weight versions;
    completions: /v1/completions, for versions of vLLM without it; auto: generate if the server has it."""
    extra_arguments: tuple[str, ...] = ()
    """Appended to the command line, e.g. ["--max-num-batched-tokens", "8192"]."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the servers' own."""
