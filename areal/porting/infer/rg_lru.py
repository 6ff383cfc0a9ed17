"""Gated linear recurrent units: which parameters are gates and decays, in any order.

The filters say which rows are inputs. Every pair of stacks of small matrices, with vectors beside them, is run through
the plain recurrence: its first token alone, which needs no decay, and then all of them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting import recurrences
from areal.porting.infer.delta import activations_of
from areal.porting.infer.mixer_parts import MixerHypothesis, convolved, filtered
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.spec import RGLRUSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.porting.infer.mixer_parts import Filtered, MixerParts


class _Gate(NamedTuple):
    weight: Tensor
    """[blocks, width, width], from its second dimension to its third."""
    bias: Tensor
    """[blocks, width]."""
    turned: bool

    def of(self, inputs: Tensor) -> Tensor:
        """Return the gate of [B, T, channels], in float64."""
        return recurrences.by_blocks(inputs, self.weight.double(), self.bias.double()).sigmoid()


def rg_lrus(parts: MixerParts) -> Iterator[MixerHypothesis]:
    """Yield the gated linear recurrent units that give what enters the last projection."""
    filters = filtered(parts)
    total = parts.projected().shape[-1]
    if filters is None or len(filters.rows) != parts.width or total != 2 * parts.width:
        return
    taken = set(filters.rows.tolist())
    gate_rows = torch.tensor([row for row in range(total) if row not in taken])
    projected = parts.projected().double()
    inputs, target = convolved(projected[..., filters.rows], filters.kernel), parts.entering().double()
    gates = list(gates_of(parts))
    for activation in activations_of(parts) if gates else ():
        factor = ACTIVATIONS[activation](projected[..., gate_rows])
        for gate in gates:
            # A document begins with its first input, gated, whatever the decay is.
            first = (inputs[:, :1] * gate.of(inputs[:, :1]) * factor[:, :1]).float()
            if error(first, target[:, :1].float()) > 10 * LOCAL:
                continue
            for other, decay in itertools.product(gates, decays_of(parts)):
                given = given_by(inputs, gate, other, decay) * factor
                if error(given.float(), target.float()) <= 10 * LOCAL:
                    yield _hypothesis(parts, filters, gate_rows, activation, (gate, other, decay))


def gates_of(parts: MixerParts) -> Iterator[_Gate]:
    """Yield every stack of square matrices over all channels, as it is and turned, with every vector of that shape."""
    held = list(parts.parameters.values())
    for weight in held:
        if weight.dim() != 3 or weight.shape[1] != weight.shape[2] or weight.shape[0] * weight.shape[1] != parts.width:
            continue
        biases = [value for value in held if value.numel() == parts.width and value.dim() <= 2]
        for bias, turned in itertools.product(biases, (False, True)):
            yield _Gate(weight.mT if turned else weight, bias.reshape(weight.shape[:2]), turned)


def decays_of(parts: MixerParts) -> list[Tensor]:
    """Return the vectors that may hold a decay per channel."""
    return [
        value.reshape(-1) for value in parts.parameters.values() if value.numel() == max(value.shape) == parts.width
    ]


def given_by(inputs: Tensor, gate: _Gate, other: _Gate, decay: Tensor) -> Tensor:
    """Return what states of [B, T, channels] are."""
    values, opened, strength = (each.transpose(0, 1) for each in (inputs, gate.of(inputs), other.of(inputs)))
    return recurrences.gated_unit(values, opened, strength, decay.double()).transpose(0, 1)


def _hypothesis(
    parts: MixerParts,
    filters: Filtered,
    gate_rows: Tensor,
    activation: str,
    found: tuple[_Gate, _Gate, Tensor],
) -> MixerHypothesis:
    gate, other, decay = found
    tensors = {
        "conv.weight": filters.kernel.weight,
        "input_gate.weight": gate.weight,
        "input_gate.bias": gate.bias,
        "decay_gate.weight": other.weight,
        "decay_gate.bias": other.bias,
        "decay": decay,
        "o_proj.weight": parts.last.weight,
    }
    biases = {"conv.bias": filters.bias, "o_proj.bias": parts.last.bias}
    for name, rows in (("gate_proj", gate_rows), ("x_proj", filters.rows)):
        tensors[f"{name}.weight"], biases[f"{name}.bias"] = parts.rows(rows)
    tensors |= {name: bias for name, bias in biases.items() if bias is not None}
    spec = RGLRUSpec(
        width=parts.width,
        num_blocks=len(gate.weight),
        kernel_size=filters.kernel.weight.shape[1],
        activation=activation,
        bias="x_proj.bias" in tensors,
        output_bias=parts.last.bias is not None,
        conv_bias=filters.bias is not None,
    )
    turned = [name for name, each in (("input", gate), ("decay", other)) if each.turned]
    layout = f"gates of {len(gate.weight)} blocks" + (f", {' and '.join(turned)} turned" if turned else "")
    return MixerHypothesis(spec, {name: value.contiguous() for name, value in tensors.items()}, layout)
