"""Which parameters of ours each parameter of megatron-core holds, in which order of rows, and how ranks of tp split it.

Rows are those that read checkpoints (`areal.models.adapter`): "on disk" is a rank's tensor of megatron here, and ours
is the rank's part of our parameter. That works since both split alike: queries, keys and values by whole groups, gate
and up by features, the vocabulary in equal runs of which the last may be padded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.api import ModelError
from areal.models.adapter import EMBEDDING, HEAD, QueryKeyValue, Renamed, Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import Tensor

    from areal.models.adapter import Row

__all__ = ["OUTPUT_LAYER", "TABLE", "MegatronPart", "Placed", "held", "padded_vocabulary", "split_dimensions"]

OUTPUT_LAYER: Final = "output_layer.weight"
_LAYER: Final = re.compile(r"^decoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Placed:
    """One row: `ours` in terms of one layer, `on_disk` the name with megatron."""

    row: Row
    split: int | None = None
    """Dimension that ranks of tp split; None where each has all of it."""


def _in_layer(ours: str, megatron: str, split: int | None = None) -> Placed:
    return Placed(Renamed(f"layers.*.{ours}", f"decoder.layers.*.{megatron}"), split)


def _query_key_value(kind: str) -> Placed:
    ours = tuple(f"layers.*.self_attn.{name}_proj.{kind}" for name in "qkv")
    megatron = f"decoder.layers.*.self_attention.linear_qkv.{kind}"
    return Placed(QueryKeyValue(ours, megatron, arrangement="per_group"), 0)


TABLE: Final[tuple[Placed, ...]] = (
    Placed(Renamed(EMBEDDING, "embedding.word_embeddings.weight"), 0),
    _in_layer("input_layernorm.weight", "input_layernorm.weight"),
    _in_layer("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
    _query_key_value("weight"),
    _query_key_value("bias"),
    _in_layer("self_attn.q_norm.weight", "self_attention.q_layernorm.weight"),
    _in_layer("self_attn.k_norm.weight", "self_attention.k_layernorm.weight"),
    _in_layer("self_attn.o_proj.weight", "self_attention.linear_proj.weight", 1),
    _in_layer("post_attention_layernorm.weight", "pre_mlp_layernorm.weight"),
    _in_layer("post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
    Placed(
        Rows(
            ("layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight"),
            "decoder.layers.*.mlp.linear_fc1.weight",
        ),
        0,
    ),
    _in_layer("mlp.down_proj.weight", "mlp.linear_fc2.weight", 1),
    Placed(Renamed("norm.weight", "decoder.final_layernorm.weight")),
    Placed(Renamed(HEAD, OUTPUT_LAYER), 0),
)
"""Norms have two names: Transformer Engine keeps them in the matrix that they feed."""
_BY_NAME: Final = {placed.row.on_disk: placed for placed in TABLE}


@dataclass(frozen=True)
class MegatronPart:
    """One parameter of megatron, on any rank of tp."""

    name: str
    """With megatron, where layers count from the first of the stage."""
    ours: tuple[str, ...]
    placed: Placed

    def read(self, tensor: Tensor, shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """Return this rank's parts of ours, of `shapes`; they share memory with `tensor` where the order of rows allows
        it, and never show padding."""
        size = sum(shape[0] for shape in shapes)
        return self.placed.row.read([tensor[:size]], shapes, head_dim)

    def write(self, parts: Sequence[Tensor], tensor: Tensor, head_dim: int) -> None:
        """Fill `tensor` from this rank's parts of ours; padding becomes zero."""
        merged = self.placed.row.write(parts, head_dim)[0]
        tensor[: merged.shape[0]].copy_(merged)
        tensor[merged.shape[0] :].zero_()


def held(names: Iterable[str], *, first_layer: int, is_tied: bool) -> list[MegatronPart]:
    """Return what each parameter of a stage holds. first_layer: of the whole model, the one that is the stage's first.
    is_tied: the head of the last stage is a copy of the embedding.

    Raises ModelError that lists all names the table does not have.
    """
    found, unknown = [], []
    for name in names:
        match = _LAYER.match(name)
        placed = _BY_NAME.get(_LAYER.sub("decoder.layers.*.", name))
        if placed is None:
            unknown.append(name)
            continue
        layer = str(int(match[1]) + first_layer) if match else ""
        ours = tuple(target.replace("*", layer) for target in placed.row.targets)
        if name == OUTPUT_LAYER and is_tied:
            ours = (EMBEDDING,)
        found.append(MegatronPart(name, ours, placed))
    if unknown:
        raise ModelError(
            f"megatron-core has parameters that areal.engine.megatron.names does not know: {', '.join(unknown)}; "
            f"expected those of dense decoders with RMS norms and gated feed-forward layers",
            fix="train this model with archon.engine native",
        )
    return found


def split_dimensions() -> dict[str, int | None]:
    """Return the dimension of each of our parameters that ranks of tp split, by the name in terms of one layer."""
    return {target: placed.split for placed in TABLE for target in placed.row.targets}


def padded_vocabulary(vocab_size: int, tp: int) -> int:
    """Return the rows of megatron's embedding: a multiple of tp, so that every rank has as many."""
    return -(-vocab_size // tp) * tp
