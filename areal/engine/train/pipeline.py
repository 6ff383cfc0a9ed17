"""Runs micro-batches over a model that is cut into pieces, in the orders that `torch.distributed.pipelining` knows. How
a micro-batch is scored is `areal.engine.train.passes`'s, as without a pipeline.

All ranks of a pipeline have the same rows, so only hidden states are sent; micro-batches are padded to one length, and
blank ones are added until the pipeline can be filled.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from areal.api import ConfigError
from areal.engine.train.divided import to_device
from areal.engine.train.passes import Scorer, Totals, loss_of, partial_gradients, score_dtype_of, split_decoder
from areal.engine.train.ranks import local_data
from areal.models.blocks.routing import RouteReplay
from areal.models.parallel.data import give_back, shard_rest
from areal.models.parallel.pipeline import copies_of, is_tied, take_part
from areal.models.parallel.schedules import pipeline_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from areal.api import LossFunction
    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.passes import BatchTotals, Keep, Prepared, Scored, Scoring
    from areal.engine.train.ranks import Ranks
    from areal.models.parallel.plan import ParallelPlan
    from areal.models.parallel.schedules import PipelineLayout

_BACKWARD_ACTIONS: Final = frozenset({"I", "W", "B", "SEND_B", "RECV_B", "REDUCE_GRAD"})


class PipelinePasses:
    """Owns this rank's pieces of the model; takes the place of `SequentialPasses`."""

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        ranks: Ranks,
        config: TrainEngineConfig,
        archon: ArchonConfig,
        *,
        is_critic: bool,
    ) -> None:
        """Keep and shard the pieces of `model`. Raises ModelError when it cannot be cut, ConfigError when the schedule
        does not go with another option."""
        self._rank, self._is_critic, self._ranks = ranks.place("pp"), is_critic, ranks
        self._layout = pipeline_layout(archon.pp_schedule, ranks.count("pp"), archon.pp_pieces)
        for name, is_on in (("gradient_checkpointing", config.gradient_checkpointing), ("compile", config.compile)):
            if is_on and self._layout.kind.splits_backward:
                raise ConfigError(
                    f"pp_schedule {self._layout.schedule} computes gradients of hidden states and of parameters apart, "
                    f"which {name} does not allow; switch it off, or use Interleaved1F1B"
                )
        whole: Any = model
        decoder = whole.backbone if is_critic else whole
        part: Any = take_part(
            decoder, self._layout.pieces_of(self._rank), self._layout.num_pieces, projects=not is_critic
        )
        # Asked before FSDP2 replaces the parameters of this part, and of this part only.
        self._shares_embedding = is_tied(decoder) and not is_critic and self._layout.last_rank > 0
        sharding = split_decoder(part, plan)
        if isinstance(part, FSDPModule):
            # Other micro-batches' backward passes still need what the head was gathered into.
            part.set_reshard_after_backward(False, recurse=False)
        self._part = part
        self.model: nn.Module = _part_of_critic(whole, part, plan) if is_critic else part
        self.partial_over_tp = partial_gradients(sharding, is_critic=is_critic)
        self.copies = frozenset(f"backbone.{name}" if is_critic else name for name in copies_of(part))
        self._hidden_dtype: torch.dtype = getattr(torch, config.dtype)
        self._scorer = Scorer(
            self.model,
            part,
            sharding,
            ranks,
            chunk=config.logprob_chunk_size,
            is_critic=is_critic,
            replays=config.router_replay,
        )

    def forward(self, batch: DividedBatch, micro: list[list[int]], scoring: Scoring, keep: Keep) -> None:
        """Scores of this data rank's micro-batches, on the last piece's ranks."""

        def score(rows: list[int], prepared: Prepared, scored: Scored) -> Tensor:
            if rows and prepared.layout.predicted is not None:
                keep(rows, prepared.layout.predicted, scored)
            return torch.zeros((), device=self._ranks.device)

        self._run(batch, micro, scoring, score, backward=False)

    def backward(
        self, batch: DividedBatch, micro: list[list[int]], loss_fn: LossFunction, scoring: Scoring, totals: Totals
    ) -> None:
        """Gradients of this data rank's micro-batches; totals are filled on the last piece's ranks."""
        dtype = score_dtype_of(self.model)

        def loss(rows: list[int], prepared: Prepared, scored: Scored) -> Tensor:
            terms: list[Tensor] = []
            if scored.anchor is not None:
                # Zero, with a gradient of zeros, whatever the anchor is.
                terms.append(scored.anchor.masked_fill(torch.ones_like(scored.anchor, dtype=torch.bool), 0).sum())
            if rows:
                part = to_device(batch.select(rows), self._ranks.device)
                output = loss_of(part, prepared.layout, scored, loss_fn, scoring, dtype)
                totals.add(output, prepared.layout)
                terms.append(output.loss)
            return torch.stack([term.to(dtype) for term in terms]).sum()

        self._run(batch, micro, scoring, loss, backward=True)
        self._sum_embedding()

    def all_totals(self, totals: Totals, gradient_norm: Tensor) -> BatchTotals:
        """Totals of all ranks, which only the last piece's have seen."""
        return self._ranks.sent(totals.over(self._ranks, gradient_norm), "pp", self._layout.last_rank)

    def share(self, result: Tensor) -> None:
        """Hand what the last piece's ranks have to all others."""
        dist.broadcast(result, group=self._ranks.group("pp"), group_src=self._layout.last_rank)

    def _run(
        self,
        batch: DividedBatch,
        micro: list[list[int]],
        scoring: Scoring,
        finish: Callable[[list[int], Prepared, Scored], Tensor],
        *,
        backward: bool,
    ) -> None:
        micro = micro + [[] for _ in range(-len(micro) % self._layout.num_ranks)]
        layouts = [
            self._scorer.lay_out(batch.select(rows) if rows else None, only_masked=scoring.only_masked)
            for rows in micro
        ]
        length = max(layout.tokens.tokens.shape[0] for layout in layouts)
        prepared = [self._scorer.prepare(layout, length=length) for layout in layouts]
        pieces = self._layout.pieces_of(self._rank)
        schedule = _make_schedule(
            self._layout,
            [self._stage(piece, prepared) for piece in pieces],
            len(micro),
            lambda states, number: self._finish(states, int(number), micro, prepared, scoring, finish),
            backward=backward,
        )
        numbers = torch.arange(len(micro), device=self._ranks.device)
        inputs = (numbers,) if 0 in pieces else ()
        target = numbers if self._layout.num_pieces - 1 in pieces else None
        run = schedule.step if backward else schedule.eval
        apart = backward and self._layout.kind.splits_backward
        with _gathered_for_a_step(self.model) if apart else nullcontext():
            run(*inputs, target=target, number=numbers, return_outputs=False)
        give_back(self.model)

    def _stage(self, piece: int, prepared: list[Prepared]) -> _PieceStage:
        states = torch.empty(
            self._scorer.num_states(prepared[0]),
            self._part.args.hidden_size,
            dtype=self._hidden_dtype,
            device="meta",
            requires_grad=True,
        )
        number = torch.empty(1, dtype=torch.int64, device="meta")
        critic: Any = self.model
        return _PieceStage(
            _PieceOfBatch(self._part, prepared, piece=piece, head=critic.head if self._is_critic else None),
            piece,
            self._layout.num_pieces,
            self._ranks.device,
            input_args=states if piece else number,
            output_args=states,
            group=self._ranks.group("pp"),
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
        critic: Any = self.model
        # A view: torch detaches the output of a stage in place, which the head still needs.
        found = critic.values(states.view_as(states)) if self._is_critic else states
        scored = self._scorer.score(prepared[number], found, scoring)
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
        group = self._ranks.group("pp")
        peer = self._layout.last_rank - self._rank
        exchanged = [
            dist.P2POp(dist.isend, own.contiguous(), group=group, group_peer=peer),
            dist.P2POp(dist.irecv, other, group=group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(exchanged):
            work.wait()
        own += other


def _part_of_critic(whole: Any, part: nn.Module, plan: ParallelPlan) -> nn.Module:
    """Wrap this rank's part in a ValueModel, with the head where the last piece is."""
    holder: Any = part
    critic: Any = copy.copy(whole)
    head = whole.head if holder.last_piece in holder.layers_of else None
    critic._modules = {"backbone": part, "head": head}
    if head is not None and plan.shards_data:
        assert plan.meshes is not None, "pieces are those of several ranks"
        shard_rest(head, plan, plan.meshes)
    model: nn.Module = critic
    return model


class _PieceOfBatch(nn.Module):
    """What the schedule calls: a micro-batch is known by its number, on every rank of the pipeline."""

    def __init__(self, part: nn.Module, prepared: list[Prepared], *, piece: int, head: nn.Module | None = None) -> None:
        """part: the decoder that holds the piece, among others maybe; head: of a critic, which its losses use."""
        super().__init__()
        self.part = part
        self.head = head
        self._prepared = prepared
        self._piece = piece

    def forward(self, received: Tensor, *, number: Tensor) -> Tensor:
        """received: hidden states of the piece before; of the first piece, the number once more."""
        prepared = self._prepared[int(number)]
        part: Any = self.part
        images = prepared.layout.tokens.images
        options: dict[str, Any] = {"images": images} if images else {}
        states: Tensor = part.hidden(
            prepared.tokens,
            prepared.positions,
            prepared.layout.tokens.cu_seqlens,
            prepared.layout.tokens.max_seqlen,
            attention=prepared.attention,
            piece=self._piece,
            received=received if self._piece else None,
            routes=None if prepared.routes is None else RouteReplay(prepared.routes),
            **options,
        )
        return states


class _PieceStage(PipelineStage):
    """A stage that adds up gradients of parameters as FSDP2 does, also where the two are computed apart."""

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """See `PipelineStage`."""
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)
        for parameter in self.submod.parameters():
            gradient = parameter.grad
            # Of a filter it may be a transposed one, which fused optimizers would read in the order of the parameter.
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
        for group in _parameter_groups(self.submod):
            for sharded in group.fsdp_params:
                # In float32, where parameters were rounded to less.
                sharded.accumulate_unsharded_grad_if_needed()
                sharded.to_accumulated_grad_if_needed()


def _make_schedule(
    layout: PipelineLayout,
    stages: list[_PieceStage],
    num_micro_batches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    backward: bool,
) -> Any:
    """Make the schedule of this rank's stages."""
    schedule: Any = get_schedule_class(layout.schedule)(
        stages[0] if layout.kind.pieces == 1 else stages,
        n_microbatches=num_micro_batches,
        loss_fn=loss,
        scale_grads=False,
    )
    if not backward and layout.kind.pieces != 1:
        # Torch walks through the backward actions of an evaluation too, and stumbles where a rank hands to itself.
        schedule.pipeline_order_with_comms = {
            rank: [action for action in actions if action.computation_type.value not in _BACKWARD_ACTIONS]
            for rank, actions in schedule.pipeline_order_with_comms.items()
        }
    return schedule


@contextmanager
def _gathered_for_a_step(model: nn.Module) -> Iterator[None]:
    """Parameters stay gathered, and gradients add up on each rank until the end, where they are summed over the ranks.

    FSDP2 would do both after each gradient of hidden states, before those of the parameters are there. Nothing
    happens to a model without FSDP2.
    """
    units: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    before = {
        unit: (group._reshard_after_forward, group.reshard_after_backward)
        for unit in units
        for group in _own_groups(unit)
    }
    for unit in units:
        # Finds out which units are the outermost, before any of them is used.
        unit._get_fsdp_state()._lazy_init()
    for unit in units:
        unit.unshard()
        _set(unit, give_back=(False, False), sync=False)
    yield
    for unit, policy in before.items():
        _set(unit, give_back=policy, sync=True)
    for unit in units:
        for group in _own_groups(unit):
            group.post_backward()
    for unit in units:
        state = unit._get_fsdp_state()
        if state._is_root:
            # No backward pass ends here, which is when FSDP2 waits for what it sent.
            state._root_post_backward_final_callback()


def _set(unit: Any, *, give_back: tuple[bool, bool], sync: bool) -> None:
    """give_back: after forward and after backward passes; sync: gradients are summed over ranks after the latter."""
    unit.set_reshard_after_forward(give_back[0], recurse=False)
    unit.set_reshard_after_backward(give_back[1], recurse=False)
    unit.set_requires_gradient_sync(sync, recurse=False)
    unit.set_is_last_backward(sync)


def _parameter_groups(module: nn.Module) -> Iterator[Any]:
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            yield from _own_groups(unit)


def _own_groups(unit: Any) -> list[Any]:
    return list(unit._get_fsdp_state()._fsdp_param_groups)
