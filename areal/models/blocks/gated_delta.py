"""Gated delta rule as a mixer: Qwen3-Next, Qwen3.5, OLMo Hybrid; with a decay per channel Kimi Linear and Ling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal

import torch
from torch import nn
from torch.nn import functional

from areal.api import DeltaRule, ModelError
from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import find_activation
from areal.models.blocks.norms import GatedNorm
from areal.models.blocks.short_convolution import DepthwiseConvolution, convolve_together, with_states

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import BaseModelArgs, StateBackend
    from areal.models.blocks.rotary import Rotation

_UNIT_EPS: Final = 1e-6
"""Added to the sum of squares of queries and keys; a constant of all implementations."""


class GatedDelta(nn.Module):
    """Takes the place of a block's `self_attn`. Matrices are stored one by one, whatever a checkpoint stacks.

    Queries, keys and values are projected, convolved and activated; queries and keys get length 1, and the delta rule
    (`areal.api.DeltaRule`) reads and writes with them. Its log decay is -exp(A_log) * softplus(decay + dt_bias), its
    rate sigmoid(rate). What it gives is normed per head, gated and projected.

    Parameters: q_proj, k_proj, v_proj, q_conv, k_conv, v_conv, decay_proj, rate_proj, gate_proj, A_log [value heads],
    dt_bias [value heads], or [value heads * key_dim] with a decay per channel, norm [value_dim], o_proj; decay_down and
    gate_down, where those projections are products of two matrices.
    """

    place: ClassVar[str] = "delta"
    """What tables of names on disk call it, since attention of other layers is stored elsewhere."""

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        num_key_heads: int,
        num_value_heads: int,
        key_dim: int,
        value_dim: int,
        kernel_size: int,
        norm_eps: float,
        conv_activation: str = "silu",
        max_rate: float = 1.0,
        by_channel: bool = False,
        decay_rank: int | None = None,
        decay_floor: float | None = None,
        gate_rank: int | None = None,
        gate: Literal["silu", "sigmoid"] = "silu",
        chunk: int = 64,
    ) -> None:
        """Key heads serve consecutive value heads. max_rate: factor on the rate, 2 for negative eigenvalues (OLMo).

        by_channel: a decay per channel of the key. decay_floor: the log decay is decay_floor * sigmoid(exp(A_log) *
        (decay + dt_bias)) instead (Ling). decay_rank, gate_rank: inner size of projections that are products of two
        matrices. chunk: see `DeltaRule`. Raises ModelError where heads do not divide.
        """
        super().__init__()
        if num_value_heads % num_key_heads:
            raise ModelError(
                f"{num_key_heads} key heads cannot serve {num_value_heads} value heads in equal shares; expected a "
                f"multiple of the key heads"
            )
        if decay_floor is not None and decay_floor >= 0:
            raise ModelError(f"the floor of log decays is {decay_floor}, expected a negative number")
        self.layer, self.key_dim, self.value_dim, self.chunk = layer, key_dim, value_dim, chunk
        self.num_key_heads, self.num_value_heads = num_key_heads, num_value_heads
        self.max_rate, self.by_channel, self.decay_floor = max_rate, by_channel, decay_floor
        hidden, keys, values = args.hidden_size, num_key_heads * key_dim, num_value_heads * value_dim
        decays = num_value_heads * (key_dim if by_channel else 1)
        self.q_proj = Linear(hidden, keys, bias=False)
        self.k_proj = Linear(hidden, keys, bias=False)
        self.v_proj = Linear(hidden, values, bias=False)
        self.q_conv = DepthwiseConvolution(keys, kernel_size, bias=False)
        self.k_conv = DepthwiseConvolution(keys, kernel_size, bias=False)
        self.v_conv = DepthwiseConvolution(values, kernel_size, bias=False)
        self.conv_activation = find_activation(conv_activation)
        self.decay_down = None if decay_rank is None else Linear(hidden, decay_rank, bias=False)
        self.decay_proj = Linear(decay_rank or hidden, decays, bias=False)
        self.A_log = nn.Parameter(torch.empty(num_value_heads))
        self.dt_bias = nn.Parameter(torch.empty(decays))
        self.rate_proj = Linear(hidden, num_value_heads, bias=False)
        self.gate_down = None if gate_rank is None else Linear(hidden, gate_rank, bias=False)
        self.gate_proj = Linear(gate_rank or hidden, values, bias=False)
        self.norm = GatedNorm(value_dim, norm_eps, norm_first=True, activation=gate)
        self.o_proj = Linear(values, hidden, bias=False)

    def forward(self, hidden: Tensor, rotation: Rotation | None, backend: StateBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: not used; states know the order of their inputs."""
        states = with_states(backend, self.layer)
        projected = self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)
        convolved = convolve_together(self.layer, projected, (self.q_conv, self.k_conv, self.v_conv), states)
        query, key, value = (self.conv_activation(part) for part in convolved)
        attended = states.scan(
            self.layer,
            DeltaRule(
                query=_of_length_one(query.unflatten(-1, (-1, self.key_dim))) * self.key_dim**-0.5,
                key=_of_length_one(key.unflatten(-1, (-1, self.key_dim))),
                value=value.unflatten(-1, (-1, self.value_dim)),
                log_decay=self._log_decay(hidden),
                rate=_wide(self.rate_proj(hidden)).sigmoid() * self.max_rate,
                chunk=self.chunk,
            ),
        )
        gates = self.gate_proj(hidden if self.gate_down is None else self.gate_down(hidden))
        return self.o_proj(self.norm(attended, gates.unflatten(-1, (-1, self.value_dim))).flatten(1))

    def _log_decay(self, hidden: Tensor) -> Tensor:
        """[T, value heads], or [T, value heads, key_dim]."""
        decay = _wide(self.decay_proj(hidden if self.decay_down is None else self.decay_down(hidden)))
        decay, scale = decay + self.dt_bias.to(decay.dtype), self.A_log.to(decay.dtype).exp()
        if self.by_channel:
            decay, scale = decay.unflatten(-1, (-1, self.key_dim)), scale[:, None]
        if self.decay_floor is not None:
            return self.decay_floor * (scale * decay).sigmoid()
        return -scale * functional.softplus(decay)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _of_length_one(heads: Tensor) -> Tensor:
    heads = _wide(heads)
    return heads * (heads.square().sum(-1, keepdim=True) + _UNIT_EPS).rsqrt()
