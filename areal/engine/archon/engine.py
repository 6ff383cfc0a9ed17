"""The training engine over many processes. Implements `areal.api.TrainEngine`; results are those of one process.

Every rank makes an engine around the same model and calls the same methods with the same, whole batch: the engine
divides the rows, and what it returns is about all of them. So a loss function's denominators are those of the whole
step without anybody communicating them, and a trainer's loop runs unchanged on every rank.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from areal.api import ConfigError, EngineError, TrainStats
from areal.engine.archon.memory import Expectation, MicroBatches
from areal.engine.archon.optimizer import ShardedOptimizer, agree
from areal.engine.archon.packing import divide_rows
from areal.engine.archon.passes import Scoring, SequentialPasses
from areal.engine.archon.pipeline import PipelinePasses
from areal.engine.archon.state import EngineState
from areal.engine.archon.totals import Totals
from areal.engine.hf.lora import Adapters
from areal.engine.train.checks import check_has_distribution, check_has_values, check_role, check_scoring
from areal.engine.train.forward import place, to_device
from areal.engine.train.head import score_dtype
from areal.engine.train.progress import Progress, ProgressReport
from areal.engine.train.schedule import learning_rate
from areal.models.parallel.meshes import build_meshes
from areal.models.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.api import LossFunction, PaddedBatch
    from areal.engine.archon.config import ArchonConfig
    from areal.engine.archon.loading import ShardSource
    from areal.engine.archon.scoring import Scored
    from areal.engine.train.config import TrainEngineConfig
    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.meshes import Meshes


class ArchonEngine(ProgressReport):
    """One trained model, actor or critic, over all processes of the group.

    with connected() as device:
        engine = ArchonEngine(from_pretrained(path), config=TrainEngineConfig(lr=1e-4), archon=ArchonConfig(...))
        stats = engine.train_batch(batch, loss_fn)      # on every rank, with the same batch
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainEngineConfig,
        archon: ArchonConfig,
        total_steps: int | None = None,
        is_critic: bool = False,
        source: ShardSource | None = None,
    ) -> None:
        """Take over `model`, which has the same parameters on every rank, and keep this rank's part of it.

        source: fills a model without memory once it is split; see `areal.engine.archon.loading`.

        Raises ConfigError when the number of processes is not that of `archon.parallel`, ModelError when the model does
        not divide, and what `TrainingEngine` raises.
        """
        self.config, self.archon, self.is_critic = config, archon, is_critic
        self.device = next(model.parameters()).device if source is None else source.device
        check_role(model, is_critic=is_critic)
        if archon.offload_parameters:
            check_offload(self.device, is_loaded=source is None)
        self._total_steps = total_steps
        learning_rate(config, config.warmup_steps, total_steps)
        self._dims = archon.parallel.resolved(dist.get_world_size())
        self._meshes = build_meshes(self._dims, self.device.type)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        # For bfloat16 the parameters stay float32: they are the master weights, and FSDP2 rounds what it gathers.
        stored = torch.float64 if self._dtype == torch.float64 else torch.float32
        adapters = None if config.lora is None else Adapters.added_to(model, config.lora, dtype=self._dtype)
        for parameter in model.parameters():
            if parameter.requires_grad or adapters is None:
                parameter.data = parameter.data.to(stored)
        plan = _plan_of(config, archon, self._dims, self._meshes)
        self._passes: SequentialPasses | PipelinePasses
        if self._dims.pp > 1:
            self._passes = PipelinePasses(model, plan, self._meshes, config, archon, is_critic=is_critic)
        else:
            self._passes = SequentialPasses(model, plan, self._meshes, config, is_critic=is_critic)
        if source is not None:
            source.fill(self._passes.model, {} if adapters is None else adapters.first_values)
        self.optimizer = ShardedOptimizer(
            self._passes.model,
            config,
            self._meshes,
            partial_over_tp=self._passes.partial_over_tp,
            copies=self._passes.copies,
        )
        self._micro_batches = MicroBatches(
            Expectation(model, config, plan, num_gradients=self.optimizer.num_values),
            self._meshes,
            self.device,
            holds_all=archon.pp_schedule == "GPipe",
            budget=config.max_tokens_per_micro_batch,
        )
        self._state = EngineState(
            self._passes.model, self.optimizer, self._meshes, dtype=self._dtype, adapters=adapters
        )
        self._progress = Progress(max_skipped_steps=config.max_skipped_steps, whose=" on all ranks")

    @property
    def model(self) -> nn.Module:
        """This rank's part of the live model."""
        return self._passes.model

    @torch.no_grad()
    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """See `TrainEngine.forward_logp`; the whole result, on every rank."""
        check_has_distribution(is_critic=self.is_critic)
        scoring = Scoring(temperature=temperature, with_distribution=False, only_masked=only_masked)
        return self._forward(batch, scoring, lambda scored: scored.scores.logp if scored.scores else None)

    @torch.no_grad()
    def forward_values(self, batch: PaddedBatch) -> Tensor:
        """See `TrainEngine.forward_values`; the whole result, on every rank."""
        check_has_values(is_critic=self.is_critic)
        scoring = Scoring(temperature=1.0, with_distribution=False, only_masked=False)
        return self._forward(batch, scoring, lambda scored: scored.values)

    def train_batch(
        self,
        batch: PaddedBatch,
        loss_fn: LossFunction,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        smoothing: float = 0.0,
    ) -> TrainStats:
        """See `TrainingEngine.train_batch`; the same numbers, on every rank.

        All ranks skip a step when a gradient or the loss is not finite on any of them. "model_tokens_count" counts
        tokens once, however many ranks share them. Micro-batches are made smaller on all ranks when one of them has no
        room for its own; see `areal.engine.archon.memory` for what that does not catch.
        """
        check_scoring(is_critic=self.is_critic, temperature=temperature, with_entropy=with_entropy, smoothing=smoothing)
        batch = to_device(batch, self.device)
        scoring = Scoring(
            temperature=temperature,
            with_distribution=with_entropy or smoothing > 0,
            only_masked=True,
            with_entropy=with_entropy,
            smoothing=smoothing,
        )
        divided = self._divide(batch)
        totals = self._backward(batch, divided, loss_fn, scoring)
        gradient_norm = self.optimizer.gradient_norm() if totals.num_predicted else 0.0
        rate = learning_rate(self.config, self.num_steps, self._total_steps)
        stepped = math.isfinite(agree(totals.loss, self.device)) and math.isfinite(gradient_norm)
        metrics = dict(totals.metrics)
        if stepped:
            if totals.num_predicted:
                self.optimizer.step(rate, gradient_norm)
            self._progress.record_step()
        else:
            rows = self._find_offending_rows(batch, divided, loss_fn, scoring)
            metrics["nonfinite_sequences_count"] = float(len(rows))
            self._progress.record_skip(batch, rows, loss=totals.loss, gradient_norm=gradient_norm)
        self.optimizer.zero_grad()
        return TrainStats(
            loss=totals.loss,
            grad_norm=gradient_norm,
            learning_rate=rate,
            stepped=stepped,
            num_micro_batches=totals.num_micro_batches,
            metrics=metrics,
        )

    def weights(self) -> Mapping[str, Tensor]:
        """Native parameter names to whole tensors in the engine's dtype, on every rank; gathered one by one. With lora:
        those of the adapters only.

        Unlike those of `TrainingEngine` they are copies. `areal.engine.archon.state.EngineState.stream` hands them out
        without holding all of them.
        """
        return dict(self._state.stream())

    def first_rank_weights(self) -> Mapping[str, Tensor]:
        """The same on rank 0; {} on the others, which hold no more than one whole tensor at a time."""
        found = {}
        for name, tensor in self._state.stream():
            if dist.get_rank() == 0:
                found[name] = tensor
        return found

    def state_dict(self) -> dict[str, Any]:
        """Whole tensors, in the form of `TrainingEngine.state_dict`, which can load it and the other way round.

        For models that one host cannot hold, see `areal.engine.archon.checkpoint`.
        """
        return self._state.whole_state() | self.counters()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`, of an engine with any arrangement of ranks."""
        self._state.load_whole_state(state)
        self.set_counters(state)

    def counters(self) -> dict[str, int]:
        """Where the run is: the part of the state that is the same on every rank."""
        return self._progress.counters()

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Inverse of `counters`."""
        self._progress.set_counters(counters)

    def save_pretrained(self, path: Path) -> None:
        """Write a Hugging Face checkpoint folder from the shards, replacing an existing one at once. Returns on every
        rank when it is there; rank 0 writes it.

        A critic is written as its backbone, plus value_head.safetensors with the head. Adapters are merged.
        """
        self._state.save_pretrained(path, is_critic=self.is_critic)

    def save_adapter(self, path: Path, *, base: str) -> None:
        """Write the adapters alone, as a folder that goes on top of the checkpoint `base`; EngineError without any."""
        if self.config.lora is None:
            raise EngineError("there is no adapter to save: the engine was configured without lora")
        self._state.save_adapter(path, base=base)

    def sharded_state(self) -> tuple[dict[str, Tensor], str | None]:
        """This rank's parts of what a checkpoint holds of the model, and what adapters were trained on top of."""
        return self._state.own(), self._state.base

    def _divide(self, batch: PaddedBatch) -> list[list[int]]:
        return divide_rows(batch, self._meshes.data.size(), keep_groups=self.archon.keep_groups)

    def _forward(self, batch: PaddedBatch, scoring: Scoring, read: Any) -> Tensor:
        """[S, L] of what `read` takes from the scores of all rows."""
        moved = to_device(batch, self.device)
        result_SL = torch.zeros(batch.tokens.shape, dtype=score_dtype(self._dtype), device=self.device)

        def keep(rows: list[int], predicted_SL: Tensor, scored: Scored) -> None:
            values_SL = place(read(scored), predicted_SL, dtype=result_SL.dtype)
            result_SL[torch.tensor(rows, device=self.device), : values_SL.shape[1]] = values_SL

        self._micro_batches.run(
            "forward",
            moved,
            self._divide(moved),
            lambda micro: self._passes.forward(moved, micro, scoring, keep),
            reset=lambda: None,
        )
        # Each row is on one data rank, and 0 on the others.
        dist.all_reduce(result_SL, group=self._meshes.group("data"))
        self._passes.share(result_SL)
        return result_SL.to(batch.tokens.device)

    def _backward(
        self, batch: PaddedBatch, divided: list[list[int]], loss_fn: LossFunction, scoring: Scoring
    ) -> Totals:
        """Gradients of all rows; totals are those of all ranks."""
        totals = Totals()

        def work(micro: list[list[int]]) -> None:
            self._passes.backward(batch, micro, loss_fn, scoring, totals)

        def reset() -> None:
            self.optimizer.zero_grad()
            totals.clear()

        reset()
        self._micro_batches.run("training", batch, divided, work, reset=reset)
        self.optimizer.sum_partial()
        return self._passes.all_totals(totals)

    def _find_offending_rows(
        self, batch: PaddedBatch, divided: list[list[int]], loss_fn: LossFunction, scoring: Scoring
    ) -> tuple[int, ...]:
        """Run each sequence on its own; costs a pass per row, in a case that should be rare."""
        owner = {row: rank for rank, rows in enumerate(divided) for row in rows}
        found: list[int] = []
        for row in range(batch.lengths.shape[0]):
            alone = [[row] if owner[row] == rank else [] for rank in range(len(divided))]
            totals = self._backward(batch, alone, loss_fn, scoring)
            finite = math.isfinite(agree(totals.loss, self.device)) and math.isfinite(self.optimizer.gradient_norm())
            found += [] if finite else [row]
        return tuple(found)


def _plan_of(config: TrainEngineConfig, archon: ArchonConfig, dims: ParallelDims, meshes: Meshes) -> ParallelPlan:
    return ParallelPlan(
        dims=dims,
        meshes=meshes,
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
        raise ConfigError("offload_parameters moves parameters from an accelerator to the host; there is none here")
    if not is_loaded:
        raise ConfigError(
            "offload_parameters takes a model that is loaded as a whole, and this one is read in shards; load it by "
            "from_pretrained, or use offload_optimizer"
        )
