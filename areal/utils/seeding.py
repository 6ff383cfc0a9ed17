"""Seed and capture the process-wide random generators (Python, NumPy, torch), as plain values that a checkpoint can
hold.

Generators that someone constructed (`random.Random`, `torch.Generator`) are their owner's business and not touched.
torch and NumPy are imported inside the functions, so that importing this module stays free.
"""

from __future__ import annotations

import random
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSeeds:
    """Seeds, 0 <= seed < 2**63, for what an episode uses beside its policy, such as an environment. The same in every
    attempt at the episode.
    """

    prompt: int = 0
    """Equal for all samples of a prompt."""
    sample: int = 0
    """Of this sample alone."""


_episode: ContextVar[Callable[[], EpisodeSeeds]] = ContextVar("areal_episode_seeds", default=EpisodeSeeds)


def episode_seeds() -> EpisodeSeeds:
    """Return the seeds of the episode that is running; zeros outside of one."""
    return _episode.get()()


class seeds_of_episode:
    """Give seeds to what runs inside, here and in the tasks started here."""

    __slots__ = ("_seeds", "_token")

    def __init__(self, seeds: EpisodeSeeds | Callable[[], EpisodeSeeds]) -> None:
        """seeds: or what returns them, for episodes of which most do not ask."""
        self._seeds = seeds if callable(seeds) else lambda: seeds

    def __enter__(self) -> None:
        """Begin."""
        self._token = _episode.set(self._seeds)

    def __exit__(self, *_: object) -> None:
        """Return to the seeds outside."""
        _episode.reset(self._token)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices) with `seed`, any integer >= 0; NumPy takes it modulo 2**32.

    Libraries that are not installed are left out.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}, expected an integer >= 0")
    random.seed(seed)
    numpy = _import("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch = _import("torch")
    if torch is not None:
        torch.manual_seed(seed % 2**63)


def rng_state() -> dict[str, Any]:
    """State of all process-wide generators whose library is loaded, made of int, float, bytes, tuple and list only."""
    state: dict[str, Any] = {"python": random.getstate()}
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state(legacy=True)
        state["numpy"] = (str(kind), keys.astype("<u4").tobytes(), int(position), int(has_gauss), float(cached))
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        state["torch"] = torch.get_rng_state().numpy().tobytes()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = [item.cpu().numpy().tobytes() for item in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Inverse of `rng_state`. Generators that `state` does not mention keep their state.

    Raises ValueError when it was captured with another number of CUDA devices.
    """
    random.setstate(_tuples(state["python"]))
    if "numpy" in state:
        import numpy as np

        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.frombuffer(keys, dtype="<u4"), position, has_gauss, cached))
    if "torch" in state:
        import torch

        torch.set_rng_state(_byte_tensor(state["torch"]))
        if "cuda" in state:
            saved, present = len(state["cuda"]), torch.cuda.device_count()
            if saved != present:
                raise ValueError(
                    f"random state of {saved} CUDA devices cannot be restored on {present}; use as many as before"
                )
            torch.cuda.set_rng_state_all([_byte_tensor(item) for item in state["cuda"]])


def _import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


def _byte_tensor(data: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _tuples(value: Any) -> Any:
    # `random.setstate` insists on tuples; a state that went through plain JSON has lists.
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value
