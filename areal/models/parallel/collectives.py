"""Communication that gradients flow through: what is sent forward, and the exact adjoint that is sent backward.

Two kinds of tensors meet here. A *replicated* one has the same value on all ranks of a group, and so has its gradient.
A *partial* one is a term of a sum over the ranks. Every function says which it takes and gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup


# torch 2.13 renames these; the older names still work and warn.
_gather_into: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_into: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def enter(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return a replicated tensor, from here on used by each rank for a part: its gradients are summed over the
    ranks."""
    entered: Tensor = _Enter.apply(tensor, group)
    return entered


def leave(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Turn partial into replicated: the sum over the ranks. The gradient is replicated, so every rank's own is
    right."""
    left: Tensor = _Leave.apply(tensor, group)
    return left


def enter_gathered(tensor: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """Return all ranks' pieces, end to end along `dim`, each rank using the whole for a part; gradients are summed, and
    each rank gets those of its piece."""
    entered: Tensor = _EnterGathered.apply(tensor, group, dim)
    return entered


def leave_scattered(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Turn partial into pieces: the sum over the ranks, of which each keeps its equal piece of dimension 0."""
    left: Tensor = _LeaveScattered.apply(tensor, group)
    return left


def take_piece(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Turn replicated into pieces: each rank keeps its equal piece of dimension 0; the gradient is that of the
    whole."""
    piece: Tensor = _TakePiece.apply(tensor, group)
    return piece


def join_pieces(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return the pieces to replicated: all ranks' pieces end to end along dimension 0; each rank keeps its piece's
    gradient."""
    joined: Tensor = _JoinPieces.apply(tensor, group)
    return joined


def exchange(
    tensor: Tensor, group: ProcessGroup, send: Sequence[int] | None = None, receive: Sequence[int] | None = None
) -> Tensor:
    """Return the rows sent to each rank, in its order; returns the rows that came, in the order of their senders.

    send, receive: numbers of rows for and from each rank; None for equal parts.
    """
    exchanged: Tensor = _Exchange.apply(tensor, group, send, receive)
    return exchanged


def _all_reduce(tensor: Tensor, group: ProcessGroup) -> Tensor:
    summed = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=group)
    return summed


def _all_gather(tensor: Tensor, group: ProcessGroup) -> Tensor:
    gathered = tensor.new_empty(tensor.shape[0] * group.size(), *tensor.shape[1:])
    _gather_into(gathered, tensor.contiguous(), group=group)
    return gathered


def _reduce_scatter(tensor: Tensor, group: ProcessGroup) -> Tensor:
    piece = tensor.new_empty(tensor.shape[0] // group.size(), *tensor.shape[1:])
    _reduce_into(piece, tensor.contiguous(), group=group)
    return piece


def _all_to_all(
    tensor: Tensor, group: ProcessGroup, send: Sequence[int] | None, receive: Sequence[int] | None
) -> Tensor:
    rows = tensor.shape[0] if receive is None else sum(receive)
    received = tensor.new_empty(rows, *tensor.shape[1:])
    sizes = None if receive is None else list(receive)
    dist.all_to_all_single(received, tensor.contiguous(), sizes, None if send is None else list(send), group=group)
    return received


def _own_piece(tensor: Tensor, group: ProcessGroup) -> Tensor:
    return tensor.chunk(group.size())[group.rank()].contiguous()


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradient, ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        return _all_reduce(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _EnterGathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return _all_gather(tensor.movedim(dim, 0), group).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _reduce_scatter(gradient.movedim(ctx.dim, 0), ctx.group).movedim(0, ctx.dim), None, None


class _LeaveScattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradient, ctx.group), None


class _TakePiece(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _own_piece(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradient, ctx.group), None


class _JoinPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_piece(gradient, ctx.group), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, group: ProcessGroup, send: Sequence[int] | None, receive: Sequence[int] | None
    ) -> Tensor:
        ctx.group, ctx.send, ctx.receive = group, send, receive
        return _all_to_all(tensor, group, send, receive)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradient, ctx.group, ctx.receive, ctx.send), None, None, None
