"""Runs a model over whole batches: rows are divided over the ranks that share it, cut into micro-batches, and computed.

What trained engines and frozen models have in common. It updates nothing; `FrozenModel` needs nothing else.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import torch
import torch.distributed as dist

from areal.api import ConfigError, EngineError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.memory import Expectation, MicroBatches
from areal.engine.train.packing import divide_rows
from areal.engine.train.passes import Scoring, SequentialPasses, Totals, place, score_dtype_of, to_device
from areal.engine.train.ranks import Ranks, local_data
from areal.models.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from areal.api import LossFunction, PaddedBatch
    from areal.engine.config import ArchonConfig
    from areal.engine.train.loading import ShardSource
    from areal.engine.train.passes import BatchTotals, Scored
    from areal.engine.train.pipeline import PipelinePasses


class ModelRunner:
    """A model, whole or this rank's part of it, and how batches go through it."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainEngineConfig,
        archon: ArchonConfig | None = None,
        *,
        is_critic: bool = False,
        source: ShardSource | None = None,
        first_values: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Split `model` as `archon` says, in place; without, this process is alone with it where it is.

        source: fills a model without memory once it is split; first_values: of parameters that it does not have.
        """
        self.is_critic = is_critic
        self._keeps_groups = archon is None or archon.keep_groups
        if is_critic == hasattr(model, "project"):
            raise EngineError(
                f"is_critic={is_critic} does not fit {type(model).__name__}: a critic is an "
                f"areal.models.value_head.ValueModel around a decoder, an actor is the decoder itself"
            )
        self.passes: SequentialPasses | PipelinePasses
        chunk = config.logprob_chunk_size
        if archon is None:
            self.ranks = Ranks(next(model.parameters()).device)
            plan = ParallelPlan(activation_checkpointing=config.gradient_checkpointing)
            self.passes = SequentialPasses(model, plan, self.ranks, chunk=chunk, is_critic=is_critic)
        else:
            plan = _plan_of(model, config, archon, source)
            assert plan.meshes is not None, "just built"
            self.ranks = Ranks(plan.meshes.device, plan.meshes)
            if plan.dims.pp > 1:
                from areal.engine.train.pipeline import PipelinePasses

                self.passes = PipelinePasses(model, plan, self.ranks, config, archon, is_critic=is_critic)
            else:
                self.passes = SequentialPasses(model, plan, self.ranks, chunk=chunk, is_critic=is_critic)
        if source is not None:
            source.fill(self.model, first_values or {}, self.ranks)
        trained = (parameter for parameter in self.model.parameters() if parameter.requires_grad)
        num_gradients = sum(local_data(parameter).numel() for parameter in trained)
        self._micro_batches = MicroBatches(
            Expectation(model, config, plan, num_gradients=num_gradients),
            self.ranks,
            holds_all=archon is not None and archon.pp_schedule == "GPipe",
            budget=config.max_tokens_per_micro_batch,
        )

    @property
    def model(self) -> nn.Module:
        """The live model, or this rank's part of it."""
        return self.passes.model

    def divide(self, batch: PaddedBatch) -> list[list[int]]:
        """Rows of each data rank."""
        return divide_rows(batch, self.ranks.count("data"), keep_groups=self._keeps_groups)

    @torch.no_grad()
    def forward_logp(self, batch: PaddedBatch, *, temperature: float, only_masked: bool) -> Tensor:
        """See `TrainingEngine.forward_logp`."""
        if self.is_critic:
            raise EngineError(
                "forward_logp needs a language model head and this engine trains a critic; use forward_values"
            )
        scoring = Scoring(temperature=temperature, only_masked=only_masked)
        return self._forward(batch, scoring, lambda scored: scored.scores.logp if scored.scores else None)

    @torch.no_grad()
    def forward_values(self, batch: PaddedBatch) -> Tensor:
        """See `TrainingEngine.forward_values`."""
        if not self.is_critic:
            raise EngineError(
                "forward_values needs a value head; build the engine around a ValueModel with is_critic=True"
            )
        return self._forward(batch, Scoring(), lambda scored: scored.values)

    def _forward(self, batch: PaddedBatch, scoring: Scoring, read: Callable[[Scored], Tensor | None]) -> Tensor:
        """[S, L] of what `read` takes from the scores of all rows, on every rank, on the device of `batch`."""
        moved = to_device(batch, self.ranks.device)
        dtype = score_dtype_of(self.model)
        result_SL = torch.zeros(batch.tokens.shape, dtype=dtype, device=self.ranks.device)

        def keep(rows: list[int], predicted_SL: Tensor, scored: Scored) -> None:
            values_SL = place(read(scored), predicted_SL, dtype=dtype)
            result_SL[torch.tensor(rows, device=self.ranks.device), : values_SL.shape[1]] = values_SL

        self._micro_batches.run(
            "forward",
            moved,
            self.divide(moved),
            lambda micro: self.passes.forward(moved, micro, scoring, keep),
            reset=lambda: None,
        )
        # Each row is on one data rank, and 0 on the others.
        self.ranks.sum(result_SL, "data")
        self.passes.share(result_SL)
        return result_SL.to(batch.tokens.device)

    def backward(
        self,
        batch: PaddedBatch,
        divided: list[list[int]],
        loss_fn: LossFunction,
        scoring: Scoring,
        *,
        zero_grad: Callable[[], None],
    ) -> BatchTotals:
        """Gradients of all rows, which are on the device of the model; totals are those of all ranks."""
        totals = Totals()

        def reset() -> None:
            zero_grad()
            totals.clear()

        reset()
        self._micro_batches.run(
            "training",
            batch,
            divided,
            lambda micro: self.passes.backward(batch, micro, loss_fn, scoring, totals),
            reset=reset,
        )
        return self.passes.all_totals(totals)


class FrozenModel:
    """Scores batches with weights that never change; the numbers come from the same code as the training engine's.

    reference = FrozenModel.copy_of(engine.model, config=engine.config)   # before the first step
    logp_ref = reference.forward_logp(batch, temperature=1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainEngineConfig | None = None,
        archon: ArchonConfig | None = None,
        source: ShardSource | None = None,
    ) -> None:
        """Take over `model` where it is: gradients are switched off. config: micro-batch and chunk sizes; defaults if
        None. archon, source: as of a `TrainingEngine`, on every rank."""
        settings = replace(config or TrainEngineConfig(), lora=None, gradient_checkpointing=False)
        self._runner = ModelRunner(model.requires_grad_(False), settings, archon, source=source)

    @classmethod
    def copy_of(cls, model: nn.Module, *, config: TrainEngineConfig | None = None) -> Self:
        """Freeze a copy; the original stays trainable and the copy is not affected by its updates."""
        return cls(copy.deepcopy(model), config=config)

    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """See `TrainingEngine.forward_logp`."""
        return self._runner.forward_logp(batch, temperature=temperature, only_masked=only_masked)


def _plan_of(
    model: nn.Module, config: TrainEngineConfig, archon: ArchonConfig, source: ShardSource | None
) -> ParallelPlan:
    """Build the groups of processes, and bring the parameters into the dtype in which they are stored."""
    from areal.models.parallel.meshes import build_meshes

    device = next(model.parameters()).device if source is None else source.device
    if archon.offload_parameters:
        check_offload(device, is_loaded=source is None)
    # Without a group, `build_meshes` says what to do.
    dims = archon.parallel.resolved(dist.get_world_size() if dist.is_initialized() else 1)
    # For bfloat16 the parameters stay float32: they are the master weights, and FSDP2 rounds what it gathers.
    stored = torch.float64 if config.dtype == "float64" else torch.float32
    for parameter in model.parameters():
        if parameter.requires_grad or config.lora is None:
            parameter.data = parameter.data.to(stored)
    return ParallelPlan(
        dims=dims,
        meshes=build_meshes(dims, device.type),
        sequence_parallel=archon.sequence_parallel,
        activation_checkpointing=config.gradient_checkpointing,
        compile=archon.compile,
        param_dtype="bfloat16" if config.dtype == "bfloat16" else None,
        reshard_after_forward=archon.reshard_after_forward,
        offload_parameters=archon.offload_parameters,
    )


def check_offload(device: torch.device, *, is_loaded: bool) -> None:
    """Raise ConfigError where parameters cannot be moved to the host."""
    if device.type == "cpu":
        raise ConfigError(
            "offload_parameters moves parameters from an accelerator to the host; this model is on the host already"
        )
    if not is_loaded:
        raise ConfigError(
            "offload_parameters takes a model that is loaded as a whole, and this one is read in shards; load it by "
            "from_pretrained, or use offload_optimizer"
        )
