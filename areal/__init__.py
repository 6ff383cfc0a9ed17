"""areal: asynchronous RL post-training for language models.

    result = areal.GRPO(model="models/Qwen3-0.6B", reward=my_reward, train=rows).train()

Importing this package is cheap and has no side effects: torch, transformers and the registries load when they are used.
Start at `areal.api` (the contracts), then read one folder at a time; the dependency direction is in AGENTS.md.
docs/python-api.md has the classes below, which are loaded when they are named.
"""

from __future__ import annotations

from importlib import import_module

# Type checkers know the name; importing `typing` for it would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from areal.trainer.python.loop import PolicyLoop
    from areal.trainer.python.result import MetricTable, TrainResult
    from areal.trainer.python.runs import DistillationRun as Distillation
    from areal.trainer.python.runs import DPORun as DPO
    from areal.trainer.python.runs import GRPORun as GRPO
    from areal.trainer.python.runs import PPORun as PPO
    from areal.trainer.python.runs import RewardModelRun as RewardModel
    from areal.trainer.python.runs import SFTRun as SFT
    from areal.trainer.python.trial import DryRun
    from areal.utils import stats

__version__ = "0.1.0"

_EXPORTS: Final[dict[str, str]] = {
    "DPO": "areal.trainer.python.runs:DPORun",
    "Distillation": "areal.trainer.python.runs:DistillationRun",
    "DryRun": "areal.trainer.python.trial:DryRun",
    "GRPO": "areal.trainer.python.runs:GRPORun",
    "MetricTable": "areal.trainer.python.result:MetricTable",
    "PPO": "areal.trainer.python.runs:PPORun",
    "PolicyLoop": "areal.trainer.python.loop:PolicyLoop",
    "RewardModel": "areal.trainer.python.runs:RewardModelRun",
    "SFT": "areal.trainer.python.runs:SFTRun",
    "TrainResult": "areal.trainer.python.result:TrainResult",
    "stats": "areal.utils.stats",
}
"""Name to the class or module behind it."""

__all__ = [
    "DPO",
    "GRPO",
    "PPO",
    "SFT",
    "Distillation",
    "DryRun",
    "MetricTable",
    "PolicyLoop",
    "RewardModel",
    "TrainResult",
    "stats",
]


def __getattr__(name: str) -> Any:
    """Load what is exported when it is first named (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'areal' has no attribute {name!r}; it exports {', '.join(_EXPORTS)}")
    module, _, target = _EXPORTS[name].partition(":")
    loaded = import_module(module)
    found = globals()[name] = getattr(loaded, target) if target else loaded
    return found


def __dir__() -> list[str]:
    """Name what can be loaded, for completion."""
    return sorted({*globals(), *_EXPORTS})
