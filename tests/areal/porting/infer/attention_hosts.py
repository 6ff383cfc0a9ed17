"""Small decoders around one attention module, transformers' or our own, for the inference to look into."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from areal.porting.infer.attention import infer_attention
from areal.porting.probe import instance as instances
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete
from areal.porting.records import LayerContext, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from areal.porting.infer.attention import AttentionFinding
    from areal.porting.records import Inferred

TOKENS = torch.randint(0, 64, (3, 40), generator=torch.Generator().manual_seed(0))
HIDDEN, HEADS, KV_HEADS, WIDTH = 32, 4, 2, 8


class Host(nn.Module):
    """Embeds tokens, calls one attention module with them, returns logits. Weights depend on their names only."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, HIDDEN)
        self.mixer = attention
        self.head = nn.Linear(HIDDEN, 64, bias=False)
        for name, parameter in self.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            spread = 1.0 if name == "embed.weight" else 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.data += torch.randn(parameter.shape, generator=generator) * spread
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mixer(self.embed(input_ids)))
        return logits


def infer_foreign(attention: nn.Module, config: Mapping[str, Any] | None = None) -> Inferred[AttentionFinding]:
    """Infer an attention module of our own."""
    return infer_in(Host(attention), "mixer", 0, config or {})


def infer_installed(model_type: str, layer: int = 0, /, **fields: Any) -> Inferred[AttentionFinding]:
    """Infer one attention layer of an installed type with these fields."""
    subject = resolve(model_type)
    instance = instances.build(subject, complete(subject, fields), attention="eager")
    names = [
        name
        for name, module in instance.model.named_modules()
        if name.rsplit(".", 1)[-1] in ("self_attn", "attn", "self_attention", "attention") and "forward" in dir(module)
    ]
    outer = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    return infer_in(instance.model, outer[layer], layer, instance.hf_config.to_dict())


def infer_in(model: nn.Module, name: str, layer: int, config: Mapping[str, Any]) -> Inferred[AttentionFinding]:
    """Infer the attention module of this name."""
    with torch.no_grad():
        logits = instances.logits_of(model(TOKENS))
    trace = Trace(tokens=TOKENS, logits=logits, calls={}, softmaxes=())
    context = LayerContext(
        model=model, module=model.get_submodule(name), name=name, layer=layer, num_layers=1, config=config, trace=trace
    )
    return infer_attention(context)


class Attention(nn.Module):
    """Plain attention in plain torch. Variations replace one step each: every hook gets and returns [B, T, H, D], but
    `scores` and `weights`, which are [B, H, T, T]."""

    def __init__(
        self,
        *,
        rotate: Callable[[Tensor], Tensor] | None = None,
        scores: Callable[[Tensor], Tensor] | None = None,
        weights: Callable[[Tensor], Tensor] | None = None,
        attended: Callable[[Tensor], Tensor] | None = None,
        value: Callable[[Tensor], Tensor] | None = None,
        visible: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.wanted = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
        self.offered = nn.Linear(HIDDEN, KV_HEADS * WIDTH, bias=False)
        self.content = nn.Linear(HIDDEN, KV_HEADS * WIDTH, bias=False)
        self.merge = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)
        same: Callable[[Tensor], Tensor] = lambda heads: heads  # noqa: E731 - the neutral step
        self.rotate, self.scores, self.weights = rotate or same, scores or same, weights or same
        self.attended, self.value = attended or same, value or same
        self.visible = visible or (lambda query, key: key <= query)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.wanted(hidden).unflatten(-1, (HEADS, WIDTH)),
            self.offered(hidden).unflatten(-1, (KV_HEADS, WIDTH)),
            self.content(hidden).unflatten(-1, (KV_HEADS, WIDTH)),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.project(hidden)
        key, value = (each.repeat_interleave(HEADS // each.shape[2], 2) for each in (key, self.value(value)))
        scores = torch.einsum("bqhd,bkhd->bhqk", self.rotate(query), self.rotate(key)) * WIDTH**-0.5
        position = torch.arange(hidden.shape[1])
        visible = self.visible(position[:, None], position[None, :])
        weights = self.weights(self.scores(scores).masked_fill(~visible, float("-inf")).softmax(-1))
        attended = self.attended(torch.einsum("bhqk,bkhd->bqhd", weights, value))
        merged: Tensor = self.merge(attended.flatten(2))
        return merged


def turn(heads: Tensor, pairs: list[tuple[int, int]], frequencies: list[float]) -> Tensor:
    """Rotate [B, T, H, D]: pair j of dimensions by position * frequencies[j]."""
    position = torch.arange(heads.shape[1], dtype=torch.float32)[None, :, None]
    out = heads.clone()
    for (real, imaginary), frequency in zip(pairs, frequencies, strict=True):
        cos, sin = (position * frequency).cos(), (position * frequency).sin()
        out[..., real] = heads[..., real] * cos - heads[..., imaginary] * sin
        out[..., imaginary] = heads[..., imaginary] * cos + heads[..., real] * sin
    return out
