"""Forward and backward passes over a model that is cut into pieces, in the orders that `torch.distributed.pipelining`
knows. What is done with a micro-batch is `areal.engine.archon.scoring`'s, as without a pipeline.

All ranks of a pipeline have the same rows, so only hidden states are sent; micro-batches are padded to one length, and
blank ones are added until the pipeline can be filled.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from areal.algorithm.packing import select
from areal.api import ConfigError
from areal.engine.archon.optimizer import local_data
from areal.engine.archon.passes import loss_of
from areal.engine.archon.schedules import pipeline_layout
from areal.engine.archon.scoring import Scored, Scorer
from areal.engine.archon.splitting import split_decoder
from areal.engine.archon.stages import PieceOfBatch, PieceStage, gathered_for_a_step, make_schedule
from areal.engine.train.head import score_dtype
from areal.models.parallel.data import give_back, shard_rest
from areal.models.parallel.pipeline import copies_of, is_tied, take_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from areal.api import LossFunction, PaddedBatch
    from areal.engine.archon.config import ArchonConfig
    from areal.engine.archon.passes import Keep, Scoring
    from areal.engine.archon.schedules import PipelineLayout
    from areal.engine.archon.scoring import Prepared
    from areal.engine.archon.totals import Totals
    from areal.engine.train.config import TrainEngineConfig
    from areal.models.parallel.meshes import Meshes
    from areal.models.parallel.plan import ParallelPlan


class PipelinePasses:
    """Owns this rank's pieces of the model; takes the place of `SequentialPasses`."""

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
        """Keep and shard the pieces of `model`. Raises ModelError when it cannot be cut, ConfigError when the schedule
        does not go with another option."""
        self._rank, self._is_critic = meshes.pp.get_local_rank(), is_critic
        self._layout = pipeline_layout(archon.pp_schedule, meshes.pp.size(), archon.pp_pieces)
        _check_options(self._layout, config, archon)
        whole: Any = model
        decoder = whole.backbone if is_critic else whole
        part: Any = take_part(
            decoder, self._layout.pieces_of(self._rank), self._layout.num_pieces, projects=not is_critic
        )
        sharding = split_decoder(part, plan)
        if isinstance(part, FSDPModule):
            # Other micro-batches' backward passes still need what the head was gathered into.
            part.set_reshard_after_backward(False, recurse=False)
        self._part = part
        self.model: nn.Module = _part_of_critic(whole, part, plan, meshes) if is_critic else part
        prefix = "backbone." if is_critic else ""
        partial = {prefix + name for name in sharding.partial_over_tp}
        if is_critic and plan.sequence_parallel and plan.dims.tp > 1:
            partial |= {"head.weight", "head.bias"}  # each rank maps its piece of the states
        self.partial_over_tp = frozenset(partial)
        self.copies = frozenset(prefix + name for name in copies_of(part))
        self._shares_embedding = is_tied(decoder) and not is_critic and self._layout.last_rank > 0
        self._meshes = meshes
        self._dtype = score_dtype(getattr(torch, config.dtype))
        self._hidden_dtype: torch.dtype = getattr(torch, config.dtype)
        self._scorer = Scorer(self.model, part, sharding, meshes, chunk=config.logprob_chunk_size)

    @property
    def _device(self) -> torch.device:
        """Not that of the model, which may have no memory when it is split, and be in host memory between passes."""
        return self._meshes.device

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
        self._sum_embedding()

    def all_totals(self, totals: Totals) -> Totals:
        """Totals of all ranks, which only the last piece's have seen."""
        found: list[Any] = [totals.over(self._meshes.group("data"))]
        dist.broadcast_object_list(found, group=self._meshes.group("pp"), group_src=self._layout.last_rank)
        return found[0]

    def share(self, result: Tensor) -> None:
        """Hand what the last piece's ranks have to all others."""
        dist.broadcast(result, group=self._meshes.group("pp"), group_src=self._layout.last_rank)

    def _run(
        self,
        batch: PaddedBatch,
        micro: list[list[int]],
        scoring: Scoring,
        finish: Callable[[list[int], Prepared, Scored], Tensor],
        *,
        backward: bool,
    ) -> None:
        micro = micro + [[] for _ in range(-len(micro) % self._layout.num_ranks)]
        layouts = [
            self._scorer.lay_out(select(batch, rows) if rows else None, self._device, only_masked=scoring.only_masked)
            for rows in micro
        ]
        length = max(layout.tokens.tokens.shape[0] for layout in layouts)
        prepared = [self._scorer.prepare(layout, length=length) for layout in layouts]
        pieces = self._layout.pieces_of(self._rank)
        schedule = make_schedule(
            self._layout,
            [self._stage(piece, prepared) for piece in pieces],
            len(micro),
            lambda states, number: self._finish(states, int(number), micro, prepared, scoring, finish),
            backward=backward,
        )
        numbers = torch.arange(len(micro), device=self._device)
        inputs = (numbers,) if 0 in pieces else ()
        target = numbers if self._layout.num_pieces - 1 in pieces else None
        run = schedule.step if backward else schedule.eval
        apart = backward and self._layout.kind.splits_backward
        with gathered_for_a_step(self.model) if apart else nullcontext():
            run(*inputs, target=target, number=numbers, return_outputs=False)
        give_back(self.model)

    def _stage(self, piece: int, prepared: list[Prepared]) -> PieceStage:
        states = torch.empty(
            self._scorer.num_states(prepared[0]),
            self._part.args.hidden_size,
            dtype=self._hidden_dtype,
            device="meta",
            requires_grad=True,
        )
        number = torch.empty(1, dtype=torch.int64, device="meta")
        critic: Any = self.model
        return PieceStage(
            PieceOfBatch(self._part, prepared, piece=piece, head=critic.head if self._is_critic else None),
            piece,
            self._layout.num_pieces,
            self._device,
            input_args=states if piece else number,
            output_args=states,
            group=self._meshes.group("pp"),
        )

    def _finish(
        self,
        states: Tensor,
        number: int,
        micro: list[list[int]],
        prepared: list[Prepared],
        scoring: Scoring,
        finish: Callable[[list[int], Prepared, Scored], Tensor],
    ) -> Tensor:
        if self._is_critic:
            critic: Any = self.model
            # A view: torch detaches the output of a stage in place, which the head still needs.
            scored = self._scorer.values(prepared[number], critic.values(states.view_as(states)))
        else:
            scored = self._scorer.score(
                prepared[number], states, temperature=scoring.temperature, with_distribution=scoring.with_distribution
            )
        return finish(micro[number], prepared[number], scored)

    def _sum_embedding(self) -> None:
        """Add up the gradients of the embedding and of the head that is tied to it: the same sum on both ranks."""
        if not self._shares_embedding or self._rank not in (0, self._layout.last_rank):
            return
        weight = self._part.embed_tokens._parameters["weight"]
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        own = local_data(weight.grad)
        other = torch.empty_like(own)
        group = self._meshes.group("pp")
        peer = self._layout.last_rank - self._rank
        exchanged = [
            dist.P2POp(dist.isend, own.contiguous(), group=group, group_peer=peer),
            dist.P2POp(dist.irecv, other, group=group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(exchanged):
            work.wait()
        own += other


def _part_of_critic(whole: Any, part: nn.Module, plan: ParallelPlan, meshes: Meshes) -> nn.Module:
    """A ValueModel around this rank's part; with the head where the last piece is."""
    holder: Any = part
    critic: Any = copy.copy(whole)
    head = whole.head if holder.last_piece in holder.layers_of else None
    critic._modules = {"backbone": part, "head": head}
    if head is not None and plan.shards_data:
        shard_rest(head, plan, meshes)
    model: nn.Module = critic
    return model


def _check_options(layout: PipelineLayout, config: TrainEngineConfig, archon: ArchonConfig) -> None:
    if not layout.kind.splits_backward:
        return
    for name, is_on in (("gradient_checkpointing", config.gradient_checkpointing), ("compile", archon.compile)):
        if is_on:
            raise ConfigError(
                f"pp_schedule {layout.schedule} computes gradients of hidden states and of parameters apart, which "
                f"{name} does not allow; switch it off, or use Interleaved1F1B"
            )
