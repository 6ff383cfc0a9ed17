"""Names of Qwen3's parameters on disk."""

from __future__ import annotations

from typing import ClassVar

from areal.models.adapter import Experts, Renamed, StackedExperts, TableAdapter
from areal.models.qwen3.model import Qwen3Model

_GATE_UP = StackedExperts(
    ("layers.*.mlp.experts.gate_proj", "layers.*.mlp.experts.up_proj"), "model.layers.*.mlp.experts.gate_up_proj"
)
_DOWN = StackedExperts("layers.*.mlp.experts.down_proj", "model.layers.*.mlp.experts.down_proj")


class Qwen3StateDictAdapter(TableAdapter):
    """On disk names have "model." in front, except lm_head; the router is "gate" and experts are separate matrices.

    The alternatives are the stacked experts that transformers holds in memory.
    """

    model_class = Qwen3Model
    table: ClassVar = (
        Renamed("layers.*.mlp.router", "model.layers.*.mlp.gate"),
        Experts(
            "layers.*.mlp.experts.gate_proj",
            "model.layers.*.mlp.experts.{expert}.gate_proj.weight",
            alternative=_GATE_UP,
        ),
        Experts(
            "layers.*.mlp.experts.up_proj", "model.layers.*.mlp.experts.{expert}.up_proj.weight", alternative=_GATE_UP
        ),
        Experts(
            "layers.*.mlp.experts.down_proj", "model.layers.*.mlp.experts.{expert}.down_proj.weight", alternative=_DOWN
        ),
    )
