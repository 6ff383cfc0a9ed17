"""Which engine trains a split model: the only table to extend for another one.

Engines that generate are chosen by `rollout.engine` (`areal.trainer.inference`), which has more to build than a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from areal.api import load

if TYPE_CHECKING:
    from areal.engine.config import ArchonConfig
    from areal.engine.train.engine import TrainingEngine

TRAINING_ENGINES: Final[dict[str, str]] = {
    "megatron": "areal.engine.megatron.engine:MegatronEngine",
    "native": "areal.engine.train.engine:TrainingEngine",
}
"""Values of archon.engine to classes with the constructor of `TrainingEngine`."""


def training_engine(archon: ArchonConfig | None) -> type[TrainingEngine]:
    """Return the class of the engine that `archon` names; the native one for a process that is alone."""
    name = "native" if archon is None else archon.engine
    found: type[TrainingEngine] = load("training engine", name, TRAINING_ENGINES)
    return found
