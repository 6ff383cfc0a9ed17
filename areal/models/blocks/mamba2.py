"""Mamba-2 as a mixer (arXiv 2405.21060): Bamba, Granite 4, Nemotron-H, Falcon-H1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

import torch
from torch import nn
from torch.nn import functional

from areal.api import DecayedSum, ModelError
from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import find_activation
from areal.models.blocks.norms import GatedNorm
from areal.models.blocks.short_convolution import DepthwiseConvolution, convolve_together, with_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import BaseModelArgs, StateBackend
    from areal.models.blocks.rotary import Rotation

_NUM_PARTS: Final = 5
"""Projections of what a layer reads: gate, inputs, keys, queries, steps."""


class Mamba2(nn.Module):
    """Takes the place of a block's `self_attn`. Matrices are stored one by one, whatever a checkpoint stacks.

    Inputs x [heads, head_dim] and the vectors B and C [groups, state_size] are projected, convolved and activated; a
    step dt = clamp(softplus(step + dt_bias)) per head says how far the state moves: h <- exp(-dt exp(A_log)) h + dt x
    B^T, y = C h + D x. What comes out is gated, normed by group and projected.

    Parameters: z_proj (the gate), x_proj, b_proj, c_proj, dt_proj, x_conv, b_conv, c_conv, A_log, dt_bias and D
    [heads], norm [heads * head_dim] if there is one, o_proj.
    """

    place: ClassVar[str] = "mamba"
    """What tables of names on disk call it, since attention of other layers is stored elsewhere."""

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        num_heads: int,
        head_dim: int,
        num_groups: int,
        state_size: int,
        kernel_size: int,
        norm_eps: float | None,
        norm_first: bool = False,
        norm_groups: int | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        conv_bias: bool = True,
        conv_activation: str = "silu",
        step_limits: tuple[float, float] = (0.0, math.inf),
        multipliers: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0),
        chunk: int = 64,
    ) -> None:
        """Make the mixer; groups serve consecutive heads.

        norm_eps: of the gated norm, None without one; norm_first: before the gate; norm_groups: of the norm, num_groups
        if None. bias: of the projections; output_bias: of o_proj, None for the same; conv_bias: of the filters.
        step_limits: dt is clamped to them. multipliers: of what z_proj, x_proj, b_proj, c_proj and dt_proj give. chunk:
        see `DecayedSum`. Raises ModelError where heads do not divide, or there are not five multipliers.
        """
        super().__init__()
        if num_heads % num_groups:
            raise ModelError(
                f"{num_groups} groups cannot serve {num_heads} heads in equal shares; expected a multiple of the groups"
            )
        if len(multipliers) != _NUM_PARTS:
            raise ModelError(f"{len(multipliers)} multipliers, expected one for each of {_NUM_PARTS} projections")
        self.multipliers = tuple(multipliers)
        self.layer, self.head_dim, self.state_size, self.chunk = layer, head_dim, state_size, chunk
        self.num_heads, self.num_groups = num_heads, num_groups
        self.step_limits = step_limits
        hidden, inner, vectors = args.hidden_size, num_heads * head_dim, num_groups * state_size
        self.z_proj = Linear(hidden, inner, bias=bias)
        self.x_proj = Linear(hidden, inner, bias=bias)
        self.b_proj = Linear(hidden, vectors, bias=bias)
        self.c_proj = Linear(hidden, vectors, bias=bias)
        self.dt_proj = Linear(hidden, num_heads, bias=bias)
        self.x_conv = DepthwiseConvolution(inner, kernel_size, bias=conv_bias)
        self.b_conv = DepthwiseConvolution(vectors, kernel_size, bias=conv_bias)
        self.c_conv = DepthwiseConvolution(vectors, kernel_size, bias=conv_bias)
        self.conv_activation = find_activation(conv_activation)
        self.A_log = nn.Parameter(torch.empty(num_heads))
        self.dt_bias = nn.Parameter(torch.empty(num_heads))
        self.D = nn.Parameter(torch.empty(num_heads))
        groups = num_groups if norm_groups is None else norm_groups
        self.norm = None if norm_eps is None else GatedNorm(inner, norm_eps, norm_first=norm_first, groups=groups)
        self.o_proj = Linear(inner, hidden, bias=bias if output_bias is None else output_bias)

    def forward(self, hidden: Tensor, rotation: Rotation | None, backend: StateBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: not used; states know the order of their inputs."""
        states = with_states(backend, self.layer)
        projected = self._scaled(hidden, 1), self._scaled(hidden, 2), self._scaled(hidden, 3)
        convolved = convolve_together(self.layer, projected, (self.x_conv, self.b_conv, self.c_conv), states)
        inputs, key, query = (self.conv_activation(part) for part in convolved)
        step = self._scaled(hidden, 4)
        wide = torch.promote_types(step.dtype, torch.float32)
        step = functional.softplus(step.to(wide) + self.dt_bias.to(wide)).clamp(*self.step_limits)
        inputs = inputs.to(wide).unflatten(-1, (-1, self.head_dim))
        summed = states.scan(
            self.layer,
            DecayedSum(
                query=query.unflatten(-1, (-1, self.state_size)),
                key=key.unflatten(-1, (-1, self.state_size)),
                value=inputs * step[..., None],
                log_decay=-step * self.A_log.to(wide).exp(),
                chunk=self.chunk,
            ),
        )
        mixed = (summed + self.D.to(wide)[:, None] * inputs).flatten(1)
        gate = self._scaled(hidden, 0)
        if self.norm is None:
            return self.o_proj((mixed * functional.silu(gate.to(wide))).to(gate.dtype))
        return self.o_proj(self.norm(mixed, gate))

    def _scaled(self, hidden: Tensor, part: int) -> Tensor:
        """Return what the projection of that number gives, times its multiplier."""
        projected: Tensor = (self.z_proj, self.x_proj, self.b_proj, self.c_proj, self.dt_proj)[part](hidden)
        return projected if self.multipliers[part] == 1.0 else projected * self.multipliers[part]
