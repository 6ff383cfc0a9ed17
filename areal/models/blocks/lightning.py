"""Lightning attention as a mixer (arXiv 2401.04658): linear attention whose heads forget at fixed rates, MiniMax-01."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import torch
from torch import nn

from areal.api import DecayedSum, ModelError
from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import find_activation
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.short_convolution import with_states

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import BaseModelArgs, StateBackend
    from areal.models.blocks.rotary import Rotation

TABLES: Final = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Buffers that checkpoints hold, though they follow from the sizes."""
_NEAR: Final = 0.02
"""Largest difference of a stored table, for those in bfloat16; numbers are at most 1."""


class LightningAttention(nn.Module):
    """Takes the place of a block's `self_attn`.

    Queries, keys and values are projected and activated; S <- exp(-slope) S + key value^T, out = S^T query, with
    neither scale nor normaliser. What comes out is normed over all heads together, gated by a sigmoid and projected.

    Parameters: q_proj, k_proj, v_proj, gate_proj, norm, o_proj. Buffers: TABLES, as a checkpoint holds them, which are
    compared with what follows from the sizes, and written back; slopes are computed.
    """

    place: ClassVar[str] = "lightning"
    """What tables of names on disk call it, since attention of other layers is stored elsewhere."""

    def __init__(
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        num_heads: int,
        head_dim: int,
        num_layers: int,
        table_size: int,
        norm_eps: float,
        activation: str = "silu",
        chunk: int = 64,
    ) -> None:
        """num_layers: of the whole model, which slopes depend on; table_size: tokens in the stored tables, which
        changes nothing else. chunk: see `DecayedSum`."""
        super().__init__()
        self.layer, self.num_heads, self.head_dim, self.chunk = layer, num_heads, head_dim, chunk
        self.num_layers, self.table_size, self.first_head = num_layers, table_size, 0
        hidden, inner = args.hidden_size, num_heads * head_dim
        self.q_proj = Linear(hidden, inner, bias=False)
        self.k_proj = Linear(hidden, inner, bias=False)
        self.v_proj = Linear(hidden, inner, bias=False)
        self.gate_proj = Linear(hidden, inner, bias=False)
        self.activation = find_activation(activation)
        self.norm = RMSNorm(inner, norm_eps)
        self.o_proj = Linear(inner, hidden, bias=False)
        shapes = ((num_heads, 1, 1), (num_heads, table_size, 1), (num_heads, table_size, 1))
        for name, shape in zip(TABLES, (*shapes, (1, num_heads, table_size, table_size)), strict=True):
            self.register_buffer(name, torch.empty(shape))
        self._is_compared = False

    def forward(self, hidden: Tensor, rotation: Rotation | None, backend: StateBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: not used; states know the order of their inputs.

        Raises ModelError where the tables that were loaded are not those of these sizes.
        """
        if not self._is_compared:
            self._compare()
        parts = (self.activation(project(hidden)) for project in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        # Rounded as a checkpoint's are.
        slopes = slope_rates(self.num_heads, self.layer, self.num_layers).float().to(hidden.device)
        # Under tensor parallelism a rank holds only some of the heads.
        slopes = slopes[self.first_head :][: value.shape[1]].to(torch.promote_types(value.dtype, torch.float32))
        summed = with_states(backend, self.layer).scan(
            self.layer,
            DecayedSum(query=query, key=key, value=value, log_decay=-slopes.expand(len(hidden), -1), chunk=self.chunk),
        )
        return self.o_proj(self.norm(summed.flatten(1).to(hidden.dtype)) * self.gate_proj(hidden).sigmoid())

    def tables(self) -> dict[str, Tensor]:
        """Return what the buffers hold, in float32."""
        return decay_tables(slope_rates(self.num_heads, self.layer, self.num_layers), self.table_size)

    def _compare(self) -> None:
        """Raise ModelError where a buffer differs from its table."""
        for name, table in self.tables().items():
            stored = self.get_buffer(name)
            # NaN is a difference, too.
            if not bool(((stored.cpu().double() - table.double()).abs() <= _NEAR).all()):
                raise ModelError(
                    f"the checkpoint's {name} is not that of {self.num_heads} heads in layer {self.layer} of "
                    f"{self.num_layers}; expected the table that follows from these sizes"
                )
        self._is_compared = True


def slope_rates(num_heads: int, layer: int, num_layers: int) -> Tensor:
    """Return by how much the logarithms of each head's state fall per token, [num_heads] in float64: those of ALiBi
    (arXiv 2108.12409), less and less in later layers."""
    factor = 1 - layer / (num_layers - 1 + 1e-5) + 1e-5
    numbers = torch.arange(1, num_heads + 1, dtype=torch.float64)
    return 2.0 ** (-8.0 * numbers / num_heads) * factor


def decay_tables(slopes: Tensor, size: int) -> dict[str, Tensor]:
    """Return the tables of so many tokens, in float32: of what a query sees of the state before, of what a key leaves
    for the state after, and between two tokens."""
    rate, numbers = slopes[:, None, None], torch.arange(1, size + 1, dtype=torch.float64)
    between = numbers[:, None] - numbers
    found = (
        rate,
        (-rate * numbers[:, None]).exp(),
        (-rate * (size - numbers[:, None])).exp(),
        torch.where(between >= 0, -rate * between, float("-inf")).exp()[None],
    )
    return {name: table.float() for name, table in zip(TABLES, found, strict=True)}
