"""Forward and backward passes over a model that is cut into pieces, in the orders that `torch.distributed.pipelining`
knows. What is done with a micro-batch is `areal.engine.archon.scoring`'s, as without a pipeline.

All ranks of a pipeline have the same rows, so only hidden states are sent; micro-batches are padded to one length, and
blank ones are added until the pipeline can be filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from areal.algorithm.packing import select
from areal.api import ConfigError
from areal.engine.archon.passes import loss_of
from areal.engine.archon.scoring import Scored, Scorer
from areal.engine.train.head import score_dtype
from areal.models.parallel.apply import Sharding
from areal.models.parallel.data import give_back
from areal.models.parallel.pipeline import take_piece
from areal.models.registry import get_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from areal.api import LossFunction, PaddedBatch
    from areal.engine.archon.config import ArchonConfig
    from areal.engine.archon.passes import Keep, Scoring
    from areal.engine.archon.scoring import Prepared
    from areal.engine.archon.totals import Totals
    from areal.engine.train.config import TrainEngineConfig
    from areal.models.parallel.meshes import Meshes
    from areal.models.parallel.plan import ParallelPlan

_SCHEDULES: Final[dict[str, Any]] = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}


class PipelinePasses:
    """Owns this rank's piece of the model; takes the place of `SequentialPasses`."""

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        meshes: Meshes,
        config: TrainEngineConfig,
        archon: ArchonConfig,
        *,
        is_critic: bool,
    ) -> None:
        """Keep and shard the piece of `model`. Raises ModelError when it cannot be cut, ConfigError for critics."""
        if is_critic:
            raise ConfigError("critics are not cut into pieces; set parallel.pp to 1 for them")
        self._stage, self._number = meshes.pp.get_local_rank(), meshes.pp.size()
        piece: Any = take_piece(model, self._stage, self._number)
        get_spec(piece.args.model_type).parallelize(piece, plan)
        sharding: Sharding = getattr(piece, "sharding", None) or Sharding(plan=plan)
        if isinstance(piece, FSDPModule):
            # Other micro-batches' backward passes still need what the head was gathered into.
            piece.set_reshard_after_backward(False, recurse=False)
        self.model: nn.Module = piece
        self.partial_over_tp = sharding.partial_over_tp
        self._meshes = meshes
        self._schedule = _SCHEDULES[archon.pp_schedule]
        self._device = next(piece.parameters()).device
        self._dtype = score_dtype(getattr(torch, config.dtype))
        self._hidden_dtype: torch.dtype = getattr(torch, config.dtype)
        self._scorer = Scorer(piece, piece, sharding, meshes, chunk=config.logprob_chunk_size)

    @property
    def _is_last(self) -> bool:
        return self._stage == self._number - 1

    def forward(self, batch: PaddedBatch, micro: list[list[int]], scoring: Scoring, keep: Keep) -> None:
        """Scores of this data rank's micro-batches, on the last piece's ranks."""

        def score(rows: list[int], prepared: Prepared, scored: Scored) -> Tensor:
            if rows and prepared.layout.predicted is not None:
                keep(rows, prepared.layout.predicted, scored)
            return torch.zeros((), device=self._device)

        self._run(batch, micro, scoring, score, backward=False)

    def backward(
        self, batch: PaddedBatch, micro: list[list[int]], loss_fn: LossFunction, scoring: Scoring, totals: Totals
    ) -> None:
        """Gradients of this data rank's micro-batches; totals are filled on the last piece's ranks."""

        def loss(rows: list[int], prepared: Prepared, scored: Scored) -> Tensor:
            terms: list[Tensor] = []
            if scored.anchor is not None:
                # Zero, with a gradient of zeros, whatever the anchor is.
                terms.append(scored.anchor.masked_fill(torch.ones_like(scored.anchor, dtype=torch.bool), 0).sum())
            if rows:
                output = loss_of(select(batch, rows), prepared, scored, loss_fn, scoring, self._dtype)
                totals.add(
                    output,
                    num_model_tokens=prepared.layout.num_model_tokens,
                    num_predicted=int(prepared.layout.targets.numel()),
                )
                terms.append(output.loss)
            return torch.stack([term.to(self._dtype) for term in terms]).sum()

        self._run(batch, micro, scoring, loss, backward=True)

    def all_totals(self, totals: Totals) -> Totals:
        """Totals of all ranks, which only the last piece's have seen."""
        found: list[Any] = [totals.over(self._meshes.group("data"))]
        dist.broadcast_object_list(found, group=self._meshes.group("pp"), group_src=self._number - 1)
        return found[0]

    def share(self, result: Tensor) -> None:
        """Hand what the last piece's ranks have to all others."""
        dist.broadcast(result, group=self._meshes.group("pp"), group_src=self._number - 1)

    def _run(
        self,
        batch: PaddedBatch,
        micro: list[list[int]],
        scoring: Scoring,
        finish: Callable[[list[int], Prepared, Scored], Tensor],
        *,
        backward: bool,
    ) -> None:
        micro = micro + [[] for _ in range(-len(micro) % self._number)]
        layouts = [
            self._scorer.lay_out(select(batch, rows) if rows else None, self._device, only_masked=scoring.only_masked)
            for rows in micro
        ]
        length = max(layout.tokens.tokens.shape[0] for layout in layouts)
        prepared = [self._scorer.prepare(layout, length=length) for layout in layouts]
        runner = _PieceOfBatch(self.model, prepared, is_first=self._stage == 0)
        schedule = self._schedule(
            self._stage_for(runner, self._scorer.num_states(prepared[0])),
            n_microbatches=len(micro),
            loss_fn=lambda states, number: self._finish(states, int(number), micro, prepared, scoring, finish),
            scale_grads=False,
        )
        numbers = torch.arange(len(micro), device=self._device)
        inputs = (numbers,) if self._stage == 0 else ()
        target = numbers if self._is_last else None
        (schedule.step if backward else schedule.eval)(*inputs, target=target, number=numbers)
        give_back(self.model)

    def _finish(
        self,
        states: Tensor,
        number: int,
        micro: list[list[int]],
        prepared: list[Prepared],
        scoring: Scoring,
        finish: Callable[[list[int], Prepared, Scored], Tensor],
    ) -> Tensor:
        scored = self._scorer.score(
            prepared[number], states, temperature=scoring.temperature, with_distribution=scoring.with_distribution
        )
        return finish(micro[number], prepared[number], scored)

    def _stage_for(self, runner: nn.Module, num_states: int) -> PipelineStage:
        args: Any = self.model.args
        states = torch.empty(num_states, args.hidden_size, dtype=self._hidden_dtype, device="meta", requires_grad=True)
        number = torch.empty(1, dtype=torch.int64, device="meta")
        return PipelineStage(
            runner,
            self._stage,
            self._number,
            self._device,
            input_args=number if self._stage == 0 else states,
            output_args=states,
            group=self._meshes.group("pp"),
        )


class _PieceOfBatch(nn.Module):
    """What the schedule calls: a micro-batch is known by its number, on every rank of the pipeline."""

    def __init__(self, piece: nn.Module, prepared: list[Prepared], *, is_first: bool) -> None:
        super().__init__()
        self.piece = piece
        self._prepared = prepared
        self._is_first = is_first

    def forward(self, received: Tensor, *, number: Tensor) -> Tensor:
        """received: hidden states of the piece before; of the first piece, the number once more."""
        prepared = self._prepared[int(number)]
        piece: Any = self.piece
        states: Tensor = piece.hidden(
            prepared.tokens,
            prepared.positions,
            prepared.layout.tokens.cu_seqlens,
            prepared.layout.tokens.max_seqlen,
            attention=prepared.attention,
            received=None if self._is_first else received,
        )
        return states
