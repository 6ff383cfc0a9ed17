"""Mixers with a state in their plainest form: one document, one token after the other.

What the training blocks compute in chunks over packed documents, written as the papers do. The analysis judges what it
found in a foreign module by these, and the tests judge the blocks by them in float64. Tensors are canonical: the names
that `spec` writes beside each mixer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting.spec import GatedDeltaSpec, LightningSpec, Mamba1Spec, Mamba2Spec, RGLRUSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal.porting.spec import Stateful


def convolve(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return y_t = sum over j < K of w_j x_{t - K + 1 + j}, plus bias, for each channel; zeros stand before the first
    token. inputs: [T, C]; weight: [C, K]."""
    width = weight.shape[1]
    outputs = []
    kept = inputs.new_zeros(width - 1, inputs.shape[1])
    for token in inputs:
        seen = torch.cat((kept, token[None]))
        outputs.append((seen * weight.T).sum(0))
        kept = seen[1:]
    total = torch.stack(outputs)
    return total if bias is None else total + bias


def mix(spec: Stateful, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what a mixer with these canonical tensors gives for one document, [T, hidden_size]."""
    if isinstance(spec, GatedDeltaSpec):
        return gated_delta(spec, tensors, hidden)
    if isinstance(spec, LightningSpec):
        return lightning(spec, tensors, hidden)
    if isinstance(spec, Mamba1Spec):
        return mamba1(spec, tensors, hidden)
    if isinstance(spec, Mamba2Spec):
        return mamba2(spec, tensors, hidden)
    if isinstance(spec, RGLRUSpec):
        return rg_lru(spec, tensors, hidden)
    return short_convolution(tensors, hidden)


def short_convolution(tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return out_proj(C * convolve(B * x)) for one document, [T, hidden_size]."""
    before, after, values = _linear(tensors, "in_proj", hidden).chunk(3, dim=-1)
    convolved = convolve(before * values, tensors["conv.weight"], tensors.get("conv.bias"))
    return _linear(tensors, "out_proj", after * convolved)


def gated_delta(spec: GatedDeltaSpec, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what a gated delta rule gives for one document, [T, hidden_size]."""
    activation = ACTIVATIONS[spec.conv_activation]
    query, key, value = (
        activation(convolve(_linear(tensors, f"{part}_proj", hidden), tensors[f"{part}_conv.weight"])) for part in "qkv"
    )
    repeats = spec.num_value_heads // spec.num_key_heads
    query, key = (
        unit(part.unflatten(-1, (-1, spec.key_dim))).repeat_interleave(repeats, dim=1) for part in (query, key)
    )
    value = value.unflatten(-1, (-1, spec.value_dim))
    decay = _linear(tensors, "decay_proj", _linear(tensors, "decay_down", hidden) if spec.decay_rank else hidden)
    raw, scale = decay + tensors["dt_bias"], tensors["A_log"].exp()
    if spec.by_channel:
        raw, scale = raw.unflatten(-1, (-1, spec.key_dim)), scale[:, None]
    if spec.decay_floor is None:
        log_decay = -scale * functional.softplus(raw)
    else:
        log_decay = spec.decay_floor * (scale * raw).sigmoid()
    rate = _linear(tensors, "rate_proj", hidden).sigmoid() * spec.max_rate
    given = delta_rule(query * spec.key_dim**-0.5, key, value, log_decay, rate)
    gates = _linear(tensors, "gate_proj", _linear(tensors, "gate_down", hidden) if spec.gate_rank else hidden)
    gates = functional.silu(gates) if spec.gate == "silu" else gates.sigmoid()
    normed = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + spec.norm_eps) * tensors["norm.weight"]
    return _linear(tensors, "o_proj", normed.flatten(1) * gates)


def lightning(spec: LightningSpec, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what lightning attention gives for one document, [T, hidden_size]; its slopes are those of the table."""
    activation = ACTIVATIONS[spec.activation]
    query, key, value = (
        activation(_linear(tensors, f"{part}_proj", hidden)).unflatten(-1, (-1, spec.head_dim)) for part in "qkv"
    )
    decay = -tensors["slope_rate"].flatten().expand(len(hidden), -1)
    given = state_space(query, key, value, decay, torch.ones_like(decay)).flatten(1)
    normed = rms(given, spec.norm_eps) * tensors["norm.weight"]
    return _linear(tensors, "o_proj", normed * _linear(tensors, "gate_proj", hidden).sigmoid())


def mamba1(spec: Mamba1Spec, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what Mamba-1 gives for one document, [T, hidden_size]."""
    filtered = convolve(_linear(tensors, "x_proj", hidden), tensors["conv.weight"], tensors.get("conv.bias"))
    inputs = ACTIVATIONS[spec.conv_activation](filtered)
    found = {}
    for part in ("step", "b", "c"):
        found[part] = _linear(tensors, f"{part}_proj", inputs)
        if spec.norm_eps is not None:
            found[part] = rms(found[part], spec.norm_eps) * tensors.get(f"{part}_norm.weight", 1.0)
    steps = functional.softplus(_linear(tensors, "dt_proj", found["step"]) + tensors["dt_bias"])
    given = selective_scan(found["c"], found["b"], inputs, steps, -tensors["A_log"].exp())
    gate = functional.silu(_linear(tensors, "z_proj", hidden))
    return _linear(tensors, "o_proj", (given + tensors["D"] * inputs) * gate)


def mamba2(spec: Mamba2Spec, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what Mamba-2 gives for one document, [T, hidden_size]."""
    activation = ACTIVATIONS[spec.conv_activation]
    parts = dict(zip(("z", "x", "b", "c", "dt"), spec.multipliers, strict=True))
    projected = {part: _linear(tensors, f"{part}_proj", hidden) * factor for part, factor in parts.items()}
    inputs, keys, queries = (
        activation(
            convolve(
                projected[part],
                tensors[f"{part}_conv.weight"],
                tensors.get(f"{part}_conv.bias"),
            )
        )
        for part in "xbc"
    )
    inputs = inputs.unflatten(-1, (-1, spec.head_dim))
    keys, queries = (part.unflatten(-1, (-1, spec.state_size)) for part in (keys, queries))
    steps = functional.softplus(projected["dt"] + tensors["dt_bias"]).clamp(*spec.step_limits)
    given = state_space(queries, keys, inputs, -tensors["A_log"].exp() * steps, steps)
    given = (given + tensors["D"][:, None] * inputs).flatten(1)
    gate = functional.silu(projected["z"])
    if spec.norm_eps is None:
        return _linear(tensors, "o_proj", given * gate)
    given = given if spec.norm_first else given * gate
    groups = given.unflatten(-1, (spec.norm_groups, -1))
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + spec.norm_eps)
    normed = normed.flatten(-2) * tensors["norm.weight"]
    return _linear(tensors, "o_proj", normed * gate if spec.norm_first else normed)


def rg_lru(spec: RGLRUSpec, tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return what a gated linear recurrent unit gives for one document, [T, hidden_size]."""
    inputs = convolve(_linear(tensors, "x_proj", hidden), tensors["conv.weight"], tensors.get("conv.bias"))
    gate, strength = (
        by_blocks(inputs, tensors[f"{part}_gate.weight"], tensors[f"{part}_gate.bias"]).sigmoid()
        for part in ("input", "decay")
    )
    given = gated_unit(inputs, gate, strength, tensors["decay"])
    return _linear(tensors, "o_proj", given * ACTIVATIONS[spec.activation](_linear(tensors, "gate_proj", hidden)))


def by_blocks(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the product of each block of [..., channels] with its own matrix. weight: [blocks, width, width], from its
    second dimension to its third; bias: [blocks, width]."""
    return (torch.einsum("...bi,bij->...bj", inputs.unflatten(-1, bias.shape), weight) + bias).flatten(-2)


def gated_unit(inputs: Tensor, gate: Tensor, strength: Tensor, decay: Tensor) -> Tensor:
    """Return h of h <- a h + sqrt(1 - a^2) gate inputs, where log a = -8 strength softplus(decay); the first token
    begins with gate inputs. inputs, gate, strength: [T, ..., C]; decay: [C]. Returns [T, ..., C]."""
    state = gate[0] * inputs[0]
    outputs = [state]
    for x, i, r in zip(inputs[1:], gate[1:], strength[1:], strict=True):
        kept = (-8 * r * functional.softplus(decay)).exp()
        state = kept * state + (1 - kept**2).sqrt() * i * x
        outputs.append(state)
    return torch.stack(outputs)


def selective_scan(query: Tensor, key: Tensor, value: Tensor, step: Tensor, rates: Tensor) -> Tensor:
    """Return S query of S <- exp(step rates) S + step value key^T, for every channel.

    query, key: [T, ..., N]; value, step: [T, ..., C]; rates: [C, N]. Returns [T, ..., C].
    """
    state = value.new_zeros(*value.shape[1:], rates.shape[1])
    outputs = []
    for q, k, v, by in zip(query, key, value, step, strict=True):
        state = state * (by[..., None] * rates).exp() + (by * v)[..., None] * k[..., None, :]
        outputs.append((state * q[..., None, :]).sum(-1))
    return torch.stack(outputs)


def rms(vectors: Tensor, eps: float) -> Tensor:
    """Return vectors over the root of the mean of their squares and an epsilon."""
    return vectors * torch.rsqrt(vectors.square().mean(-1, keepdim=True) + eps)


def state_space(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, step: Tensor) -> Tensor:
    """Return S^T q of S <- exp(log_decay) S + step k v^T.

    query, key: [T, G, N], for consecutive heads; value: [T, H, P]; log_decay, step: [T, H]. Returns [T, H, P].
    """
    repeats = value.shape[1] // key.shape[1]
    query, key = (part.repeat_interleave(repeats, dim=1) for part in (query, key))
    state = value.new_zeros(*key.shape[1:], value.shape[2])
    outputs = []
    for q, k, v, log, by in zip(query, key, value, log_decay, step, strict=True):
        state = state * log.exp()[:, None, None] + k[:, :, None] * (v * by[:, None])[:, None]
        outputs.append(torch.einsum("hkv,hk->hv", state, q))
    return torch.stack(outputs)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, rate: Tensor) -> Tensor:
    """Return S^T q of S <- exp(log_decay) S; S <- S + k (rate (v - S^T k))^T, the error against the decayed state.

    query, key: [T, H, d_k]; value: [T, H, d_v]; log_decay: [T, H] or [T, H, d_k]; rate: [T, H]. Returns [T, H, d_v].
    """
    state = value.new_zeros(*key.shape[1:], value.shape[2])
    outputs = []
    for q, k, v, log, r in zip(query, key, value, log_decay, rate, strict=True):
        state = state * log.exp().reshape(len(log), -1, 1)
        missing = (v - torch.einsum("hkv,hk->hv", state, k)) * r[:, None]
        state = state + k[:, :, None] * missing[:, None]
        outputs.append(torch.einsum("hkv,hk->hv", state, q))
    return torch.stack(outputs)


def unit(heads: Tensor) -> Tensor:
    """Return vectors over the square root of the sum of their squares and 1e-6, a constant of all implementations."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)


def _linear(tensors: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    return functional.linear(inputs, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
