"""The training engine with megatron-core inside: the same contract and checkpoints, other layers and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.api import ConfigError
from areal.engine.megatron.checks import check_config
from areal.engine.megatron.passes import MegatronPasses
from areal.engine.precision import with_concrete_dtype
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.optimizer import ModelOptimizer, learning_rate
from areal.engine.train.runner import ModelRunner

if TYPE_CHECKING:
    from torch import nn

    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.engine.train.loading import ShardSource


class MegatronEngine(TrainingEngine):
    """One trained model, split by megatron-core over the connected processes.

    with connected() as device:
        engine = MegatronEngine(model, config=TrainEngineConfig(lr=1e-5), archon=ArchonConfig(engine="megatron", ...))
        stats = engine.train_batch(batch, loss_fn)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainEngineConfig,
        archon: ArchonConfig | None = None,
        total_steps: int | None = None,
        is_critic: bool = False,
        source: ShardSource | None = None,
    ) -> None:
        """See `TrainingEngine`; archon is needed. Raises ConfigError for settings and ModelError for models that
        megatron-core cannot do, before anything is built.
        """
        if archon is None:
            raise ConfigError("megatron-core splits a model over processes: archon is null", fix="set archon.parallel")
        config = with_concrete_dtype(config)
        learning_rate(config, config.warmup_steps, total_steps)
        check_config(config, archon, is_critic=is_critic)
        runner = ModelRunner(
            model,
            config,
            archon,
            source=source,
            make_passes=lambda model, plan, ranks: MegatronPasses(model, plan, ranks, config, archon),
        )
        passes: Any = runner.passes
        passes.join()
        dtype: torch.dtype = getattr(torch, config.dtype)
        optimizer = _MegatronOptimizer(passes, config, dtype=dtype, ranks=runner.ranks, copies=passes.copies)
        self._take_over(config, runner, optimizer, total_steps=total_steps, is_critic=False)


class _MegatronOptimizer(ModelOptimizer):
    """Updates our part of the model, and megatron's with it."""

    def __init__(self, passes: MegatronPasses, config: TrainEngineConfig, **options: Any) -> None:
        super().__init__(passes.model, config, **options)
        self._passes = passes

    def zero_grad(self) -> None:
        """See `ModelOptimizer`."""
        super().zero_grad()
        self._passes.zero_grad()

    def step(self, lr: float, gradient_norm: float) -> None:
        """See `ModelOptimizer`."""
        super().step(lr, gradient_norm)
        self._passes.weights.push()

    def refresh(self) -> None:
        """See `ModelOptimizer`."""
        super().refresh()
        self._passes.weights.push()
