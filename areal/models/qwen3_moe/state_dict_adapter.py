"""Names of Qwen3Moe's parameters on disk."""

from __future__ import annotations

from typing import ClassVar

from areal.models.adapter import Renamed, SeparateExperts, StackedExperts, TableAdapter
from areal.models.qwen3_moe.model import Qwen3MoeModel

_GATE_UP = StackedExperts(
    ("layers.*.mlp.experts.gate_proj", "layers.*.mlp.experts.up_proj"), "model.layers.*.mlp.experts.gate_up_proj"
)


class Qwen3MoeStateDictAdapter(TableAdapter):
    """On disk names have "model." in front, except lm_head, unless the table says something else."""

    model_class = Qwen3MoeModel
    table: ClassVar = (
        SeparateExperts(
            "layers.*.mlp.experts.down_proj",
            "model.layers.*.mlp.experts.{expert}.down_proj.weight",
            alternative=Renamed("layers.*.mlp.experts.down_proj", "model.layers.*.mlp.experts.down_proj"),
        ),
        SeparateExperts(
            "layers.*.mlp.experts.gate_proj",
            "model.layers.*.mlp.experts.{expert}.gate_proj.weight",
            alternative=_GATE_UP,
        ),
        SeparateExperts(
            "layers.*.mlp.experts.up_proj", "model.layers.*.mlp.experts.{expert}.up_proj.weight", alternative=_GATE_UP
        ),
        Renamed("layers.*.mlp.router", "model.layers.*.mlp.gate"),
    )
