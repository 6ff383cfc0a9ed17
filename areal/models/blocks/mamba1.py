"""Mamba-1 as a mixer (arXiv 2312.00752): Mamba, Falcon Mamba, Jamba."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from torch.nn import functional

from areal.api import ModelError, SelectiveScan
from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import find_activation
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.short_convolution import DepthwiseConvolution, with_states

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import BaseModelArgs, StateBackend
    from areal.models.blocks.rotary import Rotation


class Mamba1(nn.Module):
    """Takes the place of a block's `self_attn`. Matrices are stored one by one, whatever a checkpoint stacks.

    Inputs x are projected, convolved and activated. All else is made of them: the vectors B and C [state_size], and, by
    a product of two matrices, a step per channel, dt = softplus(dt + dt_bias). h <- exp(-dt exp(A_log)) h + dt x B,
    y = C h + D x, for each channel by itself. What comes out is gated and projected.

    Parameters: z_proj (the gate), x_proj, conv, step_proj, b_proj, c_proj, dt_proj, dt_bias and D [inner_size], A_log
    [inner_size, state_size], o_proj; step_norm, b_norm and c_norm with weights, if asked for.
    """

    place: ClassVar[str] = "mamba1"
    """What tables of names on disk call it, since attention of other layers is stored elsewhere."""

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        inner_size: int,
        state_size: int,
        step_rank: int,
        kernel_size: int,
        norm_eps: float | None = None,
        norm_weights: bool = False,
        bias: bool = False,
        conv_bias: bool = True,
        conv_activation: str = "silu",
        chunk: int = 64,
    ) -> None:
        """Make the mixer, with `inner_size` channels.

        step_rank: inner size of what steps are made by. norm_eps: of RMS norms of B, C and what steps are made of, None
        without them; norm_weights: whether they scale. bias: of the first projections and the last one; conv_bias: of
        the filters. chunk: see `SelectiveScan`. Raises ModelError for weights of norms that are not there.
        """
        super().__init__()
        if norm_weights and norm_eps is None:
            raise ModelError("norm_weights of norms without an epsilon; expected norm_eps, or no weights")
        self.layer, self.chunk = layer, chunk
        hidden = args.hidden_size
        self.z_proj = Linear(hidden, inner_size, bias=bias)
        self.x_proj = Linear(hidden, inner_size, bias=bias)
        self.conv = DepthwiseConvolution(inner_size, kernel_size, bias=conv_bias)
        self.conv_activation = find_activation(conv_activation)
        self.step_proj = Linear(inner_size, step_rank, bias=False)
        self.b_proj = Linear(inner_size, state_size, bias=False)
        self.c_proj = Linear(inner_size, state_size, bias=False)
        sizes = (step_rank, state_size, state_size)
        self.step_norm, self.b_norm, self.c_norm = (
            None if norm_eps is None else RMSNorm(size, norm_eps, weight=norm_weights) for size in sizes
        )
        self.dt_proj = Linear(step_rank, inner_size, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(inner_size))
        self.A_log = nn.Parameter(torch.empty(inner_size, state_size))
        self.D = nn.Parameter(torch.empty(inner_size))
        self.o_proj = Linear(inner_size, hidden, bias=bias)

    def forward(self, hidden: Tensor, rotation: Rotation | None, backend: StateBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: not used; states know the order of their inputs."""
        states = with_states(backend, self.layer)
        inputs = self.conv_activation(self.conv(self.layer, self.x_proj(hidden), states))
        step, key, query = self.step_proj(inputs), self.b_proj(inputs), self.c_proj(inputs)
        if self.step_norm is not None and self.b_norm is not None and self.c_norm is not None:
            step, key, query = self.step_norm(step), self.b_norm(key), self.c_norm(query)
        step = self.dt_proj(step)
        wide = torch.promote_types(step.dtype, torch.float32)
        inputs = inputs.to(wide)
        scanned = states.scan(
            self.layer,
            SelectiveScan(
                query=query[:, None],
                key=key[:, None],
                value=inputs,
                step=functional.softplus(step.to(wide) + self.dt_bias.to(wide)),
                rates=-self.A_log.to(wide).exp(),
                chunk=self.chunk,
            ),
        )
        gate = self.z_proj(hidden)
        mixed = (scanned + self.D.to(wide) * inputs) * functional.silu(gate.to(wide))
        return self.o_proj(mixed.to(gate.dtype))
