"""The family as the registry hands it out."""

from __future__ import annotations

from typing import Final

from areal.api import ModelSpec
from areal.models.qwen3_moe.args import Qwen3MoeArgs
from areal.models.qwen3_moe.model import Qwen3MoeModel
from areal.models.qwen3_moe.parallelize import parallelize
from areal.models.qwen3_moe.state_dict_adapter import Qwen3MoeStateDictAdapter

SPEC: Final = ModelSpec(
    name="qwen3_moe",
    model_class=Qwen3MoeModel,
    args_class=Qwen3MoeArgs,
    state_dict_adapter=Qwen3MoeStateDictAdapter,
    parallelize=parallelize,
    model_types=frozenset({"qwen3_moe"}),
)
