"""What `torch.distributed.pipelining` runs: a piece of the model as a stage, orders of passes made of stages, and
parameters that stay gathered while gradients of hidden states and of parameters are computed apart.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from areal.engine.archon.schedules import PipelineLayout
    from areal.engine.archon.scoring import Prepared

_BACKWARD_ACTIONS: Final = frozenset({"I", "W", "B", "SEND_B", "RECV_B", "REDUCE_GRAD"})


class PieceOfBatch(nn.Module):
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
        states: Tensor = part.hidden(
            prepared.tokens,
            prepared.positions,
            prepared.layout.tokens.cu_seqlens,
            prepared.layout.tokens.max_seqlen,
            attention=prepared.attention,
            piece=self._piece,
            received=received if self._piece else None,
        )
        return states


class PieceStage(PipelineStage):
    """A stage that adds up gradients of parameters as FSDP2 does, also where the two are computed apart."""

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """See `PipelineStage`."""
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)
        for group in _parameter_groups(self.submod):
            for parameter in group.fsdp_params:
                # In float32, where parameters were rounded to less.
                parameter.accumulate_unsharded_grad_if_needed()
                parameter.to_accumulated_grad_if_needed()


def make_schedule(
    layout: PipelineLayout,
    stages: list[PieceStage],
    num_micro_batches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    backward: bool,
) -> Any:
    """The order of passes of this rank's stages."""
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
def gathered_for_a_step(model: nn.Module) -> Iterator[None]:
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
    for unit, give_back in before.items():
        _set(unit, give_back=give_back, sync=True)
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
